"""The hooks that a module or data module may define, with their signatures and defaults."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightlib.accelerators.lookup import of
from lightlib.tree import to_device


class ModelHooks:
    """Hooks around the steps of a module. ``docs/lifecycle.md`` shows when each fires."""

    def on_fit_start(self) -> None:
        """Called when `fit` begins, after the optimizers exist."""

    def on_fit_end(self) -> None:
        """Called when `fit` ends."""

    def on_train_start(self) -> None:
        """Called before the first training epoch."""

    def on_train_end(self) -> None:
        """Called after the last training epoch."""

    def on_train_epoch_start(self) -> None:
        """Called before the first batch of an epoch."""

    def on_train_epoch_end(self) -> None:
        """Called after the last batch of an epoch and its validation."""

    def on_fit_epoch_end(self) -> None:
        """Called when training, validation, logging and schedules of one epoch are all done."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Called before a training batch. Return -1 to skip the rest of the epoch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after a training batch. `outputs` is the result of `training_step`, as a dict, detached."""

    def on_substep_end(self) -> None:
        """Called after a batch in which no optimizer stepped: its gradients are kept for a later one."""

    def on_accumulation_end(self) -> None:
        """Called after the optimizer step at the end of an accumulation window."""

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """Called before the gradients are set to None."""

    def on_before_backward(self, loss: Tensor) -> None:
        """Called before `loss.backward()`, with the scaled loss."""

    def on_after_backward(self) -> None:
        """Called after `loss.backward()`."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Called before `optimizer.step()`, with unscaled gradients, before they are clipped."""

    def on_validation_start(self) -> None:
        """Called when validation begins."""

    def on_validation_end(self) -> None:
        """Called when validation ends."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first validation batch."""

    def on_validation_epoch_end(self) -> None:
        """Called after the last validation batch; the place to log metrics of the complete epoch."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before a validation batch."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after a validation batch, with the result of `validation_step`."""

    def on_test_start(self) -> None:
        """Called when the test begins."""

    def on_test_end(self) -> None:
        """Called when the test ends."""

    def on_test_epoch_start(self) -> None:
        """Called before the first test batch."""

    def on_test_epoch_end(self) -> None:
        """Called after the last test batch."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before a test batch."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after a test batch, with the result of `test_step`."""

    def on_predict_start(self) -> None:
        """Called when prediction begins."""

    def on_predict_end(self) -> None:
        """Called when prediction ends."""

    def on_predict_epoch_start(self) -> None:
        """Called before the first batch to predict."""

    def on_predict_epoch_end(self) -> None:
        """Called after the last batch to predict."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before a batch to predict."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after a batch to predict, with the result of `predict_step`."""

    def on_validation_model_eval(self) -> None:
        """Called to put the module into evaluation mode for validation. Default: `self.eval()`."""
        self.eval()  # type: ignore[attr-defined]

    def on_validation_model_train(self) -> None:
        """Called to restore the module's mode after validation. Default: every submodule gets its previous mode.

        An override that calls this method puts all of them into training mode.
        """
        self.train()  # type: ignore[attr-defined]

    def on_validation_model_zero_grad(self) -> None:
        """Called before a validation within `fit`, between accumulation windows. Default: `self.zero_grad()`."""
        self.zero_grad()  # type: ignore[attr-defined]

    def on_test_model_eval(self) -> None:
        """Called to put the module into evaluation mode for the test. Default: `self.eval()`."""
        self.eval()  # type: ignore[attr-defined]

    def on_test_model_train(self) -> None:
        """Called to restore the module's mode after the test, like `on_validation_model_train`."""
        self.train()  # type: ignore[attr-defined]

    def on_predict_model_eval(self) -> None:
        """Called to put the module into evaluation mode for prediction. Default: `self.eval()`."""
        self.eval()  # type: ignore[attr-defined]

    def on_log(self, metrics: dict[str, float]) -> None:
        """Called with the same numbers whenever metrics are passed to the loggers."""

    def on_checkpoint_written(self, path: str) -> None:
        """Called when a checkpoint file is complete under its final name."""

    def on_checkpoint_uploaded(self, uri: str) -> None:
        """Called after `on_checkpoint_written` if the checkpoint is in a remote store."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with the content of a checkpoint before it is written; may add to it."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with the content of a checkpoint before its weights are loaded."""


class DataHooks:
    """Hooks that provide data and move it to the device, for modules and data modules."""

    prepare_data_per_node: bool = True
    allow_zero_length_dataloader_with_multiple_devices: bool = False

    def prepare_data(self) -> None:
        """Download or build data. Called in one process of each machine; do not assign to `self` here.

        With ``self.prepare_data_per_node = False`` it is called in one process altogether, for machines that share a
        disk.
        """

    def setup(self, stage: str) -> None:
        """Called in every process when a stage begins.

        Args:
            stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``, as a member of `TrainerFn`.
        """

    def teardown(self, stage: str) -> None:
        """Called in every process when a stage ends, also after an exception."""

    def train_dataloader(self) -> Any:
        """Return the training loader: a DataLoader, any iterable of batches, a Dataset, or a collection of these."""
        raise NotImplementedError

    def val_dataloader(self) -> Any:
        """Return the validation loader or several."""
        raise NotImplementedError

    def test_dataloader(self) -> Any:
        """Return the test loader or several."""
        raise NotImplementedError

    def predict_dataloader(self) -> Any:
        """Return the prediction loader or several."""
        raise NotImplementedError

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch before it is moved to the device."""
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch. Default: everything with a method `to`, in any nesting."""
        return to_device(batch, device, of(device).has_streams)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch on the device."""
        return batch
