"""check_callback: built-in callbacks pass, and a defect fails its check."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch

from lightlib.callbacks import Callback, EarlyStopping, ModelCheckpoint, TerminateOnNaN, Timer
from lightlib.errors import UnknownNameError
from lightlib.testing import check_callback
from lightlib.testing.callback import CallbackKit


class StepCounter(Callback):
    """Counts batches, and stops after as many."""

    stops_after = 9

    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches += 1
        trainer.should_stop = self.batches >= self.stops_after

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state_dict):
        self.batches = state_dict["batches"]


class OneLoader(Callback):
    """Does not expect an index of the loader."""

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pass


class NeedsTraining(Callback):
    def on_predict_start(self, trainer, pl_module):
        raise RuntimeError("no optimizer to predict with")


class DrawsTorch(Callback):
    priority = "high"

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        torch.rand(1)


class DrawsPython(Callback):
    def on_test_epoch_end(self, trainer, pl_module):
        random.random()


class DrawsNumPy(Callback):
    def teardown(self, trainer, pl_module, stage):
        np.random.rand()


class Evaluates(Callback):
    after_module = True

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.eval()


class Freezes(Callback):
    def on_validation_start(self, trainer, pl_module):
        pl_module.model[1].train()


class SkipsAnEpoch(Callback):
    """Ends the epoch in a hook: callbacks behind it are not called."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        return -1 if batch_idx == 2 else None


class Objects(StepCounter):
    def state_dict(self):
        return {"batches": self}


class CountsSaves(StepCounter):
    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self.batches += 1


class Forgets(StepCounter):
    def load_state_dict(self, state_dict):
        pass


class Fails(StepCounter):
    def load_state_dict(self, state_dict):
        self.batches = state_dict["steps"]


class NoState(StepCounter):
    """Stops later in a resumed run, which counts from 0."""

    not_in_checkpoint = ("batches",)

    def state_dict(self):
        return {}


class Hidden(StepCounter):
    """Changes weights by a number that its state does not have."""

    stops_after = 100
    not_in_checkpoint = ("seen",)
    seen = 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen += 1
        with torch.no_grad():
            pl_module.model[0].weight.add_(1e-3 * self.seen)


class Doubling(StepCounter):
    """Has another state after a resume."""

    stops_after = 100

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        self.resumed = True

    def state_dict(self):
        return {"batches": self.batches + hasattr(self, "resumed")}


class Locked(Callback):
    def __init__(self):
        self.draw = lambda: 0


class Connected(Callback):
    """Cannot be copied after a run."""

    def on_train_start(self, trainer, pl_module):
        self.batches = (batch for batch in ())


class Empty(StepCounter):
    """Its copies forget their state."""

    def __reduce__(self):
        return Empty, ()


class Once(Callback):
    """Takes part in one run only, also as a copy."""

    used = False

    def on_fit_start(self, trainer, pl_module):
        if trainer.max_epochs == 2 and self.used:
            raise RuntimeError("used already")
        self.used = True


BROKEN = [
    (object, "runs", "make_callback returned <object", "class object(Callback)"),
    (OneLoader, "runs", "Trainer.fit with OneLoader raised Misconf", "correct the method of OneLoader"),
    (NeedsTraining, "runs", "Trainer.predict with NeedsTraining raised RuntimeError: no optimizer", "NeedsTraining"),
    (DrawsTorch, "random", "DrawsTorch.on_train_batch_start changed the global random numbers of torch.", "torch.Gen"),
    (DrawsPython, "random", "DrawsPython.on_test_epoch_end changed the global random numbers of random.", "random.Ra"),
    (DrawsNumPy, "random", "DrawsNumPy.teardown changed the global random numbers of numpy.", "of your own"),
    (Evaluates, "mode", "Evaluates.on_train_epoch_end left the module in training=False, and it was True.", "finally"),
    (Freezes, "mode", "Freezes.on_validation_start left model.1 in training=True, and it was False.", "`finally`"),
    (Objects, "state", "Objects.state_dict() returned {'batches': ", "return plain values"),
    (CountsSaves, "state", "CountsSaves.state_dict() was {'batches': 9} before a checkpoint was saved and is {",
     "change nothing in on_save_checkpoint"),
    (Forgets, "state", "Forgets.state_dict() is {'batches': 0} after load_state_dict(", "restore every entry"),
    (Fails, "state", "load_state_dict with Fails raised KeyError: 'steps'", "correct the method of Fails"),
    (NoState, "resumes", "global_step is 15, not 9, after a run with NoState", "keep in state_dict"),
    (Hidden, "resumes", "the weights differ after a run with Hidden", "keep in state_dict"),
    (Doubling, "resumes", "state_dict() is {'batches': 17}, not {'batches': 16}, after", "keep in state_dict"),
    (Locked, "copies", "pickle of a Trainer before a run with Locked raised ", "correct the method of Locked"),
    (Connected, "copies", "copy.deepcopy of a Trainer after a run with Connected raised TypeError", "Connected"),
    (Empty, "copies", "the copy.deepcopy of a Trainer after a run has [", "can be copied"),
    (Once, "copies", "Trainer.fit of its copy.deepcopy after a run with Once raised RuntimeError: used", "of Once"),
]  # fmt: skip


def only(*names):
    return [name for name in CallbackKit.checks() if name not in names]


@pytest.mark.parametrize(
    "make_callback",
    [
        lambda: EarlyStopping("val_loss", patience=0, min_delta=0.05),
        lambda: EarlyStopping("train_loss", check_on_train_epoch_end=True),
        Callback,
        StepCounter,
        SkipsAnEpoch,
        TerminateOnNaN,
    ],
)
def test_working_callbacks_pass(make_callback):
    check_callback(make_callback)


def test_checks_can_be_left_out():
    check_callback(lambda: Timer("00:01:00:00"), without=["state", "resumes", "copies"])
    check_callback(lambda: ModelCheckpoint(monitor="val_loss"), without=only("runs", "random", "mode"))
    with pytest.raises(UnknownNameError, match=r"'run'.*\n.*runs"):
        check_callback(Callback, without=["run"])


@pytest.mark.parametrize(("broken", "check", "what", "fix"), BROKEN, ids=[broken.__name__ for broken, *_ in BROKEN])
def test_a_broken_callback_is_named_with_its_defect(broken, check, what, fix):
    with pytest.raises(AssertionError) as caught:
        check_callback(broken, without=only(check))
    text = str(caught.value)
    assert text.startswith(f"The callback fails the check {check!r}: {what}")
    assert re.search(r"\n  Expected: .+\n  Fix: .*", text)
    assert fix in text.rpartition("Fix: ")[2]


def test_every_check_is_described_and_has_a_broken_example():
    assert {check for _, check, _, _ in BROKEN} == set(CallbackKit.checks())
    for name in CallbackKit.checks():
        assert f'``"{name}"``' in check_callback.__doc__
