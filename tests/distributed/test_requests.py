"""Requests made by one rank: all ranks act on them at the same batch."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

import lightlib as L
from tests.distributed.user import Net, data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.plain import calling

pytestmark = pytest.mark.processes


class Requests(L.Callback):
    """Makes one request, on one rank, after a batch; notes the hooks that follow."""

    def __init__(self, rank: int, act: Any) -> None:
        self.rank, self.act, self.seen = rank, act, []

    def on_train_batch_end(self, trainer: Any, module: Any, output: Any, batch: Any, i: int) -> None:
        self.seen.append(i)
        if self.rank == 1 and trainer.progress.batch == 2:
            self.act(trainer)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.seen.append("validation")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.seen.append("epoch end")


def stop(trainer: Any) -> None:
    raise L.StopTraining("rank one has seen enough")


def validate(trainer: Any) -> None:
    trainer.request_validation()


def end_epoch(trainer: Any) -> None:
    trainer.request_epoch_end()


def fitted(rank: int, act: Any) -> Any:
    callback, options = Requests(rank, act), quiet.QUIET | {"num_sanity_val_steps": 0, "limit_val_batches": 1}
    trainer = L.Trainer(**options, strategy="ddp", max_epochs=2, check_val_every_n_epoch=2, callbacks=callback)
    module = Net()
    trainer.fit(module, DataLoader(data(64), 2), DataLoader(data(4, 2), 2))
    weights = [p.detach().clone() for p in module.parameters()]
    return callback.seen, trainer.stop_reason, str(trainer.state.status), trainer.global_step, weights


def refused(rank: int) -> str:
    trainer = L.Trainer(**quiet.QUIET, strategy="ddp", max_epochs=1, limit_val_batches=0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_rank == 1 and batch_idx == 1:
            raise L.StopTraining("in a step")

    try:
        trainer.fit(calling(Net, training_step), DataLoader(data(64), 2))
    except Exception as error:  # noqa: BLE001  each rank has its own kind
        return str(error)
    return ""


def everything(rank: int) -> Any:
    return {act.__name__: fitted(rank, act) for act in (stop, validate, end_epoch)}


def test_all_ranks_act_together() -> None:
    zero, one = ranks(2, everything)
    for name in ("stop", "validate", "end_epoch"):
        assert zero[name][:4] == one[name][:4], name
        assert all(a.equal(b) for a, b in zip(zero[name][4], one[name][4], strict=True))
    seen, reason, status, step, _ = zero["stop"]
    assert (reason, status, seen.count("epoch end")) == ("rank one has seen enough", "finished", 1)
    assert 2 <= step < 16
    seen = zero["validate"][0]
    assert seen.count("validation") == 2  # the requested one, and that of the second epoch
    assert 2 <= seen.index("validation") < 16
    seen, *_, step, _ = zero["end_epoch"]
    assert seen.count("epoch end") == 2
    assert 18 <= step < 32


def test_a_step_of_one_rank_cannot_stop_the_run() -> None:
    for text in ranks(2, refused):
        assert "training_step raised StopTraining('in a step') on one of several processes" in text
