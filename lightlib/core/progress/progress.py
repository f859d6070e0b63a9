"""Progress: the counters of a run, which are saved in checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["Progress"]


@dataclass(slots=True)
class Progress:
    """Where a training run is.

    Attributes:
        epoch: Epochs completed; the index of the epoch that is running.
        epoch_batch: Batches done in this epoch.
        batch: Batches done in all.
        step: Batches in which an optimizer stepped, however many optimizers there are: Lightning's `global_step`.
        validated: The value of `batch` when validation last ended, so that no validation runs twice after a resume.
        begun: 1 after `on_train_epoch_start` of the running epoch, which is not called again after a resume either.
    """

    epoch: int = 0
    epoch_batch: int = 0
    batch: int = 0
    step: int = 0
    validated: int = 0
    begun: int = 0

    def end_batch(self, stepped: bool) -> None:
        self.epoch_batch += 1
        self.batch += 1
        self.step += stepped

    def end_epoch(self) -> None:
        self.epoch += 1
        self.begin_epoch_again()

    def end_validation(self) -> None:
        self.validated = self.batch

    def move_to_batch(self, batch: int) -> None:
        """Go to this batch of the running epoch."""
        self.epoch_batch = batch

    def begin_epoch_again(self) -> None:
        self.epoch_batch = self.begun = 0

    def reset(self) -> None:
        """Begin from nothing."""
        self.load_state_dict(Progress().state_dict())

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        earlier = {"begun": state["epoch_batch"] > 0}  # what files of earlier versions do not say
        for field in fields(self):
            setattr(self, field.name, int({**earlier, **state}[field.name]))
