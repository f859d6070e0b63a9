"""ColumnRows: the rows of a rich progress bar, drawn by the columns of the user."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.progress.text import Moment, metric_texts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType  # optional: rich


def default_columns(bar: str, finished: str, pulse: str) -> list[Any]:
    """Return columns for the title, the bar in these styles, the batches, the time and the speed."""
    from rich import progress  # optional: rich

    return [
        progress.TextColumn("{task.description}"),
        progress.BarColumn(complete_style=bar, finished_style=finished, pulse_style=pulse),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[rate]}"),
    ]


class ColumnRows:
    """One task of rich for each stage; its field `metrics` is shown behind the columns.

    Args:
        columns: Those of `configure_columns`.
        console: Where the rows are drawn.
    """

    def __init__(self, columns: Sequence[Any], console: Console) -> None:
        from rich.progress import Progress, TextColumn  # optional: rich

        self._progress = Progress(*columns, TextColumn("{task.fields[metrics]}"), console=console, auto_refresh=False)
        self._tasks: dict[str, Any] = {}

    def table(self, moments: Mapping[str, Moment]) -> RenderableType:
        """Return the rows of these stages."""
        for stage in self._tasks.keys() - moments.keys():
            self._progress.remove_task(self._tasks.pop(stage))
        for stage, moment in moments.items():
            rate = "" if moment.rate is None else f"{moment.rate:.2f}it/s"
            words: dict[str, Any] = {"metrics": " ".join(metric_texts(moment)), "rate": rate}
            if stage not in self._tasks:
                self._tasks[stage] = self._progress.add_task(moment.title, total=None, **words)
            total = None if moment.total == math.inf else float(moment.total)
            self._progress.update(
                self._tasks[stage], description=moment.title, total=total, completed=moment.batch, **words
            )
        return self._progress.get_renderable()
