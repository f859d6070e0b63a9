"""A small network, its data and a quiet Trainer; the loops to compare with stand in the tests."""

from __future__ import annotations

from functools import wraps

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.loggers.logger import Logger
from tests.runs import quiet

QUIET = quiet.QUIET | {"num_sanity_val_steps": 0}


def network(dropout=0.0):
    """The same weights at every call; the global generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def samples(n, seed=2):
    """`n` samples of six numbers and a class."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def batches(n, size=4, seed=2):
    """`n` batches of `size` samples, as a list."""
    x, y = samples(n * size, seed)
    return list(zip(x.split(size), y.split(size), strict=True))


def loader(n, size=4, **arguments):
    """A DataLoader over `n` samples."""
    return DataLoader(TensorDataset(*samples(n)), batch_size=size, **arguments)


class Unsized:
    """An iterable of batches without a length."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Rows(Logger):
    """A logger that keeps all its rows."""

    name = "rows"
    version = 0
    experiment = None
    not_in_checkpoint = ("rows",)

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params, *args):
        pass


def sgd(parameters):
    """The optimizer of most runs."""
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters):
    """An optimizer with a state, without which a resume is not exact."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def scheduled(build, lr=0.1, **entries):
    """Return a `configure` of SGD with the schedule that `build` makes for it, and further entries of its dict."""

    def configure(parameters):
        optimizer = torch.optim.SGD(parameters, lr=lr)
        return [optimizer], [{"scheduler": build(optimizer), **entries}]

    return configure


class Net(Module):
    """A classifier.

    Args:
        configure: Gets the parameters and returns the result of configure_optimizers. The default is `sgd`.
        dropout: Probability of the dropout in the usual network.
        net: Network in place of the usual one.
    """

    def __init__(self, configure=None, dropout=0.0, net=None):
        super().__init__()
        self.net = network(dropout) if net is None else net
        self.configure = configure or sgd

    def loss(self, batch):
        x, y = batch
        return cross_entropy(self.net(x), y)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def configure_optimizers(self):
        return self.configure(self.parameters())


def subclass(base=Net, *functions, **methods):
    """Return a subclass of `base` named Given with these methods; `functions` have the names of theirs."""
    return type("Given", (base,), {function.__name__: function for function in functions} | methods)


def with_methods(base=Net, *functions, **methods):
    """Return a module of a `subclass`; if `base` is a module, it is that one."""
    if isinstance(base, type):
        return subclass(base, *functions, **methods)()
    base.__class__ = subclass(type(base), *functions, **methods)
    return base


def calling(base=Net, *functions, **methods):
    """Return a module like `with_methods`, which calls each of these before the method that it would replace."""
    kind = base if isinstance(base, type) else type(base)

    def both(name, first):
        @wraps(first)
        def method(self, *args, **kwargs):
            first(self, *args, **kwargs)
            return getattr(kind, name)(self, *args, **kwargs)

        return method

    methods |= {function.__name__: function for function in functions}
    return with_methods(base, **{name: both(name, first) for name, first in methods.items()})


def by_closure(self, epoch, batch_idx, optimizer, optimizer_closure=None):
    """An `optimizer_step` that gives the closure to the optimizer."""
    optimizer.step(closure=optimizer_closure)


def raising(error):
    """Return a method that raises this error."""

    def method(*args, **kwargs):
        raise error

    return method


def quiet_trainer(**arguments):
    """A Trainer that writes and prints nothing."""
    return Trainer(**{**QUIET, "max_epochs": 1, **arguments})


def same_weights(one, other):
    """Whether two modules hold the same bits."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)
