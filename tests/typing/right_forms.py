"""A program with the forms that public signatures accept, in which strict type checkers find no error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, Metric, MetricCollection

import lightlib as L
from lightlib.callbacks import BasePredictionWriter, EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer
from lightlib.cli import LightningArgumentParser, LightningCLI
from lightlib.evaluation import MetricCallback
from lightlib.loggers import CSVLogger, Logger
from lightlib.precision import HalfPrecision, MixedPrecision, Precision
from lightlib.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Pipeline, Strategy
from lightlib.tuner import Tuner


class Losses(TypedDict):
    """The result of a step."""

    loss: Tensor
    scores: Tensor


class Layer(L.Module):
    """A layer and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.mean = MeanMetric()
        self.several = MetricCollection([MeanMetric()])

    def loss(self, batch: Tensor) -> Tensor:
        """Return the loss."""
        output: Tensor = self.layer(batch)
        return output.square().mean()


class Logs(Layer):
    """Logs values of every kind."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor | None:
        """Return a loss or nothing."""
        loss = self.loss(batch)
        metrics: dict[str, Metric] = {"mean": self.mean}
        numbers: Mapping[str, float] = {"one": 1, "two": 2.0}
        self.log("tensor", loss)
        self.log("float", loss.item(), prog_bar=True, on_step=True, on_epoch=True, sync_dist=True, batch_size=4)
        self.log("int", batch_idx, reduce_fx="sum")
        self.log("bool", batch_idx > 0, reduce_fx=torch.max)
        self.log("numpy", np.float32(1.0), rank_zero_only=True)
        self.log("metric", self.mean, metric_attribute="mean")
        self.log_dict(metrics)
        self.log_dict(numbers)
        self.log_dict(self.several)
        self.log_dict({"tensor": loss, "float": 1.0, "metric": self.mean})
        self.log_dict({"tensor": loss, "other": loss}, on_epoch=True)
        return None if batch_idx else loss

    def validation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> list[Tensor]:
        """Return the values of a batch."""
        return [self.loss(batch)]

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> int | None:
        """Skip the rest of an epoch."""
        return -1 if batch_idx > 100 else None

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the rate."""
        self.log("lr", optimizer.param_groups[0]["lr"])

    def configure_callbacks(self) -> list[L.Callback]:
        """Return callbacks."""
        return [EarlyStopping("float"), LearningRateMonitor("step")]

    def configure_optimizers(self) -> Adam:
        """Return an optimizer."""
        return Adam(self.parameters())


class Dicts(Layer):
    """Returns a dict from its step and one from `configure_optimizers`."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Losses:
        """Return a dict."""
        return {"loss": self.loss(batch), "scores": batch}

    def configure_optimizers(self) -> dict[str, Any]:
        """Return an optimizer and a schedule."""
        optimizer = SGD(self.parameters(), lr=0.1)
        schedule = ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}

    def configure_callbacks(self) -> EarlyStopping:
        """Return a callback."""
        return EarlyStopping("loss", mode="min")


class Tuples(Layer):
    """Returns lists of optimizers and schedules."""

    def training_step(self, batch: Tensor) -> dict[str, Tensor]:
        """Return a dict."""
        return {"loss": self.loss(batch)}

    def configure_optimizers(self) -> tuple[list[Optimizer], list[dict[str, Any]]]:
        """Return an optimizer and a schedule."""
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": LambdaLR(optimizer, lambda step: 0.9**step), "interval": "step"}]

    def configure_callbacks(self) -> Sequence[L.Callback]:
        """Return callbacks."""
        return (Timer("00:01:00:00", interval="epoch"),)


class Factories(Layer):
    """Returns functions that build the optimizer and the schedule."""

    def configure_optimizers(self) -> tuple[list[partial[SGD]], list[partial[StepLR]]]:
        """Return factories."""
        return [partial(SGD, lr=0.1)], [partial(StepLR, step_size=1)]


class Single(Layer):
    """Returns one schedule next to a list of optimizers."""

    def configure_optimizers(self) -> tuple[list[Adam], StepLR]:
        """Return an optimizer and a schedule."""
        optimizer = Adam(self.parameters())
        return [optimizer], StepLR(optimizer, 1)


class Groups(Layer):
    """Returns several dicts."""

    def configure_optimizers(self) -> list[dict[str, Optimizer | LRScheduler]]:
        """Return an optimizer and a schedule."""
        optimizer = Adam(self.parameters())
        return [{"optimizer": optimizer, "lr_scheduler": StepLR(optimizer, 1)}]


class Sequential(Layer):
    """Returns a tuple of optimizers."""

    def configure_optimizers(self) -> tuple[Adam, SGD]:
        """Return two optimizers."""
        return Adam(self.layer.parameters()), SGD(self.mean.parameters())


class Nothing(Layer):
    """Trains nothing."""

    def configure_optimizers(self) -> None:
        """Return nothing."""


class Writer(BasePredictionWriter):
    """Writes predictions."""

    def __init__(self) -> None:
        super().__init__(write_interval="epoch")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        """Log numbers."""
        self.log("epoch", trainer.current_epoch, prog_bar=True)
        self.log_dict({"step": trainer.global_step, "rate": 0.1}, on_epoch=True, on_step=False)


class Lines(Logger):
    """Keeps lines in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    @property
    def name(self) -> str:
        """The name."""
        return "lines"

    @property
    def version(self) -> int:
        """The version."""
        return 0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep a line."""
        self.lines.append(f"{step}: {dict(metrics)}")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Keep a line."""
        self.lines.append(str(params))


class Program(LightningCLI):
    """A command line with links."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add an optimizer."""
        parser.add_optimizer_args(Adam)
        parser.set_defaults({"trainer.max_epochs": 1})


def trainers() -> list[L.Trainer]:
    """Return a Trainer for each form of its arguments."""
    half: Precision = HalfPrecision("bf16-true")
    strategies: list[Strategy] = [
        DDPStrategy(ddp_comm_hook="bf16", start_method="spawn"),
        FSDPStrategy(sharding_strategy="SHARD_GRAD_OP", state_dict_type="sharded"),
        ModelParallelStrategy(data_parallel_size="auto", tensor_parallel_size=2),
    ]
    assert len(strategies) == 3
    assert Pipeline(2, schedule="gpipe").size == 2
    return [
        L.Trainer(accelerator="cpu", precision=32, profiler="simple", logger=False, callbacks=EarlyStopping("loss")),
        L.Trainer(accelerator="cpu", precision="64", logger=Lines(), callbacks={"progress": None}, max_steps=2),
        L.Trainer(accelerator="cpu", precision=half, logger=[Lines(), CSVLogger("logs")], limit_val_batches=0.5),
        L.Trainer(accelerator="cpu", precision=MixedPrecision("bf16-mixed"), max_time={"minutes": 1}, devices="1"),
        L.Trainer(
            accelerator="cpu",
            callbacks=[ModelCheckpoint(monitor="loss", mode="auto"), Writer, None, "minimal"],
            gradient_clip_algorithm="value",
            gradient_clip_val=1,
            deterministic=True,
            max_epochs=1,
        ),
    ]


def fabric_loop(loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """Train with Fabric."""
    fabric = L.Fabric(accelerator="cpu", precision="bf16-mixed", loggers=[CSVLogger("logs")])
    fabric.launch()
    layer = nn.Linear(4, 1)
    model, optimizer = fabric.setup(layer, SGD(layer.parameters(), lr=0.1))
    total = torch.zeros(())
    for step, (batch,) in enumerate(fabric.setup_dataloaders(loader)):
        loss: Tensor = model(batch).square().mean()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        fabric.log("loss", loss, step=step)
        fabric.log_dict({"loss": loss.item(), "step": step})
        total += fabric.all_reduce(loss.detach(), reduce_op="sum")
    fabric.save("fabric.ckpt", {"model": model, "optimizer": optimizer, "step": 1})
    fabric.load("fabric.ckpt", {"model": model})
    return total.item()


def main() -> None:
    """Use the forms that need no data of their own."""
    data = TensorDataset(torch.randn(8, 4))
    batches = DataLoader(data, 4)
    print(len(trainers()), fabric_loop(batches) > 0, callable(MetricCallback), callable(Tuner))
    module = L.Module.from_model(nn.Linear(4, 1), nn.MSELoss(), partial(Adam, lr=0.1), interval="step")
    callback = MetricCallback({"mean": MeanMetric()}, stages=["val", "test"], prefix="{stage}/")
    print(callback.stages, module.automatic_optimization)
    Program(Logs, run=False, args=["--trainer.logger=false", "--trainer.accelerator=cpu"])


if __name__ == "__main__":
    main()
