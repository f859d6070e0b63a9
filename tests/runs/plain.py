"""A small network, its data and a quiet Trainer; the loops to compare with stand in the tests."""

from __future__ import annotations

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


def quiet_trainer(**arguments):
    """A Trainer that writes and prints nothing."""
    return Trainer(**{**QUIET, "max_epochs": 1, **arguments})


def same_weights(one, other):
    """Whether two modules hold the same bits."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)
