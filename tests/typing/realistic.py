"""A program as users write it, in which strict type checkers find no error."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightlib.loggers import CSVLogger, TensorBoardLogger
from lightlib.strategies import DDPStrategy

Batch = tuple[Tensor, Tensor]


class Classifier(L.Module):
    """A network with all that a module usually has."""

    def __init__(self, width: int = 8, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.layer = nn.Linear(4, width)
        self.head = nn.Linear(width, 3)
        self.example_input_array = torch.zeros(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        hidden: Tensor = self.layer(x).relu()
        scores: Tensor = self.head(hidden)
        return scores

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean of the cross entropies."""
        x, y = batch
        return nn.functional.cross_entropy(self.forward(x), y)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Log and return the loss."""
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True, reduce_fx="mean")
        if batch_idx == 0 and self.trainer.is_global_zero:
            self.print(f"epoch {self.current_epoch} of {self.trainer.max_epochs}: {self.trainer.num_training_batches}")
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss."""
        self.log_dict({"val_loss": self.loss(batch)}, batch_size=len(batch[0]))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss."""
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the classes."""
        return self.forward(batch[0]).argmax(-1)

    def on_train_epoch_end(self) -> None:
        """Write a picture, if there is a TensorBoard logger."""
        if isinstance(self.logger, TensorBoardLogger):
            self.logger.experiment.flush()

    def configure_optimizers(self) -> tuple[list[Optimizer], list[LRScheduler]]:
        """Return an optimizer and a schedule."""
        optimizer = Adam(self.parameters(), lr=self.lr)
        return [optimizer], [StepLR(optimizer, step_size=1)]


class Adversaries(L.Module):
    """Two optimizers, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Linear(2, 4)
        self.critic = nn.Linear(4, 1)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Step each optimizer once."""
        optimizers = self.optimizers()
        assert isinstance(optimizers, list)
        for optimizer in optimizers:
            self.toggle_optimizer(optimizer)
            loss: Tensor = self.critic(self.generator(torch.randn(4, 2))).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        schedule = self.lr_schedulers()
        if isinstance(schedule, LRScheduler):
            schedule.step()

    def configure_optimizers(self) -> list[Optimizer]:
        """Return one optimizer for each."""
        return [Adam(self.generator.parameters()), Adam(self.critic.parameters())]


class Numbers(L.DataModule):
    """Random samples."""

    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.samples = TensorDataset()

    def setup(self, stage: str) -> None:
        """Make the samples."""
        self.samples = TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,)))

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return the loader for training."""
        return DataLoader(self.samples, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return the loader for validation."""
        return DataLoader(self.samples, self.batch_size)

    test_dataloader = predict_dataloader = val_dataloader


class Printer(L.Callback):
    """Prints the metrics."""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        """Print the loss."""
        loss = trainer.callback_metrics.get("val_loss")
        if loss is not None and not trainer.sanity_checking:
            trainer.print(f"step {trainer.global_step}: {loss.item():.3f} on {pl_module.device}")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.Module, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Stop when the learning rate is small."""
        if trainer.optimizers[0].param_groups[0]["lr"] < 1e-6:
            trainer.should_stop = True


def main(folder: Path) -> float:
    """Train, test, predict and load."""
    L.seed_everything(7, workers=True)
    callbacks = [
        ModelCheckpoint(monitor="val_loss", mode="min", save_top_k=2, save_last="link", train_time_interval=None),
        EarlyStopping("val_loss", patience=3, mode="min"),
        LearningRateMonitor(logging_interval="step"),
        Printer(),
    ]
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=DDPStrategy(find_unused_parameters=False),
        precision="bf16-mixed",
        max_epochs=2,
        max_time=timedelta(minutes=5),
        limit_val_batches=0.5,
        gradient_clip_val=1.0,
        gradient_clip_algorithm="norm",
        accumulate_grad_batches=2,
        logger=[CSVLogger(folder), TensorBoardLogger(folder)],
        callbacks=callbacks,
        default_root_dir=folder,
        deterministic="warn",
    )
    model, data = Classifier(lr=0.01), Numbers()
    trainer.fit(model, datamodule=data, ckpt_path="auto")
    results = trainer.test(model, data.test_dataloader())
    best = trainer.checkpoint_callback
    if isinstance(best, ModelCheckpoint) and best.best_model_path:
        model = Classifier.load_from_checkpoint(best.best_model_path, map_location="cpu", lr=0.1)
    classes: list[Tensor] = trainer.predict(model, datamodule=data)
    trainer.predict(model, datamodule=data, return_predictions=False)
    trainer.save_checkpoint(folder / "end.ckpt", format="file")
    trainer.max_epochs = 3
    print(torch.cat(classes).shape, model.freeze().lr, trainer.world_size, trainer.log_dir)
    return results[0]["test_loss"] + sum(metrics["val_loss"] for metrics in trainer.validate(model, datamodule=data))


if __name__ == "__main__":
    print(main(Path("runs")))
