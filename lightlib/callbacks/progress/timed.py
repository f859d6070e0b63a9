"""TimedProgressBar: draws by time, so that a batch costs one look at the clock."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.monitored import endings_of
from lightlib.callbacks.progress.base import ProgressBar
from lightlib.callbacks.progress.remaining_time import Pace, Validations, limit, remaining_in_run
from lightlib.callbacks.progress.text import Moment

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class TimedProgressBar(ProgressBar, ABC):
    """A bar that is drawn by time: a batch costs one look at the clock, whatever a drawing costs.

    Attributes:
        refresh_rate: How often the bar is drawn, in a unit of its own; 0 switches it off.
        seconds_between_draws: The least time between two drawings.
        seconds_before_first: The time from the first batch of a run to the first drawing.
        seconds_before_nested: The time from the start of a validation within training to its first drawing.
        leave: Whether a line is left for every finished epoch.
    """

    refresh_rate: float = 1
    seconds_between_draws: float = 0.1
    seconds_before_first: float = 0.0
    seconds_before_nested: float = 0.0
    leave: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._stages: list[str] = []
        self._opened: dict[str, float] = {}
        self._paces: dict[str, Pace] = {}
        self._due = math.inf
        self._validations = Validations()
        self._next_draw = self._next_draw_of_training = 0.0
        self._epoch_end: tuple[int, int] | None = None
        self._unfinished = False
        self._batch_idx = -1

    @property
    def is_enabled(self) -> bool:
        return self._enabled and self.refresh_rate > 0

    @abstractmethod
    def draw(self, stage: str, moment: Moment) -> None:
        """Show `moment` of the stage ``train``, ``sanity_check``, ``validate``, ``test`` or ``predict``."""

    def open(self, stage: str) -> None:
        """A stage begins."""

    def close(self, stage: str, moment: Moment | None) -> None:
        """A stage ends: show its last state and leave it; without one, remove the bar."""

    def stop(self) -> None:
        """The run is over or was interrupted: restore the terminal, and leave the bar as it is shown now."""

    def leave_epoch(self, moment: Moment) -> None:
        """An epoch is over, and `leave` is true: leave a line."""

    def disable(self) -> None:
        super().disable()
        self._due = math.inf
        self._show(self.stop)

    def enable(self) -> None:
        super().enable()
        self._due = 0.0 if self._stages else math.inf

    # training
    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._epoch_end, self._unfinished = None, False
        self._validations = Validations(self._validations.seconds_per_batch)
        self._begin("train")
        self._draw_before_batches(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._finish_epoch(trainer, pl_module)
        self._epoch_end = None
        self._draw_before_batches(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if monotonic() >= self._due:
            self._train_due(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._epoch_end, self._unfinished = (trainer.current_epoch, trainer.progress.epoch_batch), True

    def on_fit_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._finish_epoch(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._finish_epoch(trainer, pl_module)
        done = self.is_enabled and "train" in self._paces and not (self.leave and self._epoch_end)
        self._end("train", self._train_moment(trainer, pl_module, monotonic()) if done else None)

    # evaluation
    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        stage = "validate" if trainer.state.fn == "fit" else str(trainer.state.fn)
        self._begin("sanity_check" if trainer.sanity_checking else stage)
        self._draw_before_batches(trainer, pl_module)

    on_test_start = on_predict_start = on_validation_start

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._batch_idx, self._loader = batch_idx, dataloader_idx
        if monotonic() >= self._due:
            self._evaluation_due(trainer, pl_module)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._stages:
            return
        stage, now = self._stages[-1], monotonic()
        self._measure_validation(stage, now)
        alone = len(self._stages) == 1 and stage in self._paces and stage != "sanity_check"
        if alone:
            self._paces[stage].update(now, self._evaluated(stage))
        self._end(stage, self._evaluation_moment(trainer, pl_module, now) if alone and self.is_enabled else None)
        if "train" in self._stages and self.seconds_before_nested:
            self._next_draw = self._next_draw_of_training
        if "train" in self._stages and self.is_enabled:
            self._due = self._next_draw if "train" in self._paces else 0.0
            if "train" in self._paces:
                self._paces["train"].resume(now)

    on_test_end = on_predict_end = on_validation_end

    # the end, whatever happened
    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._stop()

    # when
    def _begin(self, stage: str) -> None:
        now = monotonic()
        if not self._stages:
            self._next_draw = now
        elif "train" in self._paces:
            self._paces["train"].update(now, self.trainer.progress.batch)
        if self._stages and self.seconds_before_nested:
            self._next_draw_of_training, self._next_draw = self._next_draw, now + self.seconds_before_nested
        self._stages.append(stage)
        self._opened[stage] = now
        self._paces.pop(stage, None)
        batches = [] if stage == "train" else self._batches(stage)
        self._batch_idx, self._loader = -1, next((i for i, number in enumerate(batches) if number), 0)
        self._show(self.open, stage)
        if self.is_enabled:
            self._due = 0.0  # the first batch starts the pace

    def _end(self, stage: str, moment: Moment | None) -> None:
        if stage in self._stages:
            self._stages.remove(stage)
            self._show(self.close, stage, moment)
        if not self._stages:
            self._due = math.inf

    def _stop(self) -> None:
        self._stages.clear()
        self._due = math.inf
        self._show(self.stop)

    def _show(self, show: Callable[..., None], *args: Any) -> None:
        """Call a method that writes; a bar that cannot be written is switched off."""
        if not report.write_output(show, *args):
            super().disable()
            self._due = math.inf

    def _draw_before_batches(self, trainer: Trainer, pl_module: Module) -> None:
        now = monotonic()
        if self.is_enabled and not self.seconds_before_first and self._stages and now >= self._next_draw:
            self._draw_stage(trainer, pl_module, now)
            self._due = 0.0  # the first batch starts the pace

    def _too_early(self, stage: str, now: float, batch: int, step: int = 0) -> bool:
        """Whether nothing is drawn yet. The first batch of a stage starts its pace: the time before it is start-up."""
        if stage not in self._paces:
            self._paces[stage] = Pace(now, batch, step)
            if len(self._stages) == 1 and self.seconds_before_first:
                self._next_draw = now + self.seconds_before_first
        self._due = self._next_draw
        return now < self._next_draw

    def _train_due(self, trainer: Trainer, pl_module: Module) -> None:
        now, batch = monotonic(), trainer.progress.batch
        if self._too_early("train", now, batch, trainer.global_step):
            return
        self._draw_stage(trainer, pl_module, now)

    def _evaluation_due(self, trainer: Trainer, pl_module: Module) -> None:
        now, stage = monotonic(), self._stages[-1]
        done = self._evaluated(stage)
        if self._too_early(stage, now, done):
            return
        self._paces[stage].update(now, done)
        self._draw_stage(trainer, pl_module, now)

    def _draw_stage(self, trainer: Trainer, pl_module: Module, now: float) -> None:
        stage = self._stages[-1]
        moment = self._train_moment if stage == "train" else self._evaluation_moment
        self._show(self.draw, stage, moment(trainer, pl_module, now))
        self._next_draw = monotonic() + self.seconds_between_draws
        self._due = self._next_draw if self.is_enabled else math.inf

    def _measure_validation(self, stage: str, now: float) -> None:
        if "train" in self._paces and len(self._stages) > 1:
            self._validations.add(now - self._opened[stage])
        elif stage == "sanity_check":
            pace, done = self._paces.get(stage), self._evaluated(stage)
            if pace is not None and done > pace.start_batch:  # the first batch includes what is started for it
                self._validations = Validations(pace.remaining(now, 1, done - pace.start_batch))

    def _finish_epoch(self, trainer: Trainer, pl_module: Module) -> None:
        if self._unfinished and self.leave and self.is_enabled:
            self._show(self.leave_epoch, self._train_moment(trainer, pl_module, monotonic()))
        self._unfinished = False

    # what
    def _train_moment(self, trainer: Trainer, pl_module: Module, now: float) -> Moment:
        epoch, batch = self._epoch_end or (trainer.current_epoch, trainer.progress.epoch_batch)
        epochs, pace = limit(trainer.max_epochs), self._paces.get("train")
        if pace is not None:
            pace.update(now, trainer.progress.batch)
        epochs = epochs if epochs == math.inf else math.ceil(epochs)
        of = "" if epochs == math.inf else f"/{epochs}"
        return Moment(
            title=f"{self.train_description} {int(min(epoch + 1, epochs))}{of}",
            batch=batch,
            total=self.total_train_batches,
            elapsed=now - self._opened["train"],
            remaining=None if pace is None else remaining_in_run(trainer, pace, self._validations, now),
            rate=None if pace is None else pace.rate,
            data_share=min(1.0, trainer.data_wait / trainer.elapsed) if pace and trainer.elapsed > 0 else None,
            metrics=self.get_metrics(trainer, pl_module),
        )

    def _evaluation_moment(self, trainer: Trainer, pl_module: Module, now: float) -> Moment:
        stage = self._stages[-1]
        batches, pace, done = self._batches(stage), self._paces.get(stage), self._evaluated(stage)
        left = math.inf if pace is None else pace.remaining(now, sum(batches) - done, done - pace.start_batch)
        loader = f" {self._loader_name(trainer)} {self._loader + 1}/{len(batches)}" if len(batches) > 1 else ""
        return Moment(
            title=self._description(stage) + loader,
            batch=self._batch_idx + 1,
            total=batches[self._loader],
            elapsed=now - self._opened[stage],
            remaining=None if math.isinf(left) or math.isnan(left) else max(0.0, left),
            rate=None if pace is None else pace.rate,
            metrics=self.get_metrics(trainer, pl_module) if len(self._stages) == 1 else {},
        )

    def _loader_name(self, trainer: Trainer) -> str:
        ending = dict(enumerate(endings_of(trainer))).get(self._loader, "")
        return "loader" if not ending or ending.startswith("/dataloader_idx_") else ending[1:]

    def _description(self, stage: str) -> str:
        return {
            "sanity_check": self.sanity_check_description,
            "train": self.train_description,
            "validate": self.validation_description,
            "test": self.test_description,
            "predict": self.predict_description,
        }[stage]

    def _batches(self, stage: str) -> Sequence[int | float]:
        trainer = self.trainer
        of: dict[str, Sequence[int | float]] = {
            "test": trainer.num_test_batches,
            "predict": trainer.num_predict_batches,
        }
        return of.get(stage, self._val_batches)

    def _evaluated(self, stage: str) -> int:
        """Batches done of all loaders."""
        before = sum(self._batches(stage)[: self._loader])
        return self._batch_idx + 1 + (0 if before == math.inf else int(before))
