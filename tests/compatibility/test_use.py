"""A program for Lightning 2.6 runs with changed imports, and finds every attribute that it reads."""

from __future__ import annotations

import csv
import math
import runpy
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightlib.loggers import CSVLogger
from tests.runs.plain import with_methods

SWAP = {
    "import lightning as L\n": "import lightlib as L\n",
    "from lightning.pytorch.callbacks import ": "from lightlib.callbacks import ",
    "from lightning.pytorch.loggers import ": "from lightlib.loggers import ",
}

PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

import lightning as L
from lightning.pytorch.callbacks import (
    EarlyStopping, LearningRateMonitor, ModelCheckpoint, ModelSummary, RichProgressBar, Timer,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


class BlobsDataModule(L.LightningDataModule):
    def __init__(self, data_dir: str = "data", batch_size: int = 16, num_workers: int = 0):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.data_train, self.data_val, self.data_test = None, None, None

    def prepare_data(self):
        import pathlib

        folder = pathlib.Path(self.hparams.data_dir)
        folder.mkdir(exist_ok=True)
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(3, (240,), generator=generator)
        points = torch.randn(240, 8, generator=generator) + 2 * F.one_hot(labels, 8)
        torch.save((points, labels), folder / "blobs.pt")

    def setup(self, stage=None):
        if not self.data_train and not self.data_val and not self.data_test:
            dataset = TensorDataset(*torch.load(f"{self.hparams.data_dir}/blobs.pt"))
            self.data_train, self.data_val, self.data_test = random_split(
                dataset, [160, 48, 32], generator=torch.Generator().manual_seed(42)
            )

    def train_dataloader(self):
        return DataLoader(self.data_train, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data_val, batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return [self.val_dataloader(), DataLoader(self.data_test, batch_size=self.hparams.batch_size)]

    def predict_dataloader(self):
        return DataLoader(self.data_test, batch_size=self.hparams.batch_size)

    def teardown(self, stage=None):
        log.append(f"datamodule teardown {stage}")

    def state_dict(self):
        return {"seen": len(self.data_train)}

    def load_state_dict(self, state_dict):
        log.append(f"datamodule state {state_dict}")

    def on_after_batch_transfer(self, batch, dataloader_idx):
        points, labels = batch
        return points / points.norm(dim=1, keepdim=True), labels


class LitClassifier(L.LightningModule):
    def __init__(self, input_dim: int = 8, hidden_dim: int = 16, num_classes: int = 3, learning_rate: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.example_input_array = torch.zeros(2, input_dim)
        self.backbone = nn.Sequential(nn.Linear(input_dim, hidden_dim), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(hidden_dim, self.hparams.num_classes)
        metrics = MetricCollection([MulticlassAccuracy(num_classes), MulticlassF1Score(num_classes)])
        self.train_metrics = metrics.clone(prefix="train/")
        self.valid_metrics = metrics.clone(prefix="val/")
        self.test_acc = nn.ModuleList([MulticlassAccuracy(num_classes) for _ in range(2)])
        self.validation_step_outputs = []

    def forward(self, x):
        return self.head(self.backbone(x))

    def _shared_step(self, batch):
        x, y = batch
        logits = self(x)
        return F.cross_entropy(logits, y), logits, y

    def on_fit_start(self):
        assert self.device == torch.device("cpu") and self.dtype == torch.float32

    def on_train_start(self):
        assert self.training and torch.is_grad_enabled()
        if self.logger is not None:
            self.logger.log_hyperparams({"total_steps": int(self.trainer.estimated_stepping_batches)})

    def training_step(self, batch, batch_idx):
        loss, logits, y = self._shared_step(batch)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True, logger=True, sync_dist=True)
        self.log_dict(self.train_metrics(logits, y), on_step=False, on_epoch=True, batch_size=len(y))
        self.log("lr", self.optimizers().param_groups[0]["lr"], prog_bar=True, rank_zero_only=True)
        return {"loss": loss, "logits": logits}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert not outputs["loss"].requires_grad

    def on_before_optimizer_step(self, optimizer):
        assert all(p.grad is not None for group in optimizer.param_groups for p in group["params"])

    def on_train_epoch_end(self):
        log.append(f"epoch {self.current_epoch} step {self.global_step} {self.trainer.num_training_batches}")

    def validation_step(self, batch, batch_idx):
        assert not self.training and not torch.is_grad_enabled()
        loss, logits, y = self._shared_step(batch)
        self.valid_metrics.update(logits, y)
        self.log("val/loss", loss, prog_bar=True)
        self.validation_step_outputs.append(loss)
        return loss

    def on_validation_epoch_end(self):
        self.log_dict(self.valid_metrics.compute(), prog_bar=True)
        self.valid_metrics.reset()
        self.log("val/worst", torch.stack(self.validation_step_outputs).max())
        self.validation_step_outputs.clear()
        if not self.trainer.sanity_checking and self.trainer.is_global_zero:
            self.print(f"validated after epoch {self.current_epoch}")

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        loss, logits, y = self._shared_step(batch)
        self.test_acc[dataloader_idx](logits, y)
        self.log("test/acc", self.test_acc[dataloader_idx])
        self.log("test/loss", loss, add_dataloader_idx=True)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        x, _ = batch
        return self(x).softmax(dim=-1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": scheduler, "monitor": "val/loss", "interval": "epoch", "frequency": 1, "name": "plateau",
            },
        }

    def on_save_checkpoint(self, checkpoint):
        checkpoint["my_version"] = 3

    def on_load_checkpoint(self, checkpoint):
        log.append(f"my_version {checkpoint['my_version']}")


class CountBatches(L.Callback):
    def __init__(self):
        self.batches = 0

    @property
    def state_key(self):
        return "CountBatches"

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches += 1
        pl_module.log("batches", float(self.batches))

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            log.append(f"val/loss in metrics: {'val/loss' in trainer.callback_metrics}")

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state_dict):
        self.batches = state_dict["batches"]


class GAN(L.LightningModule):
    def __init__(self, latent_dim: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator, self.discriminator = nn.Linear(latent_dim, 2), nn.Linear(2, 1)

    def adversarial_loss(self, y_hat, y):
        return F.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(len(real), self.hparams.latent_dim).type_as(real)

        self.toggle_optimizer(optimizer_g)
        g_loss = self.adversarial_loss(self.discriminator(self.generator(z)), torch.ones(len(real), 1))
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        self.clip_gradients(optimizer_g, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        assert all(p.grad is None for p in self.discriminator.parameters()) or batch_idx
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        real_loss = self.adversarial_loss(self.discriminator(real), torch.ones(len(real), 1))
        fake_loss = self.adversarial_loss(self.discriminator(self.generator(z).detach()), torch.zeros(len(real), 1))
        d_loss = (real_loss + fake_loss) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

        if self.trainer.is_last_batch:
            for scheduler in self.lr_schedulers():
                scheduler.step()

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        return [opt_g, opt_d], [torch.optim.lr_scheduler.StepLR(opt, step_size=1) for opt in (opt_g, opt_d)]


def make_trainer(max_epochs):
    checkpoint = ModelCheckpoint(
        dirpath="checkpoints", filename="{epoch:02d}-{val/loss:.2f}", monitor="val/loss", mode="min",
        save_top_k=2, save_last=True, auto_insert_metric_name=False,
    )
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        precision="32-true",
        max_epochs=max_epochs,
        min_epochs=1,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        log_every_n_steps=2,
        check_val_every_n_epoch=1,
        num_sanity_val_steps=2,
        deterministic=False,
        default_root_dir="out",
        logger=[TensorBoardLogger("logs", name="blobs", default_hp_metric=False), CSVLogger("logs", name="blobs_csv")],
        callbacks=[
            checkpoint,
            EarlyStopping(monitor="val/loss", patience=5, mode="min"),
            LearningRateMonitor(logging_interval="epoch"),
            ModelSummary(max_depth=-1),
            RichProgressBar(),
            Timer(duration="00:00:10:00"),
            CountBatches(),
        ],
    )


log = []
L.seed_everything(42, workers=True)
dm = BlobsDataModule(batch_size=16)
model = LitClassifier(hidden_dim=32)
trainer = make_trainer(max_epochs=3)
trainer.fit(model, datamodule=dm)
metrics_after_fit = set(trainer.callback_metrics)
assert trainer.state.finished and trainer.state.status == "finished"
validated = trainer.validate(model, datamodule=dm)
tested = trainer.test(ckpt_path="best", datamodule=dm)
predicted = trainer.predict(model, datamodule=dm)
best = trainer.checkpoint_callback.best_model_path

restored = LitClassifier.load_from_checkpoint(best, learning_rate=0.5)
resumed = make_trainer(max_epochs=4)
resumed.fit(LitClassifier(hidden_dim=32), datamodule=BlobsDataModule(batch_size=16), ckpt_path="checkpoints/last.ckpt")

gan_trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False)
gan = GAN()
gan_trainer.fit(gan, DataLoader(TensorDataset(torch.randn(32, 2)), batch_size=8))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return the globals of the program after it ran with its three imports changed."""
    assert PROGRAM.count("lightning") == len(SWAP)
    text = PROGRAM
    for theirs, ours in SWAP.items():
        assert text.count(theirs) == 1
        text = text.replace(theirs, ours)
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {**runpy.run_path(str(folder / "train.py")), "folder": folder}


def test_the_program_trains(program):
    trainer = program["trainer"]
    assert (trainer.current_epoch, trainer.global_step) == (3, 15)
    assert [line for line in program["log"] if line.startswith("epoch")][:3] == [
        "epoch 0 step 5 10",
        "epoch 1 step 10 10",
        "epoch 2 step 15 10",
    ]
    assert "val/loss in metrics: True" in program["log"]
    assert "val/loss in metrics: False" not in program["log"]
    assert {"train/loss", "train/loss_step", "train/loss_epoch", "val/loss", "lr"} <= program["metrics_after_fit"]
    assert program["log"].count("datamodule teardown fit") == 2


def test_the_program_evaluates(program):
    (validated,) = program["validated"]
    assert set(validated) == {"val/loss", "val/worst", "val/MulticlassAccuracy", "val/MulticlassF1Score"}
    assert [sorted(loader) for loader in program["tested"]] == [
        ["test/acc/dataloader_idx_0", "test/loss/dataloader_idx_0"],
        ["test/acc/dataloader_idx_1", "test/loss/dataloader_idx_1"],
    ]
    assert program["tested"][1]["test/acc/dataloader_idx_1"] > 0.5
    assert torch.cat(program["predicted"]).shape == (32, 3)


def test_the_program_finds_its_files(program):
    folder = program["folder"]
    names = sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_file())
    assert "last.ckpt" in names
    assert any(name.startswith("02-") for name in names), names
    assert list((folder / "logs/blobs/version_0").glob("events.out.tfevents.*"))
    assert (folder / "logs/blobs/version_0/hparams.yaml").is_file()
    with (folder / "logs/blobs_csv/version_0/metrics.csv").open() as file:
        columns = set(next(csv.reader(file)))
    assert {"epoch", "step", "train/loss_step", "train/loss_epoch", "val/loss", "batches"} <= columns
    assert "plateau" in columns  # LearningRateMonitor takes the name that the schedule was given
    assert not (folder / "logs/blobs/version_1").exists()  # the resumed run continues its logs


def test_the_program_restores(program):
    assert Path(program["best"]).is_file() or (program["folder"] / program["best"]).is_file()
    assert program["restored"].hparams.learning_rate == 0.5
    assert program["restored"].hparams.hidden_dim == 32
    assert program["log"].count("my_version 3") >= 2
    assert "datamodule state {'seen': 160}" in program["log"]
    assert (program["resumed"].current_epoch, program["resumed"].global_step) == (4, 20)
    counted = next(c for c in program["resumed"].callbacks if type(c).__name__ == "CountBatches")
    assert counted.batches == 40


def test_the_program_plays_its_gan(program):
    assert program["gan_trainer"].current_epoch == 2
    assert program["gan_trainer"].global_step == 8  # batches in which an optimizer stepped: docs/differences.md
    assert [o.param_groups[0]["lr"] for o in program["gan"].optimizers()] == pytest.approx([1e-5, 1e-5])


# attributes of a Trainer that programs read
class Net(L.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).square().mean())

    test_step = validation_step

    def predict_step(self, batch):
        return self.layer(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Data(L.DataModule):
    def loader(self):
        return DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader


class Reader(L.Callback):
    """Reads every attribute at every stage."""

    not_in_checkpoint = ("found",)

    def __init__(self):
        self.found = {}

    def read(self, trainer, stage):
        self.found.setdefault(stage, []).append({name: getattr(trainer, name) for name in READ})

    def on_sanity_check_start(self, trainer, pl_module):
        self.read(trainer, "sanity_check")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.read(trainer, "train")

    def on_train_epoch_end(self, trainer, pl_module):
        self.read(trainer, "epoch_end")

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        self.read(trainer, "sanity_check" if trainer.sanity_checking else "validate")

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        self.read(trainer, "test")

    def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        self.read(trainer, "predict")


# All public attributes that users' programs read, the most frequent first.
READ = (
    "fit", "global_step", "predict", "callback_metrics", "current_epoch", "logger", "strategy", "datamodule",
    "max_epochs", "sanity_checking", "test", "is_global_zero", "checkpoint_callback", "global_rank", "loggers",
    "state", "train_dataloader", "model", "optimizers", "should_stop", "callbacks", "num_devices",
    "save_checkpoint", "world_size", "estimated_stepping_batches", "log_dir", "val_dataloaders", "default_root_dir",
    "fast_dev_run", "lightning_module", "log_every_n_steps", "num_training_batches", "test_dataloaders", "validate",
    "accelerator", "local_rank", "logged_metrics", "max_steps", "precision", "predict_dataloaders",
    "accumulate_grad_batches", "check_val_every_n_epoch", "early_stopping_callback", "is_last_batch",
    "limit_train_batches", "limit_val_batches", "lr_scheduler_configs", "num_test_batches", "progress_bar_metrics",
    "testing", "training", "validating", "predicting", "val_check_interval", "progress_bar_callback",
    "num_sanity_val_steps", "init_module", "print", "min_steps", "num_nodes", "node_rank", "barebones", "ckpt_path",
    "gradient_clip_val", "gradient_clip_algorithm", "num_val_batches",
)  # fmt: skip

ALWAYS = {
    "accumulate_grad_batches": 1,
    "barebones": False,
    "check_val_every_n_epoch": 1,
    "fast_dev_run": False,
    "global_rank": 0,
    "gradient_clip_algorithm": "norm",
    "gradient_clip_val": 0.5,
    "is_global_zero": True,
    "limit_train_batches": 1.0,
    "limit_val_batches": 2,
    "local_rank": 0,
    "log_every_n_steps": 1,
    "max_epochs": 2,
    "max_steps": -1,
    "min_steps": None,
    "node_rank": 0,
    "num_devices": 1,
    "num_nodes": 1,
    "num_sanity_val_steps": 1,
    "precision": "32-true",
    "should_stop": False,
    "val_check_interval": 1.0,
    "world_size": 1,
}
STAGES = ("sanity_checking", "training", "validating", "testing", "predicting")


@pytest.fixture
def run(tmp_path):
    reader = Reader()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        limit_val_batches=2,
        num_sanity_val_steps=1,
        log_every_n_steps=1,
        gradient_clip_val=0.5,
        gradient_clip_algorithm="norm",
        enable_model_summary=False,
        default_root_dir=tmp_path,
        logger=CSVLogger(tmp_path, name="csv"),
        callbacks=[EarlyStopping("val_loss"), ModelCheckpoint(monitor="val_loss"), TQDMProgressBar(), reader],
    )
    model, data = Net(), Data()
    trainer.fit(model, datamodule=data)
    reader.read(trainer, "after_fit")
    trainer.test(model, datamodule=data, verbose=False)
    trainer.predict(model, datamodule=data)
    reader.read(trainer, "after")
    return trainer, model, data, reader.found


def test_every_attribute_is_there_before_during_and_after_a_run(run):
    new = L.Trainer(accelerator="cpu", logger=False, max_epochs=1)
    readable = [name for name in READ if name != "estimated_stepping_batches"]  # which needs the training data
    assert [name for name in readable if not hasattr(new, name)] == []
    assert set(run[3]) == {
        "sanity_check", "train", "validate", "epoch_end", "after_fit", "test", "predict", "after",
    }  # fmt: skip


def test_settings_and_ranks_are_the_same_at_every_moment(run):
    for stage, moments in run[3].items():
        for moment in moments:
            assert {name: moment[name] for name in ALWAYS} == ALWAYS, stage


def test_the_stage_that_runs_is_told(run):
    told = {"sanity_check": "sanity_checking", "train": "training", "epoch_end": "training", "validate": "validating"}
    told |= {"test": "testing", "predict": "predicting"}
    for stage, moments in run[3].items():
        for moment in moments:
            assert [name for name in STAGES if moment[name]] == ([told[stage]] if stage in told else []), stage


def test_the_progress_is_counted(run):
    _, _, _, found = run
    assert [(m["current_epoch"], m["global_step"]) for m in found["train"]] == [
        (0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6),
    ]  # fmt: skip
    assert [m["is_last_batch"] for m in found["train"]] == [False, False, True] * 2
    assert [m["current_epoch"] for m in found["epoch_end"]] == [0, 1]
    assert (found["after_fit"][0]["current_epoch"], found["after"][0]["global_step"]) == (2, 6)
    assert {m["num_training_batches"] for m in found["train"]} == {3}
    assert {m["estimated_stepping_batches"] for m in found["train"] + found["validate"]} == {6}
    assert found["validate"][0]["num_val_batches"] == [2]
    assert found["test"][0]["num_test_batches"] == [3]


def test_the_objects_are_those_that_were_given(run):
    trainer, model, data, found = run
    for moments in found.values():
        for moment in moments:
            assert moment["model"] is model
            assert moment["lightning_module"] is model
            assert moment["datamodule"] is data
            assert moment["loggers"] == [moment["logger"]]
            assert moment["checkpoint_callback"] in moment["callbacks"]
            assert isinstance(moment["early_stopping_callback"], EarlyStopping)
            assert isinstance(moment["progress_bar_callback"], TQDMProgressBar)
            assert moment["log_dir"] == moment["logger"].log_dir
            assert moment["default_root_dir"] == trainer.default_root_dir
    during = found["train"][0]
    assert isinstance(during["optimizers"][0], torch.optim.SGD)
    assert isinstance(during["lr_scheduler_configs"][0].scheduler, torch.optim.lr_scheduler.StepLR)
    assert isinstance(during["train_dataloader"], DataLoader)
    assert isinstance(found["validate"][0]["val_dataloaders"], DataLoader)
    assert isinstance(found["test"][0]["test_dataloaders"], DataLoader)
    assert isinstance(found["predict"][0]["predict_dataloaders"], DataLoader)
    assert Path(trainer.checkpoint_callback.best_model_path).is_file()
    assert trainer.strategy.root_device == torch.device("cpu")
    assert trainer.strategy.broadcast("same") == "same"
    assert trainer.strategy.local_rank == 0
    trainer.strategy.barrier()
    assert (trainer.state.fn, trainer.state.status, trainer.state.stage) == ("predict", "finished", None)


def test_metrics_hold_the_newest_step_and_the_last_validation(run):
    found = run[3]
    newest = found["train"][2]["callback_metrics"]["loss"]
    assert (
        newest == found["epoch_end"][0]["callback_metrics"]["loss"] == found["epoch_end"][0]["logged_metrics"]["loss"]
    )
    assert newest.item() == pytest.approx(found["epoch_end"][0]["progress_bar_metrics"]["loss"])
    assert newest == found["validate"][0]["callback_metrics"]["loss"]
    assert math.isfinite(found["epoch_end"][0]["callback_metrics"]["val_loss"])
    assert "val_loss" not in found["train"][0]["callback_metrics"]  # the sanity check leaves no metrics
    assert {"loss", "val_loss"} <= set(found["after_fit"][0]["callback_metrics"])


def test_the_newest_step_is_seen_by_who_reads_only_at_the_end_of_an_epoch():
    seen = []

    class AtTheEnd(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            seen.append((trainer.callback_metrics["loss"].item(), trainer.progress_bar_metrics["loss"]))

    losses = iter([1.0, 2.0, 3.0, 4.0])

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).mean()
        self.log("loss", next(losses), prog_bar=True)
        return loss

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
    module = with_methods(Net, training_step)
    L.Trainer(accelerator="cpu", max_epochs=2, limit_val_batches=0, callbacks=AtTheEnd(), **off).fit(module, loader)
    assert seen == [(2.0, 2.0), (4.0, 4.0)]


def test_should_stop_may_be_written_and_callbacks_appended(tmp_path):
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            trainer.should_stop = trainer.global_step == 2

    trainer = L.Trainer(
        accelerator="cpu", max_epochs=5, logger=False, enable_model_summary=False, enable_progress_bar=False,
        default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.callbacks.append(Stop())
    trainer.fit(Net(), datamodule=Data())
    assert trainer.global_step == 2
    trainer.save_checkpoint(tmp_path / "mine.ckpt")
    assert (tmp_path / "mine.ckpt").is_file()
    with trainer.init_module():
        assert torch.nn.Linear(1, 1).weight.device == torch.device("cpu")
    trainer.print("no bar, no problem")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("fit_loop", "trainer.progress"),
        ("predict_loop", "trainer.num_predict_batches"),
        ("_accelerator_connector", "trainer.strategy"),
        ("_checkpoint_connector", "trainer.save_checkpoint"),
    ],
)
def test_the_inside_of_lightning_is_absent_and_the_error_says_what_to_use(name, advice):
    trainer = L.Trainer(accelerator="cpu", logger=False, max_epochs=1)
    with pytest.raises(AttributeError, match=rf"`{name}` is internal to Lightning; use .*{advice}"):
        getattr(trainer, name)
