"""RunIdentity: which run this is, which checkpoint it continues, and how many it has written."""

from __future__ import annotations

from dataclasses import dataclass

from lightlib.checkpoint.storage.label import Label
from lightlib.core.progress.progress import Progress

__all__ = ["RunIdentity"]


@dataclass(slots=True)
class RunIdentity:
    """Which run this is.

    Attributes:
        run_id: The same for a run and those that continue it; empty before the first fit.
        continues: Whether it continues the run that wrote a checkpoint, and is no new one that begins there.
        by_path: Whether the user named that checkpoint by its path.
    """

    run_id: str = ""
    serial: int = 0
    continues: bool = False
    label: Label | None = None
    by_path: bool = False

    def next_label(self, at: Progress, weights_only: bool) -> Label:
        self.serial += 1
        return Label(self.run_id, self.serial, at.epoch, at.batch, at.step, weights_only)
