"""Callbacks given as classes, by name and as presets, and the default callbacks that they replace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import lightlib as L
from lightlib.callbacks import (
    Callback,
    EarlyStopping,
    MetricPrinter,
    ModelCheckpoint,
    ModelSummary,
    MoveModulesToDevice,
    PlainProgressBar,
    PrintProgress,
    TerminateOnNaN,
)
from lightlib.callbacks.presets.callback_presets import preset
from lightlib.config.trainer_arguments import with_callbacks
from lightlib.core.setup.callbacks import NamedCallbacks
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.runs.bad_input import Net, loader, with_methods
from tests.runs.plain import QUIET

NO_FILES = {"accelerator": "cpu", "logger": False}


def names(**arguments):
    return [type(callback).__name__ for callback in L.Trainer(**NO_FILES, **arguments).callbacks]


class Counter(Callback):
    """Counts the batches."""

    def __init__(self, *ignored, first=0, **more):
        self.batches = first

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches += 1


class TestClasses:
    def test_a_class_an_instance_and_nothing_are_two_callbacks(self):
        instance = TerminateOnNaN(check_every_n_steps=5)
        trainer = L.Trainer(**QUIET, max_epochs=1, limit_train_batches=3, callbacks=[Counter, None, instance])
        trainer.fit(Net(), loader())
        made, other = trainer.callbacks
        assert type(made) is Counter
        assert made.batches == 3
        assert other is instance

    @pytest.mark.parametrize(
        "given",
        [[Counter, Counter], [Counter, Counter()], [Counter(), None, Counter], {"one": Counter, "two": Counter}],
    )
    def test_a_class_and_another_of_it_are_refused(self, given):
        with pytest.raises(MisconfigurationException, match="the class Counter and another Counter") as error:
            L.Trainer(**QUIET, callbacks=given)
        assert "leave out the class Counter" in str(error.value)

    def test_an_instance_twice_is_refused(self):
        one = Counter()
        with pytest.raises(MisconfigurationException, match="one Counter object twice"):
            L.Trainer(**QUIET, callbacks=[TerminateOnNaN, one, None, one])

    def test_two_instances_are_two_callbacks(self):
        assert len(L.Trainer(**QUIET, callbacks=[Counter(), Counter(first=2)]).callbacks) == 2

    def test_missing_arguments_are_named_and_the_fix_works(self):
        with pytest.raises(ArgumentTypeError, match="the class EarlyStopping, which needs 'monitor'") as error:
            L.Trainer(**QUIET, callbacks=[EarlyStopping])
        fix = str(error.value).partition("Fix: ")[2]
        assert fix == "callbacks=[EarlyStopping(monitor=…)]"
        L.Trainer(**QUIET, callbacks=eval(fix.partition("=")[2].replace("…", "'loss'")))

    def test_a_class_that_the_module_returns(self):
        trainer = L.Trainer(**QUIET, max_epochs=1, limit_train_batches=2)
        trainer.fit(with_methods(configure_callbacks=lambda self: Counter), loader())
        assert [callback.batches for callback in trainer.callbacks] == [2]

    @pytest.mark.parametrize("given", [Callback, Net, int])
    def test_other_classes(self, given):
        with pytest.raises(ArgumentTypeError, match=f"callbacks holds the class {given.__name__}"):
            L.Trainer(**QUIET, callbacks=[given])


class TestNames:
    def test_defaults_are_left_out(self):
        assert names() == ["PlainProgressBar", "ModelSummary", "ModelCheckpoint"]
        assert names(callbacks={"progress": None}) == ["ModelSummary", "ModelCheckpoint"]
        assert names(callbacks={"progress": False, "summary": None, "checkpoint": None}) == []

    def test_defaults_are_replaced(self):
        bar, saver = PlainProgressBar(interval=60), ModelCheckpoint(save_last=True)
        trainer = L.Trainer(**NO_FILES, callbacks={"checkpoint": saver, "progress": bar, "summary": None})
        assert list(trainer.callbacks) == [bar, saver]
        assert trainer.progress_bar_callback is bar
        assert trainer.checkpoint_callback is saver

    def test_names_of_ones_own_keep_their_order(self):
        given = {"finite": TerminateOnNaN, "count": Counter(), "progress": None, "summary": None, "checkpoint": None}
        assert names(callbacks=given) == ["TerminateOnNaN", "Counter"]

    def test_later_names_win(self):
        first, second = Counter(), Counter(first=1)
        given = [{"count": first, "finite": TerminateOnNaN()}, ModelSummary(), {"count": second, "finite": None}]
        found = NamedCallbacks.of(given)
        assert found.callbacks[0] is second
        assert isinstance(found.callbacks[1], ModelSummary)
        assert NamedCallbacks.of([{"progress": None}, {"progress": True}]).without == set()

    @pytest.mark.parametrize(
        ("given", "kind", "what"),
        [
            ({"progres": None}, UnknownNameError, "to leave out 'progres'. Did you mean 'progress'"),
            ({"progress": TerminateOnNaN()}, MisconfigurationException, r"callbacks\['progress'\] is a TerminateOnNaN"),
            ({"mine": 3}, ArgumentTypeError, r"callbacks\['mine'\] is 3 \(int\)"),
            ({"mine": True}, ArgumentTypeError, r"callbacks\['mine'\] is True \(bool\)"),
            ({"mine": EarlyStopping}, ArgumentTypeError, "EarlyStopping, which needs 'monitor'"),
            ({3: TerminateOnNaN}, ArgumentTypeError, r"callbacks has 3 \(int\) as a name"),
        ],
    )  # fmt: skip
    def test_wrong(self, given, kind, what):
        with pytest.raises(kind, match=what):
            L.Trainer(**NO_FILES, callbacks=given)

    def test_contradictions(self):
        with pytest.raises(MisconfigurationException, match="enable_checkpointing=True, but callbacks leaves out"):
            L.Trainer(**NO_FILES, callbacks={"checkpoint": None}, enable_checkpointing=True)
        with pytest.raises(MisconfigurationException, match="enable_progress_bar=False, but callbacks holds"):
            L.Trainer(**NO_FILES, callbacks={"progress": PlainProgressBar()}, enable_progress_bar=False)
        assert names(callbacks={"checkpoint": None}, enable_checkpointing=False) == ["PlainProgressBar", "ModelSummary"]


class TestPresets:
    def test_minimal_has_the_five_in_order(self):
        five = ["MoveModulesToDevice", "TerminateOnNaN", "PrintProgress", "PlainProgressBar", "MetricPrinter"]
        assert names(callbacks="minimal") == five

    def test_job(self):
        found = ["EnvironmentRecord", "MetricPrinter", "TerminateOnNaN", "ModelSummary", "ModelCheckpoint"]
        assert names(callbacks="job") == found

    def test_a_preset_is_changed_by_names(self):
        printer = MetricPrinter(every_n_batches=100)
        trainer = L.Trainer(
            **NO_FILES, callbacks=["minimal", Counter, {"metrics": printer, "modules": None, "summary": True}]
        )
        found = [type(callback).__name__ for callback in trainer.callbacks]
        assert found == [
            "TerminateOnNaN",
            "PrintProgress",
            "PlainProgressBar",
            "MetricPrinter",
            "Counter",
            "ModelSummary",
        ]
        assert printer in trainer.callbacks

    def test_each_call_makes_new_ones(self):
        one, other = preset("minimal"), preset("minimal")
        assert one["finite"] is not other["finite"]

    def test_unknown(self):
        with pytest.raises(UnknownNameError, match=r"preset of callbacks .minimum.\. Did you mean .minimal."):
            L.Trainer(**NO_FILES, callbacks="minimum")

    def test_its_callbacks_are_not_doubled(self):
        with pytest.raises(MisconfigurationException, match="the class TerminateOnNaN and another"):
            L.Trainer(**NO_FILES, callbacks=["minimal", TerminateOnNaN])

    def test_a_run(self, capsys):
        arguments = {"max_epochs": 2, "limit_train_batches": 2, "limit_val_batches": 0, "log_every_n_steps": 1}
        L.Trainer(**NO_FILES, **arguments, callbacks="minimal").fit(Net(), loader())
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training")]
        assert lines == ["Training begins.", "Training epoch 1 begins.", "Training epoch 2 begins.", "Training ends."]

    def test_the_command_line_keeps_it(self):
        added = Counter()
        assert with_callbacks({"callbacks": "minimal"}, [added], L.Trainer)["callbacks"] == ["minimal", added]
        assert with_callbacks({"callbacks": {"progress": None}}, [], L.Trainer)["callbacks"] == [{"progress": None}]


def test_modules_of_callbacks_are_moved():
    teacher, holder, module = torch.nn.Linear(2, 2), Counter(), Net()
    holder.teacher, holder.module = teacher, module
    trainer = SimpleNamespace(callbacks=[holder], strategy=SimpleNamespace(root_device=torch.device("meta")))
    MoveModulesToDevice().setup(trainer, module, "fit")
    assert teacher.weight.device.type == "meta"
    assert all(parameter.device.type == "cpu" for parameter in module.parameters())


def test_progress_of_evaluations(capsys):
    printer = PrintProgress()
    trainer = SimpleNamespace(print=print, current_epoch=0)
    printer.on_test_start(trainer, None)
    printer.on_predict_start(trainer, None)
    assert capsys.readouterr().out == "Test begins.\nPrediction begins.\n"
