"""Modules and data that the command lines of these tests build, and a plain loop to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from lightlib.callbacks.callback import Callback
from lightlib.cli import LightningCLI, LRSchedulerCallable, OptimizerCallable
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer

QUIET = [
    "--trainer.accelerator=cpu",
    "--trainer.logger=false",
    "--trainer.enable_checkpointing=false",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.num_sanity_val_steps=0",
    "--trainer.max_epochs=2",
    "--seed_everything=7",
]


class BareLine(Module):
    """A straight line; its optimizer is configured separately."""

    def __init__(self, width: int = 3):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(width, 1)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        loss = mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val_loss", mse_loss(self(batch[0]), batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", mse_loss(self(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])


class SteepLine(BareLine):
    """A straight line with SGD."""

    def __init__(self, width: int = 3, lr: float = 0.05):
        super().__init__(width)
        self.save_hyperparameters()
        self.lr = lr

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class BentLine(SteepLine):
    """A line that is not straight."""

    def __init__(self, hidden: int = 5, lr: float = 0.05, **others):
        super().__init__(lr=lr, **others)
        self.save_hyperparameters()
        self.layer = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1))


class Shelf:
    """Holds another class."""

    class Line(BentLine):
        pass


class PointsOfLine(DataModule):
    """Points near a plane."""

    def __init__(self, count: int = 16, batch_size: int = 4, width: int = 3):
        super().__init__()
        self.save_hyperparameters()
        self.count, self.batch_size, self.width = count, batch_size, width

    @property
    def features(self):
        """How many numbers each point has."""
        return self.width

    def train_dataloader(self):
        return DataLoader(TensorDataset(*points(self.count, self.width)), self.batch_size)

    test_dataloader = predict_dataloader = val_dataloader = train_dataloader


class PointsInTens(PointsOfLine):
    """Points in batches of ten."""

    def __init__(self, batch_size: int = 10):
        super().__init__(20, batch_size)


class ChosenLine(BareLine):
    """Its optimizer and its scheduler are arguments."""

    def __init__(
        self,
        optimizer: OptimizerCallable = torch.optim.SGD,
        scheduler: LRSchedulerCallable = torch.optim.lr_scheduler.ConstantLR,
    ):
        super().__init__()
        self.optimizer, self.scheduler = optimizer, scheduler

    def configure_optimizers(self):
        optimizer = self.optimizer(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler(optimizer)}


class WithEncoder(SteepLine):
    """Its first layer is an object that the configuration chooses."""

    def __init__(self, encoder: nn.Module, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Sequential(encoder, nn.LazyLinear(1))
        self.layer(torch.zeros(1, 3))


class AroundLine(SteepLine):
    """A module in a module, both of which keep hyperparameters."""

    def __init__(self, inner: SteepLine, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        self.layer = inner


@dataclass
class Shape:
    """Settings of a layer."""

    width: int = 3
    bias: bool = True


@dataclass
class Plan:
    """Settings of training."""

    lr: float = 0.05
    shapes: dict[str, int] = field(default_factory=dict)
    shape: Shape = field(default_factory=Shape)


class PlannedLine(SteepLine):
    """Its arguments are dataclasses, one in another."""

    def __init__(self, plan: Plan, names: list[str] | None = None):
        super().__init__(plan.shape.width, plan.lr)
        self.layer = nn.Linear(plan.shape.width, 1, bias=plan.shape.bias)
        self.plan, self.names = plan, names


class Counts(Callback):
    """Counts batches."""

    def __init__(self, step: int = 1, name: str = "batches"):
        self.step, self.name, self.total = step, name, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.total += self.step


class Built(LightningCLI):
    """A CLI that builds everything and runs nothing, even with sub-commands."""

    def fit(self, **arguments):
        self.asked = arguments


def a_line(width: int = 3, lr: float = 0.5) -> SteepLine:
    """Return a line."""
    return SteepLine(width, lr)


def some_points(count: int = 8) -> PointsOfLine:
    """Return points."""
    return PointsOfLine(count)


def a_trainer(epochs: int = 1, callbacks: list[Callback] | None = None) -> Trainer:
    """Return a Trainer with one argument of its own name."""
    return Trainer(max_epochs=epochs, callbacks=callbacks, logger=False, enable_checkpointing=False, accelerator="cpu")


def points(count, width=3):
    """The same points at every call."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(3))
    return x, x.sum(-1, keepdim=True)


def by_hand(make, configure, epochs=2, seed=7, count=16, size=4, step=None):
    """Train the module that `make` returns in a plain loop, seeded as a command line does it.

    Args:
        make: Returns the module.
        configure: Gets the parameters, and returns an optimizer and a scheduler that steps after each epoch, or None.
        epochs, seed, count, size: As configured.
        step: Called after each epoch with the scheduler and the module, in place of a plain step.
    """
    torch.manual_seed(seed)
    module = make()
    optimizer, scheduler = configure(module.parameters())
    x, y = points(count)
    for _ in range(epochs):
        for some_x, some_y in zip(x.split(size), y.split(size), strict=True):
            optimizer.zero_grad()
            mse_loss(module(some_x), some_y).backward()
            optimizer.step()
        if step is not None:
            step(scheduler, module)
        elif scheduler is not None:
            scheduler.step()
    return module


def sgd(lr=0.05):
    """Return a `configure` for `by_hand`."""
    return lambda parameters: (torch.optim.SGD(parameters, lr=lr), None)
