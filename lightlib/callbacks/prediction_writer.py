"""BasePredictionWriter: base of callbacks that write predictions after batches, epochs, or both."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from lightlib.callbacks.callback import Callback
from lightlib.errors import check_word

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

__all__ = ["BasePredictionWriter", "WriteInterval"]


class WriteInterval(str, Enum):
    """When predictions are written."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    @property
    def on_batch(self) -> bool:
        """Whether they are written after each batch."""
        return self in (self.BATCH, self.BATCH_AND_EPOCH)

    @property
    def on_epoch(self) -> bool:
        """Whether they are written after each epoch."""
        return self in (self.EPOCH, self.BATCH_AND_EPOCH)


class BasePredictionWriter(Callback):
    """Base of callbacks that write predictions; a subclass overrides one or both of the two methods.

    With several processes each writes the predictions of the samples that it read; use `trainer.global_rank` in the
    names of files. The numbers of samples are the indices that the loader's sampler drew, so their places in the data
    set, also when it shuffles. They are None for a stream, a loader without a batch sampler, one with an `__iter__` of
    its own, one with ``in_order=False``, and loaders that are read together. ``predict(return_predictions=False)``
    keeps no predictions in memory; then there are none to write after an epoch.

    Args:
        write_interval: ``"batch"``, ``"epoch"`` or ``"batch_and_epoch"``. Default: ``"batch"``.

    Raises:
        MisconfigurationException: It is none of these.

    Example:
        >>> class Counts(BasePredictionWriter):
        ...     def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, *batch):
        ...         print(len(prediction))
        >>> Counts("batch").interval.on_epoch
        False
    """

    def __init__(self, write_interval: Literal["batch", "epoch", "batch_and_epoch"] = "batch") -> None:
        super().__init__()
        values = [interval.value for interval in WriteInterval]
        self.interval = WriteInterval(check_word(type(self).__name__, "write_interval", write_interval, values))

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write the prediction of one batch.

        Args:
            trainer: The running Trainer.
            pl_module: The module.
            prediction: The output of `predict_step`.
            batch_indices: The numbers of its samples in the data set; None where they are unknown.
            batch: The batch.
            batch_idx: Its number on this process.
            dataloader_idx: The number of its loader.
        """
        raise NotImplementedError

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: Module, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write all predictions of this process.

        Args:
            trainer: The running Trainer.
            pl_module: The module.
            predictions: The outputs of `predict_step` by batch; with several loaders a list for each.
            batch_indices: The numbers of the samples, by loader and batch; None for a loader where they are unknown.
        """
        raise NotImplementedError

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Call `write_on_batch_end` if the interval includes batches."""
        if self.interval.on_batch:
            indices = _noted(trainer).present
            self.write_on_batch_end(trainer, pl_module, outputs, indices, batch, batch_idx, dataloader_idx)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Call `write_on_epoch_end` if the interval includes epochs."""
        if self.interval.on_epoch:
            assert trainer.run is not None
            outputs: list[Any] = trainer.run.evaluations.outputs
            indices = _noted(trainer).batches
            self.write_on_epoch_end(trainer, pl_module, outputs[0] if len(outputs) == 1 else outputs, indices)


def _noted(trainer: Trainer) -> Any:
    """Return the `lightlib.data.noted_indices.NotedIndices` of the running prediction."""
    assert trainer.run is not None
    return trainer.run.evaluations.loaded["predict"].noted
