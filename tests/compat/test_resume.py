"""A run with compat that is resumed anywhere ends as one that was not stopped."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib
from lightlib.callbacks import ModelCheckpoint
from lightlib.conventions import following
from lightlib.loggers import CSVLogger
from lightlib_lightning.order import LIGHTNING
from tests.runs.quiet import QUIET


class Automatic(lightlib.Module):
    """Draws random numbers, skips a batch, and has schedules of three kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(3, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.global_step, self.trainer.optimizers[0].param_groups[0]["lr"]))
        if batch_idx == 2:
            return None
        return torch.nn.functional.dropout(self.layer(batch[0])).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layer(batch[0]).pow(2).mean() + torch.rand(()))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
        by_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        by_metric = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return [optimizer], [
            by_epoch,
            {"scheduler": by_step, "interval": "step"},
            {"scheduler": by_metric, "monitor": "val"},
        ]


class Manual(Automatic):
    """Steps two optimizers in each batch but the third."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers() if batch_idx != 2 else ():
            optimizer.zero_grad()
            self.manual_backward(torch.nn.functional.dropout(self.layer(batch[0])).pow(2).mean())
            optimizer.step()
            self.seen.append((self.global_step, batch_idx))

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=rate, momentum=0.9) for rate in (0.1, 0.05)]


def run(kind, folder=None, resumed=None, **arguments):
    module = kind()
    callbacks = [ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1)] if folder else []
    trainer = lightlib.Trainer(**{**QUIET, "enable_checkpointing": bool(folder), "max_epochs": 3, **arguments},
                               callbacks=callbacks)  # fmt: skip
    data = TensorDataset(torch.arange(24.0).reshape(8, 3) / 24)
    torch.manual_seed(5)
    trainer.fit(module, DataLoader(data, 2, shuffle=True), DataLoader(data, 4), ckpt_path=resumed)
    return trainer, module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arguments", [{}, {"val_check_interval": 2}])
@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_a_resumed_run_ends_as_one_that_was_not_stopped(kind, arguments, tmp_path):
    with following(LIGHTNING):
        whole, module = run(kind, tmp_path, **arguments)
        files = sorted(tmp_path.glob("*.ckpt"))
        assert len(files) == (12 if kind is Automatic else 9)
        for file in files:
            resumed, other = run(kind, resumed=file, **arguments)
            assert torch.equal(other.layer.weight, module.layer.weight), file.name
            assert resumed.global_step == whole.global_step == (12 if kind is Automatic else 18)
            assert other.seen == module.seen[len(module.seen) - len(other.seen) :]


@pytest.mark.filterwarnings("ignore")
def test_max_steps_counts_the_steps_of_all_optimizers():
    with following(LIGHTNING):
        trainer, _ = run(Manual, max_steps=4, max_epochs=-1)
    assert (trainer.global_step, trainer.progress.batch) == (4, 2)
    trainer, _ = run(Manual, max_steps=4, max_epochs=-1)
    assert (trainer.global_step, trainer.progress.batch) == (4, 5)  # the third batch has no step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stop", [{"max_steps": 2}, {"max_steps": 6, "max_epochs": -1}])
def test_an_epoch_that_training_ended_within_is_counted_and_continued(stop, tmp_path):
    with following(LIGHTNING):
        whole, module = run(Automatic)
        stopped, _ = run(Automatic, tmp_path, **stop)
        complete = stopped.progress.batch // 4
        assert (stopped.current_epoch, stopped.progress.epoch) == (complete + 1, complete)
        newest = max(tmp_path.glob("*.ckpt"), key=lambda file: torch.load(file, weights_only=False)["global_step"])
        resumed, other = run(Automatic, resumed=newest)
    assert (resumed.current_epoch, whole.current_epoch) == (3, 3)
    assert torch.equal(other.layer.weight, module.layer.weight)


@pytest.mark.filterwarnings("ignore")
def test_other_data_are_refused_before_training(tmp_path):
    with following(LIGHTNING):
        run(Automatic, tmp_path)
        began = []

        class Other(Automatic):
            def training_step(self, batch, batch_idx):
                began.append(batch_idx)

        trainer = lightlib.Trainer(**{**QUIET, "max_epochs": 3})
        data = DataLoader(TensorDataset(torch.zeros(12, 3)), 2)
        with pytest.raises(lightlib.errors.CheckpointError, match="not the one that wrote the checkpoint"):
            trainer.fit(Other(), data, data, ckpt_path=next(tmp_path.glob("*.ckpt")), resume={"changes": "refuse"})
    assert not began


@pytest.mark.parametrize("ckpt_path", ["last", "auto"])
def test_the_rows_of_a_start_without_a_checkpoint_are_set_aside(tmp_path, ckpt_path):
    """The same command, with a version of its own, after a start that failed before its first checkpoint."""

    class Logs(Automatic):
        def __init__(self, fails):
            super().__init__()
            self.fails = fails

        def training_step(self, batch, batch_idx):
            if self.fails and self.global_step == 2:
                raise KeyError("fails")
            self.log("step_number", float(self.global_step))
            return self.layer(batch[0]).mean()

    def command(folder, fails):
        data = DataLoader(TensorDataset(torch.ones(8, 3)), 2)
        logger = CSVLogger(folder, "csv", version=0, flush_logs_every_n_steps=1)
        saves = ModelCheckpoint(folder / "checkpoints", save_last=True)
        options = {**QUIET, "enable_checkpointing": True, "logger": logger, "log_every_n_steps": 1, "callbacks": saves}
        trainer = lightlib.Trainer(**options, max_epochs=1)
        trainer.fit(Logs(fails), data, data, ckpt_path=ckpt_path)
        return (folder / "csv/version_0/metrics.csv").read_text()

    with following(LIGHTNING), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*there is no last checkpoint")
        whole = command(tmp_path / "whole", fails=False)
        with pytest.raises(KeyError):
            command(tmp_path / "killed", fails=True)
        failed = (tmp_path / "killed/csv/version_0/metrics.csv").read_text()
        assert failed == "step,step_number,epoch\n0,0.0,0\n1,1.0,0\n"
        assert command(tmp_path / "killed", fails=False) == whole
        assert (tmp_path / "killed/csv/version_0/metrics-v1.csv").read_text() == failed


class Reader(Automatic):
    """Notes the samples that it reads."""

    def training_step(self, batch, batch_idx):
        self.seen.append(batch.tolist())
        return self.layer(batch[:, None].expand(-1, 3)).mean()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        pytest.param({"num_workers": 1}, marks=pytest.mark.processes),
        pytest.param({"num_workers": 1, "persistent_workers": True}, marks=pytest.mark.processes),
    ],
)
@pytest.mark.parametrize("count", [6, 7])
def test_the_generator_of_a_loader_is_resumed_at_each_batch(count, options, tmp_path):
    def read(resumed=None):
        module, save = Reader(), ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
        callbacks = [] if resumed else [save]
        trainer = lightlib.Trainer(
            **{**QUIET, "enable_checkpointing": not resumed, "max_epochs": 3}, callbacks=callbacks
        )
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(torch.arange(float(count)), 2, shuffle=True, generator=generator, **options)
        trainer.fit(module, loader, DataLoader(torch.zeros(2, 3)[:, None], 1), ckpt_path=resumed)
        return module.seen

    with following(LIGHTNING):
        whole = read()
        files = sorted(tmp_path.glob("*.ckpt"), key=lambda file: int(file.stem.partition("step=")[2]))
        assert len(files) == len(whole)
        for file in files:
            assert read(str(file)) == whole  # what it has noted is resumed, too
