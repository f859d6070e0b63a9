"""Rungs: the lengths at which a trial waits for its worker's decision whether it trains on."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable
from pathlib import Path

from lightlib.errors import SIGTERMException
from lightlib.experiment.job import Job
from lightlib.experiment.messages import DECISIONS, Messages

_LOOK = 0.01  # seconds between two looks for the decision


class Rungs:
    """The rungs of a trial, in its process.

    Args:
        job: The attempt.
        messages: To its worker; None on ranks that only read the decision.
    """

    def __init__(self, job: Job, messages: Messages | None) -> None:
        self._lengths, self._rung, self._messages = job.rungs, job.rung, messages
        self._decisions, self._made = Messages(Path(job.folder), DECISIONS), dict[int, str]()
        self._parent = os.getppid()

    def reached(self, length: float) -> bool:
        """Whether a trial of this length has reached a rung that is not decided."""
        return self._rung < len(self._lengths) and length >= self._lengths[self._rung]

    def decision(self, length: float, value: float, interrupted: Callable[[], bool]) -> str | None:
        """Report the metric at a rung that is reached, and wait for the decision.

        Args:
            length: Of the trial; it may have passed several rungs.
            value: The metric.
            interrupted: Whether the trial has been asked to end.

        Returns:
            ``"train"``, ``"stop"`` or ``"complete"``; None if the trial is to end first.

        Raises:
            SIGTERMException: The worker has died, on a system that does not end its processes.
        """
        rung = bisect.bisect_right(self._lengths, length) - 1
        if self._messages is not None:
            self._messages.send("rung", rung=rung, value=value)
        while not interrupted():
            self._made |= {message["rung"]: message["action"] for message in self._decisions.new()}
            if rung in self._made:
                return self._made[rung]
            if os.getppid() != self._parent:
                raise SIGTERMException
            time.sleep(_LOOK)
        return None

    def pass_by(self, length: float) -> None:
        """Note, on every rank, that the rungs up to a length are decided."""
        self._rung = bisect.bisect_right(self._lengths, length)
