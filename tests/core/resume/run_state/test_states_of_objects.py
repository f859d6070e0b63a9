"""States with values besides tensors and numbers: saved and resumed, or refused by the save."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest
import torch

from lightlib.callbacks import Callback, ModelCheckpoint
from lightlib.checkpoint import formats, load
from lightlib.core.module.datamodule import DataModule
from lightlib.errors import CheckpointError, CheckpointWriteError
from tests.runs.plain import Net, Rows, loader, quiet_trainer, same_weights, scheduled
from tests.runs.saves_at import SavesAt


class Smooth(torch.optim.lr_scheduler.LRScheduler):
    """A schedule that keeps its last values."""

    def __init__(self, optimizer):
        self.past = deque([1.0], maxlen=3)
        self.more = SimpleNamespace(kinds=frozenset({1, 2}), tensors=deque([torch.zeros(2)]))
        super().__init__(optimizer)

    def get_lr(self):
        self.past.append(self.past[-1] * 0.9)
        self.more.tensors[0] += 1
        return [base * sum(self.past) / len(self.past) for base in self.base_lrs]


smooth = scheduled(Smooth, lr=0.02, interval="step")


@pytest.mark.parametrize("format", ["file", "directory"])
def test_a_deque_in_a_schedule_is_resumed(tmp_path, format):  # noqa: A002  as in Trainer
    def run(resumed=None, **saves):
        module = Net(smooth)
        one = quiet_trainer(max_epochs=2, callbacks=[SavesAt(tmp_path / "a.ckpt", 3, format=format)] if saves else [])
        one.fit(module, loader(16), ckpt_path=resumed)
        return module, one.lr_scheduler_configs[0].scheduler

    complete, schedule = run(saves=True)
    resumed, again = run(resumed=str(tmp_path / "a.ckpt"))
    assert same_weights(complete, resumed)
    assert type(again.past) is deque
    assert (again.past, again.past.maxlen) == (schedule.past, 3)
    assert again.more.kinds == frozenset({1, 2})
    assert torch.equal(again.more.tensors[0], schedule.more.tensors[0])


@pytest.mark.parametrize("format", ["file", "directory"])
def test_a_file_gives_them_back(tmp_path, format):  # noqa: A002  as in Trainer
    values = {
        "deque": deque([1, deque([torch.ones(2)])], maxlen=4),
        "namespace": SimpleNamespace(a=1, b=deque([2.0]), c=SimpleNamespace(d=None)),
        "frozenset": frozenset({"x", 1}),
        "empty": [deque(), deque(maxlen=0), SimpleNamespace(), frozenset()],
    }
    one = quiet_trainer()
    one.fit(Net(), loader(4))
    one.save_checkpoint(tmp_path / "a.ckpt", format=format, extra=values)
    back = load(tmp_path / "a.ckpt")
    assert torch.equal(back["deque"][1][0], torch.ones(2))
    assert (back["deque"][0], back["deque"].maxlen, type(back["deque"])) == (1, 4, deque)
    assert {name: back[name] for name in ("namespace", "frozenset", "empty")} == {
        name: values[name] for name in ("namespace", "frozenset", "empty")
    }
    if format == "file":  # as any program reads it
        assert torch.load(tmp_path / "a.ckpt", weights_only=False)["namespace"] == values["namespace"]


class Strange:
    """An object that no file gives back."""


class StrangeSchedule(torch.optim.lr_scheduler.StepLR):
    def state_dict(self):
        return {**super().state_dict(), "mine": Strange()}


class StrangeOptimizer(torch.optim.SGD):
    def state_dict(self):
        return {**super().state_dict(), "mine": Strange()}


class StrangeCallback(Callback):
    def state_dict(self):
        return {"mine": Strange()}


class StrangeData(DataModule):
    def train_dataloader(self):
        return loader(8)

    def state_dict(self):
        return {"mine": Strange()}


class StrangeLogger(Rows):
    def state_dict(self):
        return {"mine": Strange()}


class StrangeLoader:
    def __init__(self):
        self.loader = loader(8)

    def __iter__(self):
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)

    def state_dict(self):
        return {"mine": Strange()}

    def load_state_dict(self, state):
        pass


OWNERS = {
    "lr_schedulers": lambda fit: fit(configure=scheduled(lambda optimizer: StrangeSchedule(optimizer, 1))),
    "optimizer_states": lambda fit: fit(configure=lambda parameters: StrangeOptimizer(parameters, lr=0.1)),
    "callbacks": lambda fit: fit(callbacks=[StrangeCallback()]),
    "StrangeData": lambda fit: fit(data=StrangeData()),
    "loggers": lambda fit: fit(logger=StrangeLogger()),
    "combined_loader": lambda fit: fit(data=StrangeLoader()),
}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("options", [{}, {"format": "directory"}, {"async_save": True}])
def test_an_object_is_refused_at_the_save(tmp_path, owner, options):
    """Reading it would need trust, so a resume with "auto" would skip the file."""

    def fit(configure=None, data=None, callbacks=(), **arguments):
        saver = ModelCheckpoint(tmp_path, every_n_train_steps=1, **options)
        one = quiet_trainer(enable_checkpointing=True, callbacks=[*callbacks, saver], **arguments)
        one.fit(Net(configure), data or loader(8))

    with pytest.raises(
        CheckpointWriteError, match=rf"no plain value at .*{owner}.*\(Strange\): no run could be resumed"
    ):
        OWNERS[owner](fit)
    assert list(tmp_path.glob("*.ckpt")) == []


def test_save_errors_may_be_warnings(tmp_path):
    saver = ModelCheckpoint(tmp_path, save_errors="warn")
    one = quiet_trainer(enable_checkpointing=True, callbacks=[saver, StrangeCallback()])
    with pytest.warns(UserWarning, match="no run could be resumed from it"):
        one.fit(Net(), loader(8))
    assert one.global_step == 2


def test_auto_does_not_begin_a_new_run_if_no_file_can_be_loaded(tmp_path):
    def fit():
        saver = ModelCheckpoint(tmp_path, save_top_k=-1)
        module = Net()
        one = quiet_trainer(enable_checkpointing=True, max_epochs=2, callbacks=[saver])
        one.fit(module, loader(8), ckpt_path="auto")
        return module

    fit()
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) == 2
    for path in paths:
        path.write_bytes(path.read_bytes()[:-200])
    before = {path: path.read_bytes() for path in paths}
    with (
        pytest.raises(CheckpointError, match="none of the checkpoints can be loaded"),
        pytest.warns(match="is skipped"),
    ):
        fit()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(CheckpointError):
        formats.load(str(paths[0]))
