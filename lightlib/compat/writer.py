"""BasePredictionWriter: a callback that writes predictions after batches, epochs, or both."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from lightlib.callbacks.callback import Callback
from lightlib.compat.internals.loops import PredictionLoop
from lightlib.compat.internals.sampled import indices_of_batch
from lightlib.errors import MisconfigurationException

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

    Args:
        write_interval: ``"batch"``, ``"epoch"`` or ``"batch_and_epoch"``.

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
        values = [interval.value for interval in WriteInterval]
        if write_interval not in values:
            raise MisconfigurationException(
                f"{type(self).__name__}(write_interval={write_interval!r}).",
                expected=f"one of {', '.join(map(repr, values))}.",
                fix='write_interval="batch"',
            )
        self.interval = WriteInterval(write_interval)

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
        """Write the prediction of one batch; `batch_indices` are the numbers of its samples."""
        raise NotImplementedError

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: Module, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write all predictions; `batch_indices` are the numbers of the samples, per loader and batch."""
        raise NotImplementedError

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Call `write_on_batch_end` if the interval includes batches."""
        if self.interval.on_batch:
            data = PredictionLoop(trainer).data()
            indices = indices_of_batch(data, dataloader_idx, batch_idx)
            self.write_on_batch_end(trainer, pl_module, outputs, indices, batch, batch_idx, dataloader_idx)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Call `write_on_epoch_end` if the interval includes epochs."""
        if self.interval.on_epoch:
            loop = PredictionLoop(trainer)
            data = loop.data()
            indices = [
                [indices_of_batch(data, loader, number) for number in range(int(data.num_batches[loader]))]
                for loader in range(data.num_loaders)
            ]
            self.write_on_epoch_end(trainer, pl_module, loop.predictions, indices)
