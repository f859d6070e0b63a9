"""docs/coming-from.md: by its table a recorded run becomes that of each of eight trainers."""

from __future__ import annotations

import inspect
import pathlib
import re

import pytest

import lightlib
from lightlib.callbacks import ModelCheckpoint, end_of_epoch
from lightlib.callbacks.callback import Callback
from lightlib.core.run.hooks import HOOKS
from lightlib.loggers import Logger
from tests.runs.modules import LogsLoss
from tests.runs.plain import Rows, batches, quiet_trainer, raising, with_methods
from tests.runs.recorder import Evaluates

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")


def rows(heading):
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]


def tables():
    """By trainer: the hook of lightlib, and its events at that moment."""
    (_, *trainers), _, *lines = rows("Events")
    return {
        trainer: {cells[0].replace("`", ""): re.findall(r"`(\w+)`", cells[column]) for cells in lines}
        for column, trainer in enumerate(trainers, 1)
    }


AT_THE_END = " at end_of_epoch(trainer)"
ROWS = set(tables()["MMEngine"])  # the same for all


class Steps(LogsLoss, Evaluates):
    pass


def recorder():
    """Return a callback that notes the name of each hook, also at the end of an epoch, and its notes."""
    calls = []

    def noting(name):
        def note(self, trainer, *args):
            calls.append(name)
            if f"{name}{AT_THE_END}" in ROWS and end_of_epoch(trainer):
                calls.append(f"{name}{AT_THE_END}")

        return note

    return type("Notes", (Callback,), {name: noting(name) for name in HOOKS})(), calls


def recorded(max_epochs=2, **arguments):
    """Two epochs of three batches, in windows of two, each with a validation and a checkpoint in a store."""
    notes, calls = recorder()
    trainer = quiet_trainer(
        max_epochs=max_epochs, accumulate_grad_batches=2, logger=Rows(), log_every_n_steps=1,
        enable_checkpointing=True, callbacks=[notes, ModelCheckpoint("memory://coming-from", save_top_k=-1)],
    )  # fmt: skip
    trainer.fit(Steps(), batches(3), batches(1), **arguments)
    return calls, trainer, notes


def translated(calls, table):
    return [event for call in calls for event in table.get(call, ())]


OPENS = ["on_train_batch_start", "on_before_zero_grad"]
BACKWARD = ["on_before_backward", "on_after_backward"]
CLOSES = ["on_before_optimizer_step", "on_train_batch_end", "on_accumulation_end", "on_log"]
LAST = [
    "on_before_optimizer_step", "on_train_batch_end", f"on_train_batch_end{AT_THE_END}",
    "on_accumulation_end", f"on_accumulation_end{AT_THE_END}", "on_log",
]  # fmt: skip
EPOCH = [
    "on_train_epoch_start",
    *OPENS, *BACKWARD, "on_train_batch_end", "on_substep_end",
    "on_train_batch_start", *BACKWARD, *CLOSES,
    *OPENS, *BACKWARD, *LAST,
    "on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "on_validation_batch_end",
    "on_validation_epoch_end", "on_validation_end",
    "on_train_epoch_end", "on_fit_epoch_end", "on_save_checkpoint", "on_checkpoint_written", "on_checkpoint_uploaded",
]  # fmt: skip
RUN = ["setup", "on_fit_start", "on_train_start", *EPOCH, *EPOCH, "on_train_end", "on_fit_end", "teardown"]

# The order of each trainer's events in its own sources, for epochs of three batches with a validation of one.
# colossalai/legacy/trainer/_trainer.py: fit, _train_epoch, _eval
COLOSSALAI = [
    "before_train_epoch", *["before_train_iter", "after_train_iter"] * 3, "after_train_epoch",
    "before_test", "before_test_epoch", "before_test_iter", "after_test_iter", "after_test_epoch", "after_test",
]  # fmt: skip
# mmcv/runner/epoch_based_runner.py: run with the workflow [("train", 1), ("val", 1)]
MMCV = [
    "before_train_epoch", *["before_train_iter", "after_train_iter"] * 3, "after_train_epoch",
    "before_val_epoch", "before_val_iter", "after_val_iter", "after_val_epoch",
]  # fmt: skip
# mmengine/runner/loops.py: EpochBasedTrainLoop.run, run_epoch, ValLoop.run
MMENGINE = [
    "before_train_epoch", *["before_train_iter", "after_train_iter"] * 3, "after_train_epoch",
    "before_val", "before_val_epoch", "before_val_iter", "after_val_iter", "after_val_epoch", "after_val",
]  # fmt: skip
# ppdet/engine/trainer.py: train, _eval_with_loader
PADDLE = [
    "on_epoch_begin", *["on_step_begin", "on_step_end"] * 3, "on_epoch_end",
    "on_epoch_begin", "on_step_begin", "on_step_end", "on_epoch_end",  # the validation
]  # fmt: skip
# transformers/trainer.py: the inner training loop, and evaluate and save after on_epoch_end; without on_log
STEP = ["on_pre_optimizer_step", "on_optimizer_step", "on_step_end"]
HUGGING_FACE = [
    "on_epoch_begin", "on_step_begin", "on_substep_end", *STEP, "on_step_begin", *STEP, "on_epoch_end",
    "on_prediction_step", "on_evaluate", "on_save",
]  # fmt: skip
# pytorch_accelerated/trainer.py: _run_training, _run_train_epoch, _run_eval_epoch
ACCELERATED = [
    "on_train_epoch_start", *["on_train_step_start", "on_train_step_end"] * 3, "on_train_epoch_end",
    "on_eval_epoch_start", "on_eval_step_start", "on_eval_step_end", "on_eval_epoch_end",
    "on_training_run_epoch_end",
]  # fmt: skip
# determined/pytorch/_pytorch_trial.py: _train_for_op, _step_batch, _validate, _checkpoint; reported after each batch
DETERMINED = [
    "on_training_epoch_start", *["on_training_workload_end"] * 2, "on_training_epoch_end", "on_training_workload_end",
    "on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_end",
    "on_checkpoint_save_start", "on_checkpoint_end", "on_checkpoint_write_end", "on_checkpoint_upload_end",
]  # fmt: skip
OWN_ORDER = {
    "ColossalAI": ["after_hook_is_attached", "before_train", *COLOSSALAI * 2, "after_train"],
    # detectron2/engine/train_loop.py: train; run_step calls after_backward between backward and the optimizer's step
    "detectron2, LiBai": ["before_train", *["before_step", "after_backward", "after_step"] * 6, "after_train"],
    "mmcv": ["before_run", *MMCV * 2, "after_run"],
    "MMEngine": ["before_run", "before_train", *MMENGINE * 2, "after_train", "after_run"],
    "PaddleDetection": ["on_train_begin", *PADDLE * 2, "on_train_end"],
    "Hugging Face": ["on_init_end", "on_train_begin", *HUGGING_FACE * 2, "on_train_end"],
    "pytorch-accelerated": ["on_init_end", "on_training_run_start", *ACCELERATED * 2, "on_training_run_end"],
    "Determined": ["on_trial_startup", "on_training_start", *DETERMINED * 2, "on_trial_shutdown"],
}
# Events whose place is the choice of a hook or of what is logged, and two that come the other way round here.
ANYWHERE = {"MMEngine": "before_save_checkpoint", "Hugging Face": "on_log"}
OTHER_WAY_ROUND = {"Determined": ["on_training_epoch_end", "on_training_workload_end"]}
# How many events each trainer has, and those that the run above does not reach.
NUMBERS = {
    "ColossalAI": 13, "detectron2, LiBai": 5, "mmcv": 10, "MMEngine": 22, "PaddleDetection": 6, "Hugging Face": 15,
    "pytorch-accelerated": 15, "Determined": 15,
}  # fmt: skip


def in_the_order_of(trainer, events):
    """Return the events with the two differences that the page names undone."""
    events = [event for event in events if event != ANYWHERE.get(trainer)]
    first, second = OTHER_WAY_ROUND.get(trainer, (None, None))
    for index in range(len(events) - 1):
        if events[index : index + 2] == [second, first]:
            events[index : index + 2] = [first, second]
    return events


def test_one_run_has_the_events_of_eight_trainers_in_their_own_order():
    calls, _, _ = recorded()
    assert calls == RUN
    found = {trainer: translated(calls, table) for trainer, table in tables().items()}
    assert found.keys() == OWN_ORDER.keys()
    for trainer, expected in OWN_ORDER.items():
        assert in_the_order_of(trainer, found[trainer]) == expected, trainer
    for trainer, event in ANYWHERE.items():
        assert event in found[trainer], "it comes, too"
    for trainer, pair in OTHER_WAY_ROUND.items():
        assert found[trainer] != OWN_ORDER[trainer]
        assert all(f"`{event}`" in PAGE for event in pair)


def test_every_event_has_a_hook():
    for trainer, table in tables().items():
        assert {row.removesuffix(AT_THE_END) for row in table} <= set(HOOKS)
        assert len({event for events in table.values() for event in events}) == NUMBERS[trainer], trainer


def test_events_of_other_calls():
    mmengine, accelerated = tables()["MMEngine"], tables()["pytorch-accelerated"]
    _, trainer, _ = recorded(max_epochs=1)
    notes, calls = recorder()
    saving = {"enable_checkpointing": True, "accumulate_grad_batches": 2}
    again = quiet_trainer(max_epochs=2, callbacks=[notes, ModelCheckpoint("memory://again")], **saving)
    again.fit(Steps(), batches(3), batches(1), ckpt_path=trainer.checkpoint_callback.best_model_path)
    assert translated(calls, mmengine)[:3] == ["after_load_checkpoint", "before_run", "before_train"]
    calls.clear()
    again.test(Steps(), batches(1), verbose=False)
    assert translated(calls, mmengine) == [
        "before_test", "before_test_epoch", "before_test_iter", "after_test_iter", "after_test_epoch", "after_test",
    ]  # fmt: skip
    assert translated(calls, accelerated) == ["on_init_end", "on_evaluation_run_start", "on_evaluation_run_end"]
    calls.clear()
    again.predict(Steps(), batches(1))
    assert translated(calls, tables()["Hugging Face"]) == ["on_init_end", "on_predict"]


def test_an_error_is_an_event():
    breaks = with_methods(Steps, training_step=raising(ValueError("broken")))
    notes, calls = recorder()
    with pytest.raises(ValueError, match="broken"):
        quiet_trainer(callbacks=notes).fit(breaks, batches(1), batches(1))
    assert translated(calls, tables()["pytorch-accelerated"])[-1] == "on_stop_training_error"


def test_the_names_of_lightlib_exist():
    here = " ".join(cells[-1] for heading in ("Callbacks and loggers", "Arguments") for cells in rows(heading)[2:])
    places = (lightlib, lightlib.callbacks, lightlib.loggers)
    for name in re.findall(r"`(?:raise )?([A-Z]\w+)", here):
        assert any(hasattr(place, name) for place in places), name
    assert issubclass(lightlib.loggers.JSONLLogger, Logger)
    for kind in ("Trainer", "ModelCheckpoint"):
        owner = getattr(lightlib, kind, None) or getattr(lightlib.callbacks, kind)
        known = set(inspect.signature(owner.__init__).parameters)
        used = {
            argument
            for call in re.findall(rf"{kind}\(([^)]*)\)", here)
            for argument in re.findall(r"(\w+)=", re.sub(r'"[^"]*"', "", call))
        }
        assert used <= known, used - known
        assert used
