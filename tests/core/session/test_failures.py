"""Errors in a run: each object is notified once, and training can continue."""

from __future__ import annotations

import re
import traceback

import pytest
import torch

from lightlib import conventions
from lightlib.callbacks import Callback, ModelCheckpoint
from lightlib.core.module.datamodule import DataModule
from lightlib.errors import MisconfigurationException
from lightlib.loggers.logger import DummyLogger
from lightlib_lightning.order import LIGHTNING
from tests.runs.bad_input import Net, Validated, loader, said, trainer, with_methods
from tests.runs.plain import calling

__all__ = ["said"]


class Mine(Exception):
    """The user's own error."""


class Told(DummyLogger):
    """Records the status at the end of a run."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def finalize(self, status):
        self.ends.append(status)


class Watching(Callback):
    """Records its calls at the end of a run."""

    def __init__(self, fails_in=()):
        self.told = []
        self.fails_in = fails_in

    def on_exception(self, trainer, pl_module, exception):
        self.told.append(exception)
        if "on_exception" in self.fails_in:
            raise Mine("in on_exception")

    def teardown(self, trainer, pl_module, stage):
        self.told.append(f"teardown {stage}")
        if "teardown" in self.fails_in:
            raise Mine("in teardown")


class Data(DataModule):
    """Records its calls at the end of a run."""

    def __init__(self):
        super().__init__()
        self.told = []

    def train_dataloader(self):
        return loader()

    def val_dataloader(self):
        return loader()

    def on_exception(self, exception):
        self.told.append(exception)

    def teardown(self, stage):
        self.told.append(f"teardown {stage}")


HOOKS = [
    "setup", "configure_model", "configure_optimizers", "on_fit_start", "on_sanity_check_start", "validation_step",
    "on_train_start", "on_train_epoch_start", "on_train_batch_start", "training_step", "on_before_zero_grad",
    "on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_validation_start",
    "on_validation_epoch_end", "on_validation_end", "on_train_epoch_end", "on_train_end", "on_fit_end",
]  # fmt: skip


def failing(name, error):
    def fails(self, *args):
        raise error

    return with_methods(Validated, **{name: fails})


@pytest.mark.parametrize("name", HOOKS)
def test_everybody_is_told_once(name):
    error = Mine(name)
    logger, watching, data = Told(), Watching(), Data()
    run = trainer(logger=logger, callbacks=watching)
    with pytest.raises(Mine) as caught:
        run.fit(failing(name, error), datamodule=data)
    assert caught.value is error
    assert error.__cause__ is None
    assert traceback.extract_tb(error.__traceback__)[-1].name == "fails"
    assert watching.told == [error, "teardown fit"]
    assert data.told == [error, "teardown fit"]
    assert logger.ends == ["failed"]
    assert run.state.status == "failed"
    assert not run.interrupted


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize(
    ("call", "name", "stage"),
    [("fit", "training_step", "train"), ("fit", "setup", None), ("fit", "validation_step", "sanity_check"),
     ("validate", "validation_step", "validate"), ("test", "test_step", "test"),
     ("predict", "predict_step", "predict")],
)  # fmt: skip
def test_on_exception_reads_how_the_call_ends(call, name, stage, compat):
    """The status and the stage of a step are Lightning's with compat: "interrupted", and that of the step."""
    seen = []

    class Reads(Callback):
        def on_exception(self, trainer, pl_module, exception):
            seen.append((trainer.state.fn, trainer.state.stage, trainer.state.status, trainer.interrupted))

    run = trainer(callbacks=Reads(), num_sanity_val_steps=1)
    with conventions.following(LIGHTNING if compat else conventions.LIGHTLIB), pytest.raises(Mine):
        getattr(run, call)(failing(name, Mine(name)), *[loader()] * (1 + (call == "fit")))
    status = "interrupted" if compat else "failed"
    assert seen == [(call, stage, status, compat)]
    assert (run.state.stage, run.state.status) == (None, status)


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_in_an_evaluation(call):
    error = Mine(call)
    name = {"validate": "validation_step"}.get(call, f"{call}_step")
    logger, watching = Told(), Watching()
    with pytest.raises(Mine):
        getattr(trainer(logger=logger, callbacks=watching), call)(failing(name, error), loader())
    assert watching.told == [error, f"teardown {call}"]
    assert logger.ends == ["failed"]


@pytest.mark.parametrize("hook", ["on_exception", "teardown"])
def test_the_first_error_is_the_one_that_is_seen(hook):
    """A second error during teardown becomes a warning, and the remaining objects are still notified."""
    error = Mine("first")
    first, second, logger = Watching(fails_in=[hook]), Watching(), Told()
    run = trainer(callbacks=[first, second], logger=logger)
    with (
        pytest.warns(UserWarning, match=rf"failed as well during teardown: Mine\('in {hook}'\)"),
        pytest.raises(Mine) as caught,
    ):
        run.fit(failing("training_step", error), loader(), loader())
    assert caught.value is error
    assert first.told == second.told == [error, "teardown fit"]
    assert logger.ends == ["failed"]


def test_an_error_in_teardown_of_a_run_that_went_well():
    first, second, logger = Watching(fails_in=["teardown"]), Watching(), Told()
    run = trainer(callbacks=[first, second], logger=logger)
    with pytest.raises(Mine, match="in teardown"):
        run.fit(Net(), loader())
    assert first.told == second.told == ["teardown fit"]
    assert logger.ends == ["failed"]
    assert run.callbacks == [first, second]
    first.fails_in = ()
    run.max_epochs = 2
    run.fit(run.lightning_module, loader())
    assert run.current_epoch == 2


def test_bad_input_tells_nobody_of_a_run():
    """An error found before there are hooks ends no run."""
    watching, logger = Watching(), Told()
    with pytest.raises(MisconfigurationException):
        trainer(callbacks=watching, logger=logger).fit(Net(), 3)
    assert watching.told == []
    assert logger.ends == []


def test_modes_and_gradients_are_put_back():
    module = failing("validation_step", Mine("here"))
    with pytest.raises(Mine):
        trainer(num_sanity_val_steps=0).fit(module, loader(), loader())
    assert module.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_training_goes_on_after_an_error():
    """As if it had not happened: the batch that failed is not counted."""
    module, data = Net(), loader()
    expected = Net()
    expected.load_state_dict(module.state_dict())
    batches = list(data)
    trainer(max_epochs=2).fit(expected, batches)

    fail = True

    def step(batch, batch_idx):
        if fail and batch_idx == 2:
            raise Mine("once")
        return Net.training_step(module, batch, batch_idx)

    module.training_step = step
    run = trainer(max_epochs=2)
    with pytest.raises(Mine):
        run.fit(module, batches)
    assert (run.current_epoch, run.global_step, run.progress.epoch_batch) == (0, 2, 2)
    fail = False
    run.fit(module, batches)
    assert (run.current_epoch, run.global_step, module.steps) == (2, 8, 8)
    assert all(module.state_dict()[name].equal(value) for name, value in expected.state_dict().items())


def test_the_same_trainer_after_bad_input():
    run = trainer()
    with pytest.raises(MisconfigurationException):
        run.fit(Net(), 3)
    with pytest.raises(MisconfigurationException):
        run.fit(Validated(), loader(), 3)
    module = Net()
    run.fit(module, loader())
    assert module.steps == 4


class TestInterrupts:
    """A KeyboardInterrupt from within a step."""

    def interrupted(self, **arguments):
        calls = []

        def training_step(self, batch, batch_idx):
            calls.append(batch_idx)
            if len(calls) == 6:
                raise KeyboardInterrupt

        logger, watching = Told(), Watching()
        callbacks = [watching, *arguments.pop("callbacks", [])]
        run = trainer(max_epochs=3, logger=logger, callbacks=callbacks, **arguments)
        with pytest.raises(SystemExit) as caught:
            run.fit(calling(Net, training_step), loader())
        assert caught.value.code == 130
        assert run.interrupted
        assert logger.ends == ["interrupted"]
        assert [type(one) for one in watching.told] == [KeyboardInterrupt, str]
        return run

    def test_it_is_said_how_to_go_on(self, said, tmp_path):
        run = self.interrupted(callbacks=[ModelCheckpoint(tmp_path)], enable_checkpointing=True)
        path = tmp_path / "epoch=0-step=4.ckpt"
        where = "Stopped at current_epoch=1 after 1 of its batches (global_step=5). To resume from the last checkpoint:"
        always = 'with ckpt_path="auto" (`--ckpt_path auto`) rerunning the same command resumes automatically.'
        assert said[-1] == f'{where} trainer.fit(module, …, ckpt_path="{path}"); {always}'
        module = Net()
        again = trainer(max_epochs=3, callbacks=ModelCheckpoint(tmp_path), enable_checkpointing=True)
        again.fit(module, loader(), ckpt_path=re.search(r'ckpt_path="(.+?)"', said[-1])[1])
        assert module.steps == 12, "the four of the saved run are counted too"
        assert run.global_step == 5

    def test_nothing_was_saved(self, said):
        self.interrupted()
        assert said[-1] == (
            "Stopped at current_epoch=1 after 1 of its batches (global_step=5). "
            "No checkpoint was written, so a new run starts from nothing."
        )
