"""RecordsCheck: warns if the training dataset has another number of records than the experiment file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.experiment.messages import Messages

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class RecordsCheck(Callback):
    """Compares `records_per_epoch` with the training dataset when training starts.

    The warning is in the log of the trial, and the worker prints it once. There is none for data without a length, or
    in several loaders.

    Args:
        records: `records_per_epoch` of the experiment file.
        messages: To the worker; None on ranks other than 0.
    """

    def __init__(self, records: int, messages: Messages | None) -> None:
        self._records, self._messages = records, messages

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        sizes = _lengths(trainer.train_dataloader, trainer.world_size)
        if self._messages is None or not sizes or self._records in sizes:
            return
        text = (
            f"'records_per_epoch' is {self._records:,}, and the training dataset has {sizes[0]:,} records. Lengths in "
            f"epochs count {self._records:,} records. Expected: the length of the dataset. "
            f"Fix: records_per_epoch: {sizes[0]}; without the key, an epoch is a pass over the dataset."
        )
        report.warn(text)
        self._messages.send("warned", text=text)


def _lengths(loader: Any, ranks: int) -> list[int]:
    """Return the lengths of a loader's dataset and, on one rank, of its sampler; empty if they are not known."""
    sources = [getattr(loader, "dataset", None), getattr(loader, "sampler", None) if ranks == 1 else None]
    lengths = []
    for source in sources:
        try:
            lengths.append(len(source))  # type: ignore[arg-type]  # else TypeError
        except (TypeError, NotImplementedError):
            continue
    return lengths
