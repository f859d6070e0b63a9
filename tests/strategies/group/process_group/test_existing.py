"""A process group that exists before the Trainer, such as one of Ray Train, serves lightlib as well."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

import lightlib as L
from lightlib.launch.watch.failure import OtherRankError
from lightlib.testing import BoringModule
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes


class AtStep(L.Callback):
    """Makes a call on rank 1 after some optimizer steps."""

    def __init__(self, step, call):
        self.step, self.call = step, call

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_rank == 1 and trainer.global_step == self.step:
            self.call(trainer)


def fit(call, epochs):
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    group = torch.distributed.group.WORLD
    trainer = L.Trainer(**QUIET, max_epochs=epochs, callbacks=AtStep(3, call))
    trainer.fit(BoringModule())
    assert torch.distributed.group.WORLD is group
    return trainer.global_step


def stopped(rank):
    return fit(lambda trainer: setattr(trainer, "should_stop", True), epochs=1000)


def test_a_stop_on_one_rank_ends_all_at_the_same_step():
    one, other = ranks(2, stopped)
    assert one == other
    assert 3 <= one < 2000


def failed(rank):
    def fail(trainer):
        raise ValueError("of rank 1")

    with pytest.raises((ValueError, OtherRankError)) as raised:
        fit(fail, epochs=1000)
    return type(raised.value).__name__, str(raised.value)


def test_a_failure_on_one_rank_is_the_reason_on_the_other():
    (kind, text), own = ranks(2, failed)
    assert own == ("ValueError", "of rank 1")
    assert kind == "OtherRankError"
    assert "ValueError: of rank 1" in text
