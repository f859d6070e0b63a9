"""The same module and Trainer for lightlib and Lightning, which share names and arguments."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor

from benchmarks.task import LOG_EVERY, MAX_NORM, Task

__all__ = ["evaluated", "module", "predict", "train", "train_with_defaults", "trainer", "validate"]

_OFF = {
    "devices": 1,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "max_epochs": 1,
}


def module(framework: ModuleType, task: Task) -> Any:
    """Return the task as a module of `framework`."""
    switches = task.switches

    class Classifier(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = task.network()
            if switches.accuracy:
                self.accuracy = task.accuracy()

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            inputs, targets = batch
            logits = self.network(inputs)
            loss = task.loss(logits, targets)
            if switches.accuracy:
                self.accuracy.update(logits, targets)
                self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
            if switches.log is not None:
                self.log("loss", loss, **switches.log)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = task.optimizer(self.parameters())
            if not switches.schedule:
                return optimizer
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": task.schedule(optimizer), "interval": "step"},
            }

    return Classifier()


def evaluated(framework: ModuleType, task: Task) -> Any:
    """Return the task's network as a module of `framework` that is only evaluated."""

    class Evaluated(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = task.network()

        def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            inputs, targets = batch
            self.log("val_loss", task.loss(self.network(inputs), targets))

        def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            return self.network(batch[0])

    return Evaluated()


def trainer(framework: ModuleType, task: Task) -> Any:
    """Return a Trainer with the task's services, and everything else off."""
    switches, logger = task.switches, False
    if switches.tensorboard:
        logger = import_module(f"{framework.__name__}.loggers").TensorBoardLogger(task.folder)
    return framework.Trainer(
        **_OFF,
        accelerator=task.place.accelerator,
        logger=logger,
        enable_progress_bar=switches.bar,
        gradient_clip_val=MAX_NORM if switches.clip else None,
        log_every_n_steps=LOG_EVERY,
    )


def train(framework: ModuleType, task: Task) -> None:
    """Train for one epoch with the task's services."""
    trainer(framework, task).fit(module(framework, task), task.loader())


def train_with_defaults(framework: ModuleType, task: Task, **arguments: Any) -> Any:
    """Train with all services that a Trainer switches on by itself: logger, bar, checkpoints, summary."""
    own = framework.Trainer(accelerator="cpu", max_epochs=1, default_root_dir=task.folder, **arguments)
    own.fit(module(framework, task), task.loader())
    return own


def validate(framework: ModuleType, task: Task) -> None:
    """Compute and log the mean loss of all batches."""
    trainer(framework, task).validate(evaluated(framework, task), task.loader(), verbose=False)


def predict(framework: ModuleType, task: Task) -> None:
    """Compute the logits of all batches, and drop them."""
    trainer(framework, task).predict(evaluated(framework, task), task.loader(), return_predictions=False)
