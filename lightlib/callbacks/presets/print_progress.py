"""PrintProgress: prints when training, its epochs and evaluations begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib.callbacks.callback import Callback

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class PrintProgress(Callback):
    """Prints a line when training begins and ends, and when an epoch, a test or a prediction begins, on rank zero.

    The lines appear above a progress bar.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[PrintProgress], logger=False, enable_checkpointing=False)
    """

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        trainer.print("Training begins.")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        trainer.print(f"Training epoch {trainer.current_epoch + 1} begins.")

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        trainer.print("Training ends.")

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        trainer.print("Test begins.")

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        trainer.print("Prediction begins.")
