"""Other effects of the Trainer's arguments: torch's flags, folders, profilers, defaults."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from lightlib.core.module.datamodule import DataModule
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from lightlib.profilers import PassThroughProfiler, SimpleProfiler
from lightlib.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from tests.runs.plain import QUIET, Net, batches, quiet_trainer, same_weights, with_methods
from tests.runs.steps import Counts, Steps


class TestTorchsFlags:
    @pytest.fixture(autouse=True)
    def restored(self, monkeypatch):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is put back
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
        before = torch.backends.cudnn.benchmark
        yield
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = before

    @pytest.mark.parametrize(
        ("value", "on", "warns"), [(True, True, False), ("warn", True, True), (False, False, False)]
    )
    def test_deterministic(self, value, on, warns):
        torch.backends.cudnn.benchmark = True
        quiet_trainer(deterministic=value)
        assert torch.are_deterministic_algorithms_enabled() == on
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warns
        assert torch.backends.cudnn.benchmark == (not on)
        assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if on else None)

    def test_left_alone(self):
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
        quiet_trainer()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.benchmark

    @pytest.mark.parametrize("value", [True, False])
    def test_benchmark(self, value):
        torch.backends.cudnn.benchmark = not value
        quiet_trainer(benchmark=value)
        assert torch.backends.cudnn.benchmark == value

    def test_detect_anomaly_in_fit_alone(self):
        def training_step(self, batch, batch_idx):
            seen.append(torch.is_anomaly_enabled())
            return Steps.training_step(self, batch, batch_idx) * torch.tensor(math.nan).sqrt()

        def predict_step(self, batch):
            seen.append(torch.is_anomaly_enabled())

        bad = with_methods(Steps, training_step, predict_step)
        seen, trainer = [], quiet_trainer(detect_anomaly=True, limit_val_batches=0)
        with (
            pytest.warns(UserWarning, match="(?i)anomaly|traceback"),
            pytest.raises(RuntimeError, match="returned nan values"),
        ):
            trainer.fit(bad, batches(1))
        trainer.predict(bad, batches(1))
        assert seen == [True, False]
        assert not torch.is_anomaly_enabled()


class TestFolders:
    def test_default_root_dir(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert quiet_trainer().default_root_dir == os.getcwd()
        assert quiet_trainer(default_root_dir="~/runs").default_root_dir == str(tmp_path / "runs")
        assert quiet_trainer(default_root_dir=Path("here")).default_root_dir == "here"

    def test_files_go_there(self, tmp_path):
        quiet = {name: value for name, value in QUIET.items() if name not in ("logger", "enable_checkpointing")}
        trainer = Trainer(**quiet, max_epochs=1, logger="csv", default_root_dir=tmp_path / "runs")
        trainer.fit(Net(), batches(1))
        (checkpoint,) = (tmp_path / "runs").rglob("*.ckpt")
        assert checkpoint.parent == Path(trainer.log_dir) / "checkpoints"


class TestBarebones:
    def test_nothing_but_training(self, tmp_path):
        module = Counts()
        trainer = Trainer(barebones=True, max_epochs=1, accelerator="cpu", default_root_dir=tmp_path)
        trainer.fit(module, batches(4), batches(2))
        assert module.calls == {"train": 4, "sanity": 0, "val": 2, "test": 0, "predict": 0}
        assert trainer.loggers == trainer.callbacks == []
        assert os.listdir(tmp_path) == []

    def test_the_weights_are_the_same(self):
        module, plain = Net(), Net()
        Trainer(barebones=True, max_epochs=2, accelerator="cpu").fit(module, batches(4))
        quiet_trainer(max_epochs=2).fit(plain, batches(4))
        assert same_weights(module, plain)


class TestProfiler:
    @pytest.mark.parametrize("name", ["simple", "advanced"])
    def test_by_name_it_is_shown(self, name, caplog):
        with caplog.at_level("INFO", logger="lightlib"):
            quiet_trainer(profiler=name).fit(Net(), batches(2))
        assert "[LightningModule]Net.training_step" in caplog.text
        assert "run_training_batch" in caplog.text

    def test_pytorch_writes_a_trace(self, tmp_path, caplog):
        with caplog.at_level("INFO", logger="lightlib"):
            quiet_trainer(profiler="pytorch", default_root_dir=tmp_path).fit(Net(), batches(8))
        assert list(tmp_path.rglob("*.json"))

    def test_into_a_file(self, tmp_path):
        quiet_trainer(profiler=SimpleProfiler(tmp_path, "times")).fit(Net(), batches(2))
        (file,) = tmp_path.iterdir()
        assert "run_training_batch" in file.read_text()

    def test_without_one_there_is_one_that_measures_nothing(self):
        trainer = quiet_trainer()
        with trainer.profiler.profile("mine"):
            trainer.fit(Net(), batches(2))
        assert type(trainer.profiler) is PassThroughProfiler
        assert type(quiet_trainer(profiler="Simple").profiler) is SimpleProfiler

    def test_the_data_and_the_optimizers_have_rows(self):
        class Data(DataModule):
            def prepare_data(self):
                pass

            def train_dataloader(self):
                return batches(2)

        profiler = SimpleProfiler()
        quiet_trainer(profiler=profiler).fit(
            with_methods(validation_step=lambda self, batch, batch_idx: None, val_dataloader=lambda self: batches(1)),
            datamodule=Data(),
        )
        assert {
            "[LightningDataModule]Data.prepare_data",
            "[LightningDataModule]Data.setup",
            "[LightningDataModule]Data.train_dataloader",
            "[LightningModule]Given.val_dataloader",
            "[LightningModule]Given.prepare_data",
            "[LightningModule]Given.configure_optimizers",
        } <= set(profiler.recorded_durations)

    def test_loaders_that_were_given_have_none(self):
        profiler = SimpleProfiler()
        quiet_trainer(profiler=profiler).fit(Net(), batches(2))
        assert not [name for name in profiler.recorded_durations if name.endswith("_dataloader")]

    def test_the_weights_are_the_same(self):
        module, plain = Net(), Net()
        quiet_trainer(profiler=SimpleProfiler(), accumulate_grad_batches=2).fit(module, batches(5))
        quiet_trainer(accumulate_grad_batches=2).fit(plain, batches(5))
        assert same_weights(module, plain)


class TestEnvironment:
    def test_defaults(self, monkeypatch):
        monkeypatch.setenv("LIGHTLIB_MAX_EPOCHS", "7")
        monkeypatch.setenv("PL_TRAINER_GRADIENT_CLIP_VAL", "0.5")
        monkeypatch.setenv("LIGHTLIB_ACCELERATOR", "cpu")
        monkeypatch.setenv("LIGHTLIB_MAX_TIME", "{'hours': 1}")
        trainer = Trainer(enable_checkpointing=False, logger=False)
        assert (trainer.max_epochs, trainer.gradient_clip_val, trainer.max_time) == (7, 0.5, 3600.0)
        assert trainer.accelerator.name() == "cpu"
        assert Trainer(max_epochs=2, logger=False).max_epochs == 2

    def test_a_wrong_value_is_an_error_of_the_argument(self, monkeypatch):
        monkeypatch.setenv("LIGHTLIB_MAX_EPOCHS", "many")
        with pytest.raises(MisconfigurationException, match="max_epochs is 'many'"):
            Trainer(**QUIET)


class TestStart:
    def line(self, caplog):
        with caplog.at_level("INFO", logger="lightlib"):
            quiet_trainer().fit(Net(), batches(1))
        return next(message for message in caplog.messages if message.startswith("lightlib "))

    def test_a_gpu_that_is_not_used_is_named(self, caplog, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        assert "(a cuda device is unused) · 32-true · " in self.line(caplog)

    def test_nothing_is_named_where_there_is_none(self, caplog, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        assert "unused" not in self.line(caplog)


@pytest.mark.parametrize(
    ("name", "kind"), [("DDP", DDPStrategy), ("FSDP", FSDPStrategy), ("Auto", SingleDeviceStrategy)]
)
def test_the_name_of_a_strategy_in_any_case(name, kind):
    assert type(quiet_trainer(strategy=name).strategy) is kind


class TestTheLimitOfAllStages:
    NAMES = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches")

    def test_it_sets_those_that_are_not_given(self, monkeypatch):
        monkeypatch.setenv("LIGHTLIB_LIMIT_BATCHES", "3")
        trainer = quiet_trainer()
        assert [getattr(trainer, name) for name in self.NAMES] == [3, 3, 3, 3]
        monkeypatch.setenv("LIGHTLIB_LIMIT_VAL_BATCHES", "2")
        trainer = quiet_trainer(limit_train_batches=0.5)
        assert [getattr(trainer, name) for name in self.NAMES] == [0.5, 2, 3, 3]

    def test_in_a_run(self, monkeypatch):
        def validation_step(self, batch, batch_idx):
            self.validated += 1

        monkeypatch.setenv("LIGHTLIB_LIMIT_BATCHES", "3")
        trainer, module = quiet_trainer(max_epochs=2), with_methods(Net, validation_step, validated=0)
        trainer.fit(module, batches(5), batches(5))
        assert (trainer.global_step, module.validated) == (6, 6)

    def test_an_error_names_the_variable(self, monkeypatch):
        monkeypatch.setenv("LIGHTLIB_LIMIT_BATCHES", "some")
        with pytest.raises(MisconfigurationException, match="the environment variable LIGHTLIB_LIMIT_BATCHES"):
            quiet_trainer()
