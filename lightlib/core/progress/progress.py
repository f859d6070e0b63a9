"""Progress: the counters of a run, which are saved in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(slots=True)
class Progress:
    """The position of a training run.

    Attributes:
        epoch: Completed epochs; also the index of the running epoch.
        epoch_batch: Batches done in this epoch.
        batch: Batches done in total.
        step: Batches in which an optimizer stepped, however many optimizers there are: Lightning's `global_step`.
        validated: The value of `batch` when validation last ended, so that a resumed run does not repeat it.
        begun: 1 after `on_train_epoch_start` of the running epoch, which a resumed run does not call again; 2 after its
            `on_train_epoch_end`, when the run ended within the epoch.
        more: Optimizer steps beyond the first of each batch, where every optimizer's are counted, as Lightning does.
        ahead: 1 while `more` counts the first step of the running batch as well.
        shift: What `current_epoch` adds to `epoch`: 0, but where Lightning's counter is shown that has another value.
    """

    epoch: int = 0
    epoch_batch: int = 0
    batch: int = 0
    step: int = 0
    validated: int = 0
    begun: int = 0
    more: int = 0
    ahead: int = 0
    shift: int = 0

    def end_batch(self, stepped: bool) -> None:
        self.epoch_batch += 1
        self.batch += 1
        self.step += stepped
        self.more -= self.ahead
        self.ahead = 0

    def count_step(self, *_: Any) -> None:
        """Count a step of an optimizer at once; registered as a hook of optimizers."""
        self.more += 1
        self.ahead = 1

    @contextmanager
    def counting_ahead(self) -> Iterator[None]:
        """Count the step of the running batch before its end."""
        self.count_step()
        try:
            yield
        finally:
            self.more, self.ahead = self.more - 1, 0

    def note_epoch_start(self) -> None:
        """Note that `on_train_epoch_start` of the running epoch has been called."""
        self.begun = 1

    def note_epoch_end(self) -> None:
        """Note that `on_train_epoch_end` of the running epoch has been called."""
        self.begun = 2

    @property
    def epochs_begun(self) -> int:
        """Epochs up to now, with the running one."""
        return self.epoch + bool(self.begun)

    @property
    def is_within_epoch(self) -> bool:
        """Whether `on_train_epoch_end` of the running epoch is still to be called."""
        return self.begun == 1

    @contextmanager
    def counting_batch(self, stepped: bool) -> Iterator[None]:
        """Count the running batch as done."""
        before = asdict(self)
        self.end_batch(stepped)
        try:
            yield
        finally:
            self.load_state_dict(before)

    def end_epoch(self) -> None:
        self.epoch += 1
        self.begin_epoch_again()

    def end_validation(self) -> None:
        self.validated = self.batch

    @contextmanager
    def at_epoch(self, epoch: int) -> Iterator[None]:
        before, self.epoch = self.epoch, epoch
        try:
            yield
        finally:
            self.epoch = before

    def enter_epoch(self) -> None:
        """Show the running epoch."""
        self.shift = 0

    def leave_epoch(self) -> None:
        """Show an epoch that training ended within as completed."""
        self.shift = int(self.epoch_batch > 0)

    @contextmanager
    def before_epoch_end(self) -> Iterator[None]:
        """Show the epoch that has just been completed as the running one."""
        self.shift = -int(self.epoch > 0 and not self.begun)
        try:
            yield
        finally:
            self.shift = 0

    def move_to_batch(self, batch: int) -> None:
        self.epoch_batch = batch

    def begin_epoch_again(self) -> None:
        self.epoch_batch = self.begun = 0

    def reset(self) -> None:
        self.load_state_dict(Progress().state_dict())

    def state_dict(self) -> dict[str, int]:
        """Return the counters between two batches; `more` only if there are such steps."""
        counters = {name: value for name, value in asdict(self).items() if name not in ("ahead", "shift")}
        return {name: value for name, value in counters.items() if value or name != "more"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for field in fields(self):
            setattr(self, field.name, int({"more": 0, "ahead": 0, "shift": 0, **state}[field.name]))
