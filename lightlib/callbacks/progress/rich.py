"""RichProgressBar: the progress of a run in a terminal, drawn with rich."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.log_handlers import LogHandlers
from lightlib.callbacks.progress.columns import ColumnRows, default_columns
from lightlib.callbacks.progress.text import Moment, count, facts, number
from lightlib.callbacks.progress.timed import TimedProgressBar
from lightlib.callbacks.rich_console import console
from lightlib.errors import wrong_value

if TYPE_CHECKING:
    from rich.console import Console  # optional: rich
    from rich.live import Live  # optional: rich
    from rich.text import Text  # optional: rich

    from lightlib.core.trainer import Trainer

_NARROWEST_BAR = 5
_Words = list[tuple[str, str]]
_Signs = tuple[str, str, str]  # a full and a half column of the bar, and one that is to come


@dataclass(frozen=True)
class RichProgressBarTheme:
    """Styles of :class:`RichProgressBar`, as rich writes them: ``"bold red"``, ``"#6206E0"``.

    Attributes:
        description: The title: epoch, validation.
        progress_bar: The part of the bar that is done.
        progress_bar_finished: The bar when all is done.
        progress_bar_pulse: The part that is to come, and the bar when the total is unknown.
        batch_progress: The count of batches.
        time: The remaining time.
        processing_speed: Batches per second and the wait for data.
        metrics: Names and values of metrics.
        metrics_text_delimiter: What stands between two metrics.
        metrics_format: How a float is formatted, as in ``".4f"``; empty for a format that fits the value.
    """

    description: str = "bold"
    progress_bar: str = "green"
    progress_bar_finished: str = "green"
    progress_bar_pulse: str = "dim"
    batch_progress: str = ""
    time: str = "cyan"
    processing_speed: str = "dim"
    metrics: str = "italic"
    metrics_text_delimiter: str = " "
    metrics_format: str = ""


class RichProgressBar(TimedProgressBar):
    """Progress in a terminal: one line for the run and one more for a validation, redrawn in place.

    Args:
        refresh_rate: Drawings per second; 0 switches the bar off. Default: 10.
        leave: Leave a line for every finished epoch. Default: False.
        theme: Colours and formats.
        console_kwargs: Arguments of `rich.console.Console`.

    Raises:
        MisconfigurationException: `refresh_rate` is negative.

    Example:
        >>> RichProgressBar(leave=True, theme=RichProgressBarTheme(metrics_format=".5f")).is_enabled
        True
    """

    def __init__(
        self,
        refresh_rate: float = 10,
        leave: bool = False,
        theme: RichProgressBarTheme = RichProgressBarTheme(),
        console_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if refresh_rate < 0:
            raise wrong_value("RichProgressBar", "refresh_rate", refresh_rate, "drawings per second, or 0 for none", 10)
        self.refresh_rate = refresh_rate
        self.seconds_between_draws = 1 / refresh_rate if refresh_rate else math.inf
        self.leave = leave
        self.theme = theme
        self._console_kwargs = console_kwargs or {}
        self._console: Console | None = None
        self._live: Live | None = None
        self._handlers = LogHandlers()
        self._rows: dict[str, Moment] = {}
        self._columns: ColumnRows | None = None  # of a class that overrides `configure_columns`

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Return the columns of `rich.progress` for the bar. An override draws the bar with them, and the metrics."""
        theme = self.theme
        return default_columns(theme.progress_bar, theme.progress_bar_finished, theme.progress_bar_pulse)

    def draw(self, stage: str, moment: Moment) -> None:
        self._rows[stage] = moment
        self._update()

    def close(self, stage: str, moment: Moment | None) -> None:
        if moment is not None:
            self.draw(stage, moment)
        elif self._rows.pop(stage, None) is not None:
            self._update()
        if not self._stages:
            self.stop()

    def stop(self) -> None:
        live, self._live = self._live, None
        has_rows = bool(self._rows)
        self._rows.clear()
        if live is not None:
            self._handlers.restore()
            live.transient = not has_rows
            live.stop()
            if has_rows and not (live.console.is_terminal or live.console.is_jupyter):
                live.console.line()  # rich ends the line in a terminal only

    def leave_epoch(self, moment: Moment) -> None:
        self._rows.pop("train", None)
        live = self._update()
        if self._columns is None:
            live.console.print(self._text([moment], live.console, widest_bar=0))
        else:
            live.console.print(self._columns.table({"train": moment}))

    def _update(self) -> Live:
        if self._live is None:
            self._live = self._start()
        shown: Any = None if self._columns is None else self._columns.table(self._rows)
        if shown is None:
            shown = self._text(list(self._rows.values()), self._live.console)
        self._live.update(shown, refresh=True)
        return self._live

    def _start(self) -> Live:
        from rich.live import Live  # optional: rich

        if self._console is None:
            self._console = console(**self._console_kwargs)
        if type(self).configure_columns is not RichProgressBar.configure_columns:
            self._columns = ColumnRows(self.configure_columns(self.trainer), self._console)
        live = Live(
            console=self._console,
            auto_refresh=False,  # no thread: drawn when a batch ends
            redirect_stderr=sys.stderr.isatty(),
        )
        before = sys.stdout, sys.stderr
        live.start()
        for old, new in zip(before, (sys.stdout, sys.stderr), strict=True):
            if new is not old:  # rich has put a stream in its place that writes above the bar
                self._handlers.redirect(old, new)
        return live

    def __getstate__(self) -> dict[str, Any]:
        """Leave out objects that hold the terminal."""
        return {**self.__dict__, "_live": None, "_console": None, "_columns": None, "_handlers": LogHandlers()}

    def _text(self, moments: list[Moment], console: Console, widest_bar: int = 40) -> Text:
        from rich.text import Text  # optional: rich

        text = Text(no_wrap=True, overflow="crop", end="")
        full, half, rest = ("━", "╸", "━") if console.encoding.startswith("utf") else ("#", "#", "-")
        if console.no_color or console.color_system is None:
            rest = rest.replace("━", " ")  # without colours it looks like the completed part
        for index, moment in enumerate(moments):
            if index:
                text.append("\n")
            self._append(text, moment, console.width - 1, widest_bar, (full, half, rest))
        return text

    def _append(self, text: Text, moment: Moment, width: int, widest_bar: int, signs: _Signs) -> None:
        """Add the line of one stage, wrapped at words."""
        theme = self.theme
        time, *pace = facts(moment)
        words: _Words = [(moment.title, theme.description), (count(moment), theme.batch_progress), (time, theme.time)]
        words += [(word, theme.processing_speed) for word in pace]
        free = width - sum(len(word) + 1 for word, _ in words)
        metrics: _Words = [(f"{name}={self._value(value)}", theme.metrics) for name, value in moment.metrics.items()]
        beside = free - sum(len(word) + len(theme.metrics_text_delimiter) for word, _ in metrics)
        bar = min(widest_bar, beside if beside >= 2 * _NARROWEST_BAR else free)
        column = 0
        for index, (word, style) in enumerate([*words, *metrics]):
            delimiter = theme.metrics_text_delimiter if index > len(words) else " "
            if column and column + len(delimiter) + len(word) > width:
                text.append("\n")
                column = 0
            elif column:
                text.append(delimiter)
                column += len(delimiter)
            text.append(word[:width], style)
            column += len(word)
            if index == 0 and bar >= _NARROWEST_BAR:
                text.append(" ")
                self._append_bar(text, moment, bar, signs)
                column += 1 + bar

    def _append_bar(self, text: Text, moment: Moment, length: int, signs: _Signs) -> None:
        theme, fraction, (full, half, rest) = self.theme, moment.fraction, signs
        if fraction is None:
            text.append(full * length, theme.progress_bar_pulse)
            return
        halves = int(fraction * length * 2)
        done = full * (halves // 2) + half * (halves % 2)
        text.append(done, theme.progress_bar if fraction < 1 else theme.progress_bar_finished)
        text.append(rest * (length - len(done)), theme.progress_bar_pulse)

    def _value(self, value: Any) -> str:
        form = self.theme.metrics_format
        return format(value, form) if form and isinstance(value, float) else number(value)
