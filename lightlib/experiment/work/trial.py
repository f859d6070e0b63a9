"""A trial that runs on this machine: its process, its messages and its log, until it has ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightlib.experiment.job import Job
from lightlib.experiment.ledger.attempt import Attempt, Ending
from lightlib.experiment.machine.processes import Running
from lightlib.experiment.machine.slots import Slot
from lightlib.experiment.messages import DECISIONS, Messages
from lightlib.experiment.work.logs import LogFile
from lightlib.launch.start.child import how_it_ended

_INTERRUPTED = 128 + signal.SIGTERM  # the exit code of a fit that was interrupted, after its checkpoint


@dataclass(frozen=True)
class End:
    """How a process ended.

    Attributes:
        reason: As its owner announces it.
        text: Why, for a person; empty for a completed one.
    """

    reason: Ending
    text: str = ""


class TrialHere:
    """An attempt of this worker and its process.

    Args:
        attempt: In the ledger.
        job: What its process got.
        running: The process.
        slots: That it has.
        log: Its output.

    Attributes:
        unlogged: The error of a validation without the metric of the searcher.
        invalid: Why its hyperparameters do not fit together; None unless its code has raised `InvalidHP`.
        decided: Whether a decision is to end it, and this worker has not killed it since.
        stopped_at: When it got the signal to end, on the monotonic clock; None if it has not.
        is_lost: Whether another worker has ended its attempt.
    """

    def __init__(self, attempt: Attempt, job: Job, running: Running, slots: Sequence[Slot], log: LogFile) -> None:
        self.attempt, self.job, self.slots, self.log = attempt, job, tuple(slots), log
        self.running, self._messages = running, Messages(Path(job.folder))
        self._decisions = Messages(Path(job.folder), DECISIONS)
        self.unlogged: dict[str, str] | None = None
        self.invalid: str | None = None
        self.decided = False
        self.stopped_at: float | None = None
        self.is_lost = False

    @property
    def name(self) -> str:
        """The trial and, for a later attempt, its number."""
        again = f" (attempt {self.attempt.attempt})" if self.attempt.attempt else ""
        return f"trial {self.attempt.trial}{again}"

    @property
    def folder(self) -> Path:
        """The folder of the attempt."""
        return Path(self.job.folder)

    def messages(self, take: Callable[[TrialHere, dict[str, Any]], None]) -> None:
        """Hand over the messages that have arrived."""
        for message in self._messages.new():
            if message["kind"] == "unlogged":
                self.unlogged = message["error"]
            elif message["kind"] == "invalid":
                self.invalid = message["text"].strip().rpartition("\n")[2]  # of a traceback from a loader's worker
            take(self, message)

    def answer(self, rung: int, action: str) -> None:
        """Send it the decision at a rung."""
        self.decided = action != "train"
        self._decisions.send("decision", rung=rung, action=action)

    def pause(self) -> None:
        """Ask the process to save a checkpoint and end, as is the decision at a rung."""
        self.decided = True
        self.interrupt()

    def lose(self) -> None:
        """Note that another worker has ended the attempt."""
        self.is_lost = True

    def miss_metric(self) -> None:
        """Note that the process has ended without a report of the metric."""
        self.unlogged = {
            "what": f"Trial {self.attempt.trial} ended without a report of the searcher's metric, {self.job.metric!r}.",
            "expected": "at least one report of it.",
            "fix": f"lightlib.experiment.current().report(step, {self.job.metric}=…) in the program.",
        }

    def interrupt(self) -> None:
        """Ask the process to save a checkpoint and end."""
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()
            self.running.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and all that it started."""
        self.decided = False
        self.stopped_at = self.stopped_at or time.monotonic()
        self.running.send_signal(signal.SIGKILL)

    def end(self) -> End | None:
        """Return how the process has ended; None while it runs. All that it started has ended, too."""
        code = self.running.exit_code()
        if code is None:
            return None
        self.running.clear()
        self.log.join(timeout=5.0)
        if self.unlogged is not None:
            return End("canceled", self.unlogged["what"])
        if self.invalid is not None:
            return End("invalid", self.invalid)
        saved = not self.decided or self.job.command or code in (0, _INTERRUPTED)
        if self.stopped_at is not None and saved and (code or self.job.command):  # a command has not completed then
            return End("interrupted")
        if code == 0:
            return End("completed")
        lines = [line.strip() for line in self.log.tail() if line.strip()] if code > 0 else []
        return End("failed", f"{how_it_ended(code)}{f': {lines[-1]}' if lines else ''}")
