"""A program with mistakes of every kind; type checkers have to find each, on the marked lines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import lightlib as L
from lightlib import callbacks, loggers, precision, profilers, strategies
from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.callbacks.progress import RichProgresBar  # planted
from lightlib.cli import LightningCLI
from lightlib.distributed import all_reduce
from lightlib.evaluation import MetricCallback
from lightlib.optim import Scaling
from lightlib.schedulers import WarmupStableDecayLR
from lightlib.tuner import Tuner
from lightlib.utilities import grad_norm, rank_zero_onyl  # planted
from lightlib.utilities.model_summary import ModelSummary
from lightlib.utilities.parsing import lightning_hasattr
from lightlib.utilities.sead import isolate_rng  # planted
from lightlib.utilities.types import STEP_OTPUT, STEP_OUTPUT  # planted


class Net(L.Module):
    """Logs values that cannot be logged, and expects exactly one optimizer."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Return the loss."""
        self.log("loss", "high")  # planted
        self.log("loss", [1.0, 2.0])  # planted
        self.log("loss", None)  # planted
        self.log("loss", {"loss": 1.0})  # planted
        self.log(7, batch.sum())  # planted
        self.log("loss", batch.sum(), reduce_fx="medain")  # planted
        self.log("loss", batch.sum(), on_stpe=True)  # planted
        self.log("loss", batch.sum(), batch_size="4")  # planted
        self.log_dict({"loss": "high"})  # planted
        self.log_dict(["loss"])  # planted
        self.optimizers().step()  # planted
        self.lr_schedulers().step()  # planted
        self.clip_gradients(SGD(self.parameters()), 1.0, "nrom")  # planted
        self.manual_backward(1.0)  # planted
        self.trainer.curent_epoch  # planted
        return batch.sum()

    def configure_optimizers(self) -> str:  # planted
        """Return the name of an optimizer."""
        return "adam"

    def on_train_epoch_end(self) -> str:  # planted
        """Return a word."""
        return "done"

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> bool | str:  # planted
        """Return a word."""
        return "skip"

    def setup(self, stage: int) -> None:  # planted
        """Take a number."""

    def configure_callbacks(self) -> list[str]:  # planted
        """Return the names of callbacks."""
        return ["checkpoint"]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Any = None,
    ) -> None:
        """Clip by an algorithm that does not exist."""
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm="inf")  # planted


class Other(L.Module):
    """Another module."""

    def training_step(self, batch: Tensor, batch_idx: int) -> str:  # planted
        """Return a word."""
        return "loss"

    def configure_optimizers(self) -> list[nn.Parameter]:  # planted
        """Return parameters."""
        return list(self.parameters())

    def on_save_checkpoint(self, checkpoint: str) -> None:  # planted
        """Take a path."""


class Third(L.Module):
    """One more."""

    def training_step(self, batch: Tensor, batch_idx: int) -> tuple[Tensor, Tensor]:  # planted
        """Return a pair."""
        return batch, batch

    def configure_optimizers(self) -> tuple[Optimizer, str]:  # planted
        """Return an optimizer and the name of a schedule."""
        return SGD(self.parameters()), "cosine"


class Data(L.DataModule):
    """Data with wrong hooks."""

    def prepare_data(self) -> int:  # planted
        """Return a number."""
        return 0

    def setup(self) -> None:  # planted
        """Take no stage."""

    def state_dict(self) -> str:  # planted
        """Return a word."""
        return "state"


class Words(L.Callback):
    """A callback with wrong hooks."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.Module) -> str:  # planted
        """Log a word."""
        self.log("loss", "high")  # planted
        self.log("loss", 1.0, reduce_fx="medain")  # planted
        self.log("loss", 1.0, on_stpe=True)  # planted
        self.log_dict({"loss": "high"})  # planted
        return "started"

    def on_train_epoch_end(self, trainer: L.Trainer) -> None:  # planted
        """Take no module."""

    def on_exception(self, trainer: L.Trainer, pl_module: L.Module, exception: str) -> None:  # planted
        """Take a word."""

    def state_dict(self) -> list[int]:  # planted
        """Return a list."""
        return []


class Log(loggers.Logger):
    """A logger with wrong methods."""

    def log_metrics(self, metrics: list[float], step: int | None = None) -> None:  # planted
        """Take a list."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> str:  # planted
        """Return a word."""
        return "logged"

    def finalize(self, status: int) -> None:  # planted
        """Take a number."""


def outputs() -> STEP_OUTPUT:
    """Return a word."""
    return "loss"  # planted


L.utilties  # planted
L.plugins.environment  # planted
L.pytorch.Trainer(precision="bf16-mixd")  # planted
grad_norm(Net(), norm_typ=2)  # planted
ModelSummary(Net()).total_paramters  # planted
lightning_hasattr(Net(), 1)  # planted
L.seed_evrything(7)  # planted
L.seed_everything(7, workers="all")  # planted
trainer = L.Trainer(max_epoch=3)  # planted
trainer = L.Trainer(max_epochs="3")  # planted
trainer = L.Trainer(precision="bf16-mixd")  # planted
trainer = L.Trainer(precision=8)  # planted
trainer = L.Trainer(gradient_clip_val="1.0")  # planted
trainer = L.Trainer(gradient_clip_algorithm="nrom")  # planted
trainer = L.Trainer(deterministic="wran")  # planted
trainer = L.Trainer(profiler="smiple")  # planted
trainer = L.Trainer(strategy=7)  # planted
trainer = L.Trainer(accelerator=torch.device("cpu"))  # planted
trainer = L.Trainer(callbacks=[7])  # planted
trainer = L.Trainer(logger=[1])  # planted
trainer = L.Trainer(accumulate_grad_batches={4: 2})  # planted
trainer = L.Trainer(limit_val_batches="10%")  # planted
checkpoint = ModelCheckpoint(monitor="loss", mode="mn")  # planted
checkpoint = ModelCheckpoint(save_last="lnk")  # planted
checkpoint = ModelCheckpoint(save_top_k="all")  # planted
checkpoint = ModelCheckpoint(format="zip")  # planted
EarlyStopping("loss", mode="mx")  # planted
EarlyStopping("loss", patience="3")  # planted
callbacks.LearningRateMonitor(logging_interval="batches")  # planted
callbacks.Timer(interval="batch")  # planted
callbacks.StochasticWeightAveraging(1e-2, annealing_strategy="cosine")  # planted
callbacks.BatchSizeFinder(mode="pwoer")  # planted
callbacks.LearningRateFinder(mode="log")  # planted
callbacks.LearningRateScaler(256, rule="square")  # planted
callbacks.ExpectedMetrics({"loss": 1.0}, stage="fitt")  # planted
callbacks.MetricPrinter(smoothing={"loss": "medain"})  # planted
MetricCallback({}, stages="vall")  # planted
strategies.DDPStrategy(zero="yes")  # planted
strategies.DDPStrategy(ddp_comm_hook="fp8")  # planted
strategies.DDPStrategy(start_method="thread")  # planted
strategies.FSDPStrategy(sharding_strategy="FULL")  # planted
strategies.FSDPStrategy(state_dict_type="half")  # planted
strategies.ModelParallelStrategy(data_parallel_size="all")  # planted
strategies.Pipeline(2, schedule="1f2b")  # planted
strategies.DeepSpeedStrategy(offload_params_device="disk")  # planted
precision.MixedPrecision("16-mixd")  # planted
precision.HalfPrecision("32-true")  # planted
precision.BitsandbytesPrecision("nf5")  # planted
profilers.SimpleProfiler(extendd=True)  # planted
loggers.CSVLogger("logs", flush_logs_every_n_steps="1")  # planted
loggers.WandbLogger(log_model="some")  # planted
L.CombinedLoader([], "longest")  # planted
Scaling.of_batch(256, base=16, rule="square")  # planted
WarmupStableDecayLR(SGD([]), 10, decay="cos")  # planted
all_reduce(torch.ones(1), op="avarage")  # planted
LightningCLI(Net, run="fit")  # planted
LightningCLI(nn.Linear)  # planted
trainer = L.Trainer(callbacks=[checkpoint])
trainer.fit(nn.Linear(1, 1))  # planted
trainer.fit(Net(), ckpt_path=7)  # planted
trainer.save_checkpoint("last.ckpt", format="zip")  # planted
Tuner(trainer).lr_find(Net(), method="fitt")  # planted
Tuner(trainer).scale_batch_size(Net(), mode="pwoer")  # planted
other: Other = Net.load_from_checkpoint("last.ckpt")  # planted
print(trainer.checkpoint_callback.best_model_path)  # planted
print(trainer.callback_metrics["loss"].itme())  # planted
fabric = L.Fabric(precision="bf16-mixd")  # planted
fabric = L.Fabric(device=1)  # planted
fabric = L.Fabric()
fabric.setup("net")  # planted
fabric.setup(nn.Linear(1, 1), "sgd")  # planted
fabric.log("loss", "high")  # planted
fabric.log_dict({"loss": "high"})  # planted
fabric.all_reduce(torch.ones(1), reduce_op="medain")  # planted
fabric.backward(1.0)  # planted
fabric.clip_gradients(nn.Linear(1, 1), SGD([]), max_norm="1")  # planted
fabric.save("last.ckpt", ["net"])  # planted
fabric.sedd_everything(7)  # planted
