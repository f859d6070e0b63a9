"""User state in every place of a run: saved or reported at the first save, and no object ends the run."""

from __future__ import annotations

import enum
from collections import deque
from functools import partial
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric

import lightlib as L
from lightlib.loggers import Logger
from tests.core.run.test_user_state import Net, case, check, data, run
from tests.runs.plain import samples, subclass, with_methods


# places that are saved
class Slowing(torch.optim.SGD):
    """Shrinks its steps by an attribute that no state_dict holds."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.scale, self.past = 1.0, []

    def step(self, closure=None):
        self.scale *= 0.97
        self.past.append(self.scale)
        for group in self.param_groups:
            group["lr"] = 0.1 * sum(self.past) / len(self.past)
        return super().step(closure)


class SlowingNet(Net):
    def configure_optimizers(self):
        return Slowing(self.parameters())


class Forgets(torch.optim.lr_scheduler.LRScheduler):
    """A schedule with a state_dict that leaves out its factor."""

    factor = 1.0

    def get_lr(self):
        self.factor *= 0.97
        return [base * self.factor for base in self.base_lrs]

    def state_dict(self):
        return {"last_epoch": self.last_epoch, "base_lrs": self.base_lrs}


class ForgetsNet(Net):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": Forgets(optimizer), "interval": "step"}]


class Counted(Net):
    """Counts in the class, and in a function of it."""

    seen, memory = 0, deque(maxlen=4)

    def weight(self, loss):
        Counted.seen += 1
        self.memory.append(float(loss.detach()))
        Counted.noted.calls = getattr(Counted.noted, "calls", 0) + 1
        return loss * (1 + 0.01 * (Counted.seen + sum(self.memory) + Counted.noted.calls))

    def noted(self):
        """Return nothing; it has an attribute."""


class Weighs(L.Callback):
    """Saves `counter` by itself; the name of `count` is a part of that text."""

    def __init__(self):
        self.count, self.counter = 0.0, 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch[0].mul_(1 + 0.05 * self.count)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.count, self.counter = self.count + 0.3, self.counter + 1

    def state_dict(self):
        return {"counter": self.counter}

    def load_state_dict(self, state):
        self.counter = state["counter"]


class Joins:
    def __init__(self):
        self.strength = 0.0

    def join(self, scale, batch):
        self.strength += 0.01
        x, y = zip(*batch, strict=True)
        return torch.stack(x) * (scale + self.strength), torch.stack(y)


class Repeats(DataLoader):
    """A loader that counts its passes."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        for x, y in super().__iter__():
            yield x * self.passes, y


class LogsRunning(Logger):
    """Counts its calls, by which the loss is weighted."""

    name, version = "running", 0

    def __init__(self):
        self.total = 0

    def log_metrics(self, metrics, step=None):
        self.total += 1

    def log_hyperparams(self, params, *args, **kwargs):
        pass


class UsesLogger(Net):
    def weight(self, loss):
        self.log("loss", loss)
        return loss * (1 + 0.1 * self.logger.total)


@pytest.fixture
def counted():
    """Give the class its first values: it stays between the runs of a process."""

    def make():
        Counted.seen = 0
        Counted.memory.clear()
        vars(Counted.noted).clear()
        return Counted()

    return make


@pytest.mark.parametrize(
    ("module", "callbacks", "loader", "arguments"),
    [
        (SlowingNet, [], None, {}),
        (ForgetsNet, [], None, {}),
        (Net, [Weighs], None, {}),
        (Net, [], lambda: data(shuffle=True, collate_fn=partial(Joins().join, 1.0)), {}),
        (Net, [], lambda: Repeats(TensorDataset(*samples(20)), 4), {}),
        (UsesLogger, [], None, {"logger": LogsRunning, "log_every_n_steps": 1}),
    ],
    ids=["optimizer", "schedule", "a longer name", "collate_fn in a partial", "loader", "logger"],
)
def test_state_in_every_place_is_restored(module, callbacks, loader, arguments, tmp_path):
    def make():
        given = {name: value() if callable(value) else value for name, value in arguments.items()}
        return module(), ((loader or (lambda: data(shuffle=True)))(),), [one() for one in callbacks], given

    check(make, tmp_path, stops=(2, 7))


def test_attributes_of_a_class_and_of_its_functions_are_restored(counted, tmp_path):
    check(case(counted), tmp_path, stops=(2, 7))


def test_a_forged_attribute_replaces_no_method_of_a_class(counted, tmp_path):
    path = tmp_path / "one.ckpt"
    run(case(counted), str(path), 2)
    content = torch.load(path)
    (place,) = [place for place in content["lightlib"]["user"]["values"] if place.startswith("class ")]
    content["lightlib"]["user"]["values"][place]["weight"] = {"value": 3, "same": False}
    torch.save(content, path)
    with pytest.warns(L.report.LightlibWarning, match="Counted has a method or property of this name"):
        run(case(counted, max_steps=3), ckpt_path=str(path))
    assert callable(Counted.weight)


# what is reported
def said(module, tmp_path, *callbacks):
    with pytest.warns(L.report.PossibleUserWarning, match="will differ") as warned:
        run(case(module, *callbacks), str(tmp_path / "one.ckpt"), 2)
    (text,) = [str(one.message) for one in warned]
    return text


def test_a_layer_without_parameters_that_is_replaced_or_added_is_reported(tmp_path):
    def on_train_epoch_start(self):
        self.backbone[2] = nn.GELU()
        self.added = nn.Dropout(0.1)

    text = said(subclass(Net, on_train_epoch_start), tmp_path)
    assert "module.backbone.2: it became a GELU since training began" in text
    assert "module.added: a Dropout was added since training began" in text
    assert text.count("since training began") == 2


def test_hooks_that_training_registers_or_removes_are_reported(tmp_path):
    class Hooks(Net):
        def __init__(self):
            super().__init__()
            self.kept = [self.head.register_forward_hook(self.scale), self.backbone.register_forward_hook(self.scale)]

        def scale(self, module, inputs, output):
            return output

        def on_train_epoch_start(self):
            self.kept[0].remove()
            self.backbone[0].register_forward_pre_hook(lambda module, inputs: None)
            self.head.bias.register_hook(lambda grad: grad)

    text = said(Hooks, tmp_path)
    assert "module.head: the hook test_hooks_that_training" in text
    assert "scale was removed since training began" in text
    assert "module.backbone.0: the hook" in text
    assert "module.head.bias: the hook" in text
    assert "module.backbone: " not in text


def test_hooks_that_are_there_in_the_end_as_at_the_start_are_not_reported(tmp_path):
    def on_train_start(self):
        self.handle = self.head.register_forward_hook(self.same)

    def on_train_epoch_start(self):
        self.handle.remove()
        self.handle = self.head.register_forward_hook(self.same)

    def same(self, module, inputs, output):
        return output

    renews = subclass(Net, on_train_start, on_train_epoch_start, same, not_in_checkpoint=("handle",))
    check(case(renews), tmp_path, stops=(2,))


# nothing that has not changed is reported
class Kind(str, enum.Enum):
    LORA = "lora"


class Wrapper(nn.Module):
    """As peft has it: a configuration that the module and its parts share, with members of enumerations as keys."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.configs = inner, {"default": SimpleNamespace(kind=Kind.LORA, handle=object(), targets={"q"})}
        self.inner.configs, self.active, self.inner.active = self.configs, ["default"], []
        self.inner.active = self.active

    def forward(self, x):
        return self.inner(x)


def test_a_library_that_shares_its_configuration_gives_no_alarm(tmp_path):
    def weight(self, loss):
        self.kinds.append({Kind.LORA: Kind.LORA})
        return loss * (1 + 0.01 * len(self.kinds))

    def wrapped():
        module = with_methods(Net, weight)
        module.head, module.kinds = Wrapper(module.head), []
        return module

    check(case(wrapped), tmp_path, stops=(2, 7))
    saved = torch.load(tmp_path / "2.ckpt")["lightlib"]["user"]["values"]
    assert {place: list(values) for place, values in saved.items()} == {"module": ["kinds"]}


# no object ends a run
class Configuration:
    def __init__(self):
        self.__dict__["values"] = {"weight": 1.0}

    def __getattr__(self, name):
        return self.values[name]


class Recurses:
    def __init__(self):
        self.seen = 0

    def __getattr__(self, name):
        return getattr(self, name + "_")


class Closed:
    def __init__(self):
        object.__setattr__(self, "seen", 0)

    def __getattribute__(self, name):
        raise KeyError(name)


class Uncopied:
    def __init__(self):
        self.seen = 0

    def __reduce_ex__(self, protocol):
        raise RuntimeError("reduce")

    def __deepcopy__(self, memo):
        raise RuntimeError("copy")

    def __eq__(self, other):
        return numpy.zeros(2) == other

    def __bool__(self):
        raise RuntimeError("truth")

    def __repr__(self):
        raise RuntimeError("repr")

    __hash__ = object.__hash__


class Meta(type):
    def __getattr__(cls, name):
        raise KeyError(name)


class OfMeta(metaclass=Meta):
    def __init__(self):
        self.seen = 0


class Cyclic:
    def __init__(self):
        self.me, self.seen = [self], 0


@pytest.mark.parametrize("kind", [Configuration, Recurses, Closed, Uncopied, OfMeta, Cyclic])
def test_an_object_that_raises_ends_no_run_wherever_it_is(kind, tmp_path):
    class Holds(Net):
        def __init__(self):
            super().__init__()
            self.__dict__["odd"] = kind()
            self.count, self.held = 0, {"odd": [(self.odd,)], "count": 0}

        def weight(self, loss):
            self.count += 1
            return loss * (1 + 0.01 * self.count)

    class Keeps(L.Callback):
        def __init__(self):
            self.odd = kind()

    class Joins:
        def __init__(self):
            self.odd = kind()

        def __call__(self, batch):
            x, y = zip(*batch, strict=True)
            return torch.stack(x), torch.stack(y)

    check(case(Holds, Keeps, loader=lambda: data(shuffle=True, collate_fn=Joins())), tmp_path, stops=(2,))


def test_a_metric_with_a_graph_is_held_at_a_validation(tmp_path):
    def weight(self, loss):
        self.values.update(loss)
        return loss * (1 + self.values.compute().detach().mean())

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.head(self.backbone(batch[0])).mean())

    def make():
        module = with_methods(Net, weight, validation_step)
        module.values = CatMetric()
        return module, (data(shuffle=True), data(8)), [], {"val_check_interval": 2}

    check(make, tmp_path, stops=(2, 3))


def test_a_save_that_takes_long_is_announced_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("lightlib.core.run.user_state._SLOW", -1.0)
    caplog.set_level("INFO", "lightlib")
    run(case(SlowingNet), str(tmp_path / "one.ckpt"), 2)
    (text,) = [text for text in caplog.messages if "Each checkpoint holds" in text]
    assert "which takes" in text
    assert "optimizer.scale, optimizer.past" in text
