"""Mistakes that Lightning accepts run with compat on, with one warning each."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib
from lightlib import compat, conventions, report
from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.conventions import LIGHTLIB, chosen, following
from lightlib.errors import CheckpointError, LightlibError, MisconfigurationException
from lightlib_lightning.order import LIGHTNING
from tests.compat.hook_programs import DRAWN, STORED_DRAWN, drawn
from tests.runs.quiet import QUIET

DATA = torch.arange(8.0).reshape(-1, 1)


class Net(lightlib.Module):
    """One layer; counts its validations."""

    def __init__(self, **hparams):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.validated = 0

    def training_step(self, batch, batch_idx):
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.validated += 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Without(Net):
    """Has no validation_step."""

    validation_step = lightlib.Module.validation_step


def loader(**options):
    return DataLoader(DATA, batch_size=2, **options)


def trainer(**arguments):
    return lightlib.Trainer(**{**QUIET, "max_epochs": 1, **arguments})


@pytest.fixture(autouse=True)
def forget_warnings():
    report.once.clear()
    yield
    report.once.clear()


def refused_and_tolerated(run, match, instead):
    """Check that `run` fails by itself, and warns once with compat; return its result then."""
    with pytest.raises((LightlibError,), match=match):
        run()
    with following(LIGHTNING), pytest.warns(report.LightlibWarning, match=match) as seen:
        result = run()
    told = [str(each.message) for each in seen if "As in Lightning" in str(each.message)]
    assert len(told) == 1
    assert f"As in Lightning, {instead}; without compat this is an error." in told[0]
    assert "Expected: " in told[0]
    assert "Fix: " in told[0]
    return result


class TestValidation:
    def test_a_monitor_of_a_step_without_loaders(self):
        net = Net()

        def run():
            with pytest.raises(MisconfigurationException) as caught:
                trainer(callbacks=EarlyStopping("val_loss")).fit(net, loader())
            if "never logged" not in str(caught.value):  # which under compat comes after the epoch, as in Lightning
                raise caught.value

        with pytest.warns(report.PossibleUserWarning, match="nothing is validated"):
            refused_and_tolerated(run, "so nothing logs this metric", "nothing is validated")
        assert net.validated == 0

    def test_loaders_without_a_step(self):
        def run():
            this = trainer()
            this.fit(Without(), loader(), loader())
            return this

        assert refused_and_tolerated(run, "has no validation_step", "nothing is validated").global_step == 4

    def test_a_method_that_returns_no_loaders(self):
        class Empty(Net):
            def val_dataloader(self):
                return []

            def on_validation_start(self):
                raise AssertionError("nothing is validated")

        with following(LIGHTNING):
            net = Empty()
            trainer().fit(net, loader())
        assert net.validated == 0

    def test_no_loaders_for_a_validation_of_its_own(self):
        refused_and_tolerated(
            lambda: trainer().validate(Net(), []), "holds no loader", "nothing is run, and the result is empty"
        )
        with following(LIGHTNING):
            assert trainer().validate(Net(), []) == []

    @pytest.mark.parametrize("stage", ["test", "predict"])
    def test_a_method_of_a_module_that_returns_no_loaders(self, stage):
        class Empty(Net):
            def test_dataloader(self):
                return []

            predict_dataloader = test_dataloader

            def test_step(self, batch, batch_idx):
                pass

            predict_step = test_step

            def on_test_start(self):
                raise AssertionError("nothing is run")

            on_predict_start = on_test_start

        result = refused_and_tolerated(
            lambda: getattr(trainer(), stage)(Empty()), "holds no loader", "nothing is run, and the result is empty"
        )
        assert result == []

    def test_a_loader_of_length_0(self):
        class Tests(Net):
            def test_step(self, batch, batch_idx, dataloader_idx):
                self.validated += 1

        def run():
            net = Tests()
            trainer().test(net, [DataLoader(DATA[:0]), loader()])
            return net

        assert refused_and_tolerated(run, "of length 0", "it is skipped").validated == 4


class TestTraining:
    def test_a_schedule_that_is_too_short(self):
        class Short(Net):
            def configure_optimizers(self):
                optimizer = super().configure_optimizers()
                schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
                return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def run():
            trainer(limit_val_batches=0, limit_train_batches=2, max_epochs=-1, max_steps=6).fit(Short(), loader())

        with pytest.raises(MisconfigurationException, match="is built for 3 steps"):
            run()
        warned = pytest.warns(report.LightlibWarning, match="ends with an error at that call")
        with following(LIGHTNING), warned, pytest.raises(ValueError, match="Tried to step 4 times"):
            run()

    def test_an_unknown_key_of_a_schedule(self):
        class Odd(Net):
            def configure_optimizers(self):
                optimizer = super().configure_optimizers()
                return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "intervall": "step"}]

        def run():
            trainer(limit_val_batches=0).fit(Odd(), loader())

        refused_and_tolerated(run, "unknown key 'intervall'", "it is ignored")

    def test_a_loader_without_a_batch(self):
        class Once:
            def __iter__(self):
                return iter(())

        def run():
            this = trainer(limit_val_batches=0)
            this.fit(Net(), Once())
            return this

        assert refused_and_tolerated(run, "gave no batch", "the epoch ends without a batch").global_step == 0

    def test_a_callback_that_is_listed_twice(self):
        class Counts(lightlib.Callback):
            starts = 0

            def on_fit_start(self, trainer, pl_module):
                self.starts += 1

        def run():
            callback = Counts()
            trainer(limit_val_batches=0, callbacks=[callback, callback]).fit(Net(), loader())
            return callback

        assert refused_and_tolerated(run, "object twice", "its hooks are called twice").starts == 2

    def test_a_schedule_without_an_optimizer_in_a_configuration(self):
        from lightlib.config.model_optimizers import reject_scheduler_alone

        refused_and_tolerated(lambda: reject_scheduler_alone(None), "but no `optimizer`", "it is ignored")

    def test_the_number_of_steps_before_fit(self):
        value = refused_and_tolerated(
            lambda: trainer().estimated_stepping_batches, "read before fit", "it is max_steps"
        )
        assert value == -1

    def test_any_sequence_of_callbacks_is_taken_without_compat_too(self):
        class Sequence:
            def __init__(self, *items):
                self.items = items

            def __iter__(self):
                return iter(self.items)

        callback = lightlib.Callback()
        assert callback in trainer(callbacks=Sequence(callback)).callbacks


class TestCheckpoints:
    def test_last_without_a_file(self, tmp_path):
        def run():
            this = trainer(
                limit_val_batches=0, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path / "none")]
            )
            this.fit(Net(), loader(), ckpt_path="last")
            return this

        assert (
            refused_and_tolerated(run, "there is no last checkpoint", "the call starts from nothing").global_step == 4
        )

    def test_arguments_that_a_class_does_not_take(self, tmp_path):
        class Sized(Net):
            def __init__(self, width=1):
                super().__init__()
                self.save_hyperparameters()

        this = trainer(limit_val_batches=0)
        this.fit(Sized(), loader())
        this.save_checkpoint(tmp_path / "a.ckpt")
        built = refused_and_tolerated(
            lambda: Sized.load_from_checkpoint(tmp_path / "a.ckpt", wdith=3), "no argument 'wdith'", "it is ignored"
        )
        assert built.hparams.width == 1

    def test_objects_among_the_hyperparameters_are_kept(self, tmp_path):
        class Holds(Net):
            def __init__(self, layer=None, width=3, api_key="secret"):
                super().__init__()
                self.save_hyperparameters(logger=False)

        def save():
            this = trainer(limit_val_batches=0)
            this.fit(Holds(KEPT), loader())
            this.save_checkpoint(tmp_path / "a.ckpt")

        with pytest.warns(report.LightlibWarning, match="are not stored in the checkpoint"):
            save()
        assert "layer" not in torch.load(tmp_path / "a.ckpt", weights_only=True)["hyper_parameters"]
        with following(LIGHTNING), pytest.warns(report.LightlibWarning, match="secrets|no plain values") as seen:
            save()
        with following(LIGHTNING):
            seen = [*seen, *saved_again(save)]
        assert sum("are no plain values" in str(each.message) for each in seen) == 1
        with pytest.raises(CheckpointError, match="weights_only=False"):
            Holds.load_from_checkpoint(tmp_path / "a.ckpt")
        stored = torch.load(tmp_path / "a.ckpt", weights_only=False)["hyper_parameters"]
        assert (stored["layer"].sides, stored["width"]) == (4, 3)
        assert "api_key" not in stored
        assert Holds.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=False).hparams.layer.sides == 4


def saved_again(save):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        save()
    return seen


class Shape:
    """An object that is no plain value."""

    def __init__(self, sides):
        self.sides = sides


KEPT = Shape(4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.processes if "workers" in how else ()) for name, how in DRAWN.items()],
)
def test_random_numbers_are_drawn_where_lightning_draws_them(name, capsys):
    recorded = json.loads(STORED_DRAWN.read_text("utf-8"))[name]
    compat.install()
    try:
        assert drawn(**DRAWN[name]) == recorded
        conventions.use(LIGHTLIB)
        assert drawn(**DRAWN[name]) != recorded
    finally:
        compat.uninstall()


def test_install_switches_the_conventions_and_uninstall_switches_back():
    assert chosen() is LIGHTLIB
    compat.install()
    try:
        assert chosen() is LIGHTNING
    finally:
        compat.uninstall()
    assert chosen() is LIGHTLIB


class Holds(Net):
    """Has a hyperparameter that is an object."""

    def __init__(self, net=None):
        super().__init__()
        self.save_hyperparameters()

    def test_step(self, batch, batch_idx):
        self.log("tested", self.layer(batch).mean())


@pytest.mark.filterwarnings("ignore:The hyperparameter")
class TestFilesWithObjects:
    """Checkpoints with compat hold hyperparameters that are objects; torch's variable decides how they are read."""

    @pytest.fixture
    def file(self, tmp_path):
        with following(LIGHTNING), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            this = trainer(limit_val_batches=0)
            this.fit(Holds(torch.nn.Linear(1, 1)), loader())
            this.save_checkpoint(tmp_path / "a.ckpt")
        return tmp_path / "a.ckpt"

    def test_without_the_variable_the_error_names_it(self, file):
        with following(LIGHTNING), pytest.raises(CheckpointError, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1") as raised:
            trainer().test(Holds(), loader(), ckpt_path=file, verbose=False)
        assert "only with compat do files also hold hyperparameters that are objects" in str(raised.value)

    def test_with_the_variable_the_file_is_read(self, file, monkeypatch):
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        with following(LIGHTNING), pytest.warns(UserWarning, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set"):
            trainer().test(Holds(), loader(), ckpt_path=file, verbose=False)
        with following(LIGHTNING):
            assert isinstance(Holds.load_from_checkpoint(file).hparams.net, torch.nn.Linear)

    def test_the_call_and_lightlibs_own_conventions_win(self, file, monkeypatch):
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        with following(LIGHTNING), pytest.raises(CheckpointError):
            trainer().test(Holds(), loader(), ckpt_path=file, weights_only=True, verbose=False)
        with pytest.raises(CheckpointError, match="only with compat do files also hold hyperparameters"):
            trainer().test(Holds(), loader(), ckpt_path=file, verbose=False)
