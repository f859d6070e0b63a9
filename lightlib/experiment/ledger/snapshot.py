"""Snapshot: the attempts that hold and the state of each trial, as functions of the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from lightlib.experiment.ledger.attempt import CONTINUES, Attempt

State = Literal["waiting", "running", "paused", "completed", "stopped", "errored", "invalid", "canceled"]
ENDED: tuple[State, ...] = ("completed", "stopped", "errored", "invalid", "canceled")
_STATES: dict[str, State] = {
    "failed": "errored",
    "lost": "waiting",
    "interrupted": "waiting",
    "paused": "paused",
    "completed": "completed",
    "stopped": "stopped",
    "invalid": "invalid",
    "canceled": "canceled",
}


class Snapshot:
    """The attempts of an experiment, and those of each trial that hold.

    Several workers may add the same attempt of a trial at the same moment. The one with the lowest number holds, and
    the rest are void. An attempt that continues another one holds if this one ended for the same reason: if its owner
    was alive after all and completed it, the one that was to continue it is void.

    Args:
        attempts: In the order of their numbers.
        next_number: That of the next attempt, of any kind.

    Attributes:
        attempts: The same.
        next_number: The same.
        by_number: The same by number.
        chains: The attempts of each trial that hold, in their order.
        void: Those that do not hold and never will.
    """

    def __init__(self, attempts: Iterable[Attempt], next_number: int) -> None:
        self.attempts, self.next_number = list(attempts), next_number
        self.by_number = {attempt.number: attempt for attempt in self.attempts}
        self.chains: dict[int, list[Attempt]] = {}
        self.void: list[Attempt] = []
        for attempt in self.attempts:
            chain = self.chains.get(attempt.trial, [])
            if _holds(attempt, chain):
                self.chains.setdefault(attempt.trial, []).append(attempt)
            else:
                self.void.append(attempt)

    @property
    def trials(self) -> int:
        """The number of trials that have been created."""
        return len(self.chains)

    def last(self, trial: int) -> Attempt:
        """Return the last attempt of a trial that holds."""
        return self.chains[trial][-1]

    def attribute(self, trial: int, name: str) -> Any:
        """Return the last value that an attempt of the trial wrote under a name; None if there is none."""
        written = (attempt.attribute(name) for attempt in reversed(self.chains.get(trial, [])))
        return next((value for value in written if value is not None), None)

    def unfinished(self) -> list[int]:
        """Return the trials that wait for a worker or are with one."""
        return [trial for trial, chain in self.chains.items() if chain[-1].ended_as is None]

    def to_continue(self) -> list[Attempt]:
        """Return the attempts that ended without their trial, and that no attempt continues yet."""
        last = (chain[-1] for chain in self.chains.values())
        return [attempt for attempt in last if attempt.ended_as in ("lost", "interrupted")]

    def failures(self, trial: int) -> int:
        """Return how many attempts of a trial have failed by themselves, since the user has had it tried again.

        Lost and interrupted ones do not count.
        """
        chain = self.chains[trial]
        first = max((at for at, attempt in enumerate(chain) if attempt.reason == "retried"), default=0)
        return sum(attempt.ended_as == "failed" for attempt in chain[first:])

    def state_of(self, trial: int) -> State:
        """Return the state of a trial that users are shown."""
        last = self.last(trial)
        if last.ended_as is None:
            return "waiting" if last.state == "waiting" else "running"
        return _STATES[last.ended_as]


def _holds(attempt: Attempt, chain: list[Attempt]) -> bool:
    if not attempt.attempt:
        return not chain
    if len(chain) != attempt.attempt or chain[-1].number != attempt.before:
        return False
    ended = chain[-1].ended_as
    return ended is None or (ended in CONTINUES and ended == attempt.reason) or attempt.reason == "retried"
