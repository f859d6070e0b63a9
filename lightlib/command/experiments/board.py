"""Board: the state of an experiment in a terminal, redrawn in place while it runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lightlib.callbacks.log_handlers import LogHandlers
from lightlib.callbacks.progress.text import clock
from lightlib.callbacks.rich_console import console
from lightlib.experiment.experiment_plan import plan_of
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.messages import Messages
from lightlib.experiment.searchers.custom import Custom
from lightlib.experiment.searchers.preview import Preview
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.results import Results, Trial, counted, described

EVENTS = 5  # the last ones that are shown
_PAUSE = 0.5  # seconds between two drawings
_SHARE = 0.1  # of the time at most that drawing may take
_LEAST = 0.01  # of an experiment, from which on the remaining time is shown


class Pace:
    """The batches, metrics and speed of an attempt that runs, from its messages.

    Args:
        folder: Of the attempt.
        metric: Of the searcher.

    Attributes:
        step: The batches trained; None before the first message.
        value: The newest metric; None before the first validation.
        slots: That it has.
        rate: Batches per second since the first message; None before the second.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self._messages, self._metric = Messages(folder), metric
        self._first: tuple[float, float] | None = None
        self.step: float | None = None
        self.value: float | None = None
        self.rate: float | None = None
        self.slots = ""

    def look(self, now: float) -> None:
        """Read the new messages.

        Args:
            now: In seconds, on any clock.
        """
        for message in self._messages.new():
            self.slots = message.get("names", self.slots)
            self.step = message.get("step", self.step)
            self.value = message.get("metrics", {}).get(self._metric, self.value)
        if self.step is None:
            return
        if self._first is None:
            self._first = now, self.step
        elif now > self._first[0] and self.step > self._first[1]:
            self.rate = (self.step - self._first[1]) / (now - self._first[0])


class Board:
    """The state of an experiment, drawn for a terminal.

    Args:
        folder: Of the experiment.
        config: It.
        ledger: Of the experiment.
        events: The newest events, last; they are added while it is shown. Default: none.
    """

    def __init__(
        self, folder: ExperimentFolder, config: ExperimentConfig, ledger: Ledger, events: Collection[str] = ()
    ) -> None:
        self._folder, self._config, self._ledger = folder, config, ledger
        self._plan: Preview | None = plan_of(config) if config.searcher.name else None
        self._paces: dict[tuple[int, int], Pace] = {}
        self._events = events
        self._begun: tuple[float, float] | None = None  # when this board was first drawn, and what was done then

    def draw(self, now: float) -> RenderableType:
        """Return the present state.

        Args:
            now: In seconds, on any clock.
        """
        results = Results(self._folder, self._config, self._ledger)
        parts: list[RenderableType] = [self._head(results, now)]
        running = [trial for trial in results.trials if trial.state == "running"]
        if running:
            parts += [Text(""), self._table(results, running, now)]
        events = [*self._events]
        if events:
            parts += [Text(""), *(Text(event, style="dim", no_wrap=True, overflow="ellipsis") for event in events)]
        return Group(*parts)

    def _head(self, results: Results, now: float) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(self._config.name, "bold")
        text.append(f"  {self._config.searcher.name or self._config.searcher.class_path}, {results.state}\n")
        planned = f"{len(results.trials):,} of {self._plan.trials:,} trials: " if self._plan else ""
        text.append(f"{planned}{counted(results)}")
        done = self._done(results)
        begun, before = self._begun = self._begun or (now, done)
        if done:
            text.append(f"  {done:.0%}", "bold")
        if done - before >= _LEAST and done < 1:
            remaining = (now - begun) * (1 - done) / (done - before)
            text.append(f"  {clock(remaining)} left", "cyan")
        best = results.best
        if best is not None:
            text.append(f"\nbest: trial {best.number}, {results.metric} {best.metric:.6g}", "green")
            text.append(f"  {described(best.hparams)}", "dim")
        return text

    def _done(self, results: Results) -> float:
        """Return the share of the experiment that is done, from 0 to 1."""
        if isinstance(results.source, Custom):
            return results.source.progress()
        if self._plan is None or not results.trials:
            return 0.0
        ended = [trial.state not in ("waiting", "running", "paused") for trial in results.trials]
        if results.trials[0].bracket is None:
            return min(sum(ended) / self._plan.trials, 1.0)
        if all(ended) and len(ended) >= self._plan.trials:
            return 1.0
        lengths = [bracket.lengths for bracket in self._plan.brackets]
        trained = sum(lengths[trial.bracket or 0][trial.rungs - 1] for trial in results.trials if trial.rungs)
        return min(trained / self._plan.units_simulated, 0.99)

    def _table(self, results: Results, running: list[Trial], now: float) -> Table:
        has_rungs = running[0].bracket is not None
        table = Table(box=None, padding=(0, 2, 0, 0), expand=False, header_style="bold")
        for name in ("trial", "slots", *(["rung"] if has_rungs else []), "batches", results.metric, "per second"):
            table.add_column(name, justify="left" if name == "slots" else "right", no_wrap=True)
        table.add_column("hyperparameters")  # the only one that becomes narrower
        keys = {(trial.number, trial.attempts) for trial in running}
        self._paces = {key: pace for key, pace in self._paces.items() if key in keys}
        for trial in running:
            folder = self._folder.attempt(trial.number, trial.attempts - 1)
            pace = self._paces.setdefault((trial.number, trial.attempts), Pace(folder, results.metric))
            pace.look(now)
            again = f" ({trial.attempts - 1})" if trial.attempts > 1 else ""
            table.add_row(
                f"{trial.number}{again}",
                pace.slots,
                *([f"{trial.rungs + 1}/{self._rungs(trial)}"] if has_rungs else []),
                "" if pace.step is None else f"{pace.step:,.0f}",
                "" if pace.value is None else f"{pace.value:.5g}",
                "" if pace.rate is None else f"{pace.rate:.3g}",
                Text(described(trial.hparams), no_wrap=True, overflow="ellipsis"),
            )
        return table

    def _rungs(self, trial: Trial) -> int:
        return len(self._plan.brackets[trial.bracket or 0].lengths) if self._plan else 0


def is_possible() -> bool:
    """Whether standard output is a terminal in which lines can be redrawn."""
    here = console()
    return here.is_terminal and not here.is_dumb_terminal


@contextmanager
def shown(board: Board, transient: bool = False) -> Iterator[None]:
    """Show a board on standard output until the block ends.

    Args:
        board: It is drawn by a thread of its own.
        transient: Whether it disappears at the end. Default: its last drawing stays.
    """
    live = Live(console=console(), auto_refresh=False, redirect_stderr=sys.stderr.isatty(), transient=transient)
    handlers, ended = LogHandlers(), threading.Event()

    def draw() -> None:
        pause = 0.0
        while not ended.wait(pause):
            begun = time.monotonic()
            with suppress(OSError):  # the storage does not answer: the last drawing stays
                live.update(board.draw(begun), refresh=True)
            pause = max(_PAUSE, (time.monotonic() - begun) / _SHARE)

    before = sys.stdout, sys.stderr
    with live:
        for old, new in zip(before, (sys.stdout, sys.stderr), strict=True):
            if new is not old:
                handlers.redirect(old, new)
        drawing = threading.Thread(target=draw, name="lightlib board", daemon=True)
        drawing.start()
        try:
            yield
        finally:
            ended.set()
            drawing.join()
            handlers.restore()
            with suppress(OSError):
                live.update(board.draw(time.monotonic()), refresh=True)
