"""Lightning's columns of the rich progress bar and its tqdm, for projects that build their own bars."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID  # optional: rich
from rich.text import Text  # optional: rich

__all__ = [
    "BatchesProcessedColumn",
    "CustomBarColumn",
    "CustomInfiniteTask",
    "CustomProgress",
    "CustomTimeColumn",
    "MetricsTextColumn",
    "ProcessingSpeedColumn",
]


def _infinite(total: float | None) -> bool:
    return total is None or total == float("inf")


class CustomInfiniteTask(Task):
    """A task that has no end."""

    @property
    def time_remaining(self) -> float | None:
        """Unknown."""
        return None


class CustomProgress(Progress):
    """A progress display that also takes an infinite total."""

    def add_task(
        self,
        description: str,
        start: bool = True,
        total: float | None = 100.0,
        completed: int = 0,
        visible: bool = True,
        **fields: Any,
    ) -> TaskID:
        """Add a task; one with an infinite total shows a bar that pulses."""
        return super().add_task(description, start, None if _infinite(total) else total, completed, visible, **fields)


class CustomBarColumn(BarColumn):
    """A bar that pulses when the total is unknown."""


class _Styled(ProgressColumn):
    def __init__(self, style: Any) -> None:
        self.style = style
        super().__init__()


class CustomTimeColumn(_Styled):
    """The time that has passed, and the time that is left."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return the text of a task."""
        shown = (task.finished_time if task.finished else task.elapsed, task.time_remaining)
        words = ["-:--:--" if seconds is None else str(timedelta(seconds=int(seconds))) for seconds in shown]
        return Text(" • ".join(words), style=self.style)


class BatchesProcessedColumn(_Styled):
    """The batches done and all batches."""

    def render(self, task: Task) -> Text:
        """Return the text of a task."""
        return Text(f"{int(task.completed)}/{'--' if _infinite(task.total) else task.total}", style=self.style)


class ProcessingSpeedColumn(_Styled):
    """The batches per second."""

    def render(self, task: Task) -> Text:
        """Return the text of a task."""
        return Text(f"{task.speed or 0.0:>.2f}it/s", style=self.style)


class MetricsTextColumn(ProgressColumn):
    """The metrics of the run, next to the training bar.

    Args:
        trainer: Whose run it is.
        style: A style of rich.
        text_delimiter: Between two metrics.
        metrics_format: How numbers are written.
    """

    def __init__(self, trainer: Any, style: Any, text_delimiter: str, metrics_format: str) -> None:
        self._trainer = trainer
        self._metrics: Mapping[Any, Any] = {}
        self._style = style
        self._text_delimiter = text_delimiter
        self._metrics_format = metrics_format
        super().__init__()

    def update(self, metrics: Mapping[Any, Any]) -> None:
        """Show other metrics from now on."""
        self._metrics = metrics

    def render(self, task: Task) -> Text:
        """Return the metrics during training, else nothing."""
        if not self._trainer.training or self._trainer.sanity_checking:
            return Text()
        words = [f"{name}: {self._written(value)}" for name, value in self._metrics.items()]
        return Text(self._text_delimiter.join(words), justify="left", style=self._style)

    def _written(self, value: Any) -> str:
        try:
            return value if isinstance(value, str) else f"{value:{self._metrics_format}}"
        except (TypeError, ValueError):
            return str(value)
