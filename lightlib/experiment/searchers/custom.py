"""Custom: a source of trials that follows the last turn of the user's own searcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lightlib.experiment.ledger.attempt import Attempt, Ending, Entry
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import ENDED, Snapshot

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SEARCHER = -1  # the number of the trial that stands for the searcher itself: its owner runs the searcher
TURN, REACHED, _UNTIL = "turn", "reached", "until"
_ENDS: dict[str, Ending] = {"stop": "stopped", "pause": "paused"}


@dataclass
class TrialRequest:
    """The request of a searcher for one trial, and the events of the trial that it has handled.

    Attributes:
        params: The numbers of its hyperparameters.
        order: Whether it is to train.
        until: The length at which it pauses; None: it trains to its end.
        created: Whether the searcher knows that it is in the ledger.
        step: Of its last validation that the searcher has handled.
        ended: Whether the searcher has handled its end.
    """

    params: Mapping[str, Any]
    order: Literal["run", "pause", "stop"] = "run"
    until: int | None = None
    created: bool = False
    step: int | None = None
    ended: bool = False

    def change(self, order: Literal["run", "pause", "stop"], until: int | None) -> None:
        """Change the request; a trial that has ended, or is to stop, keeps its own."""
        if not self.ended and self.order != "stop":
            self.order, self.until = order, until

    def handle(self, step: int | None, ended: bool) -> None:
        """Note that the trial is in the ledger, its last validation, and whether it has ended."""
        self.params, self.created, self.step, self.ended = {}, True, step, ended

    def trains(self, snapshot: Snapshot, trial: int) -> bool:
        """Whether the trial is to train from where it is."""
        return self.order == "run" and (self.until is None or self.until > reached(snapshot, trial))


@dataclass
class Turn:
    """All that a searcher has decided so far, written at once: workers bring the trials to it, in any order.

    Attributes:
        state: Of the searcher.
        trials: By number, all that it has created.
        over: Whether the search has ended.
        progress: From 0 to 1.
    """

    state: Any = None
    trials: list[TrialRequest] = field(default_factory=list)
    over: bool = False
    progress: float = 0.0

    @classmethod
    def last(cls, ledger: Ledger) -> Turn | None:
        """Return the one that is in a ledger; None before the first."""
        saved = ledger.of_searcher().snapshot().attribute(SEARCHER, TURN)
        return (
            None
            if saved is None
            else cls(**{**saved, "trials": [TrialRequest(**request) for request in saved["trials"]]})
        )

    def write(self, ledger: Ledger, attempt: Attempt) -> None:
        """Write it.

        Args:
            ledger: Of the experiment.
            attempt: Of the searcher, of this worker.

        Raises:
            LostAttempt: Another worker runs the searcher.
        """
        ledger.write(attempt, TURN, asdict(self))

    def end(self, *, stops: bool = False) -> None:
        """End the search.

        Args:
            stops: Whether trials that run are to stop. Default: there are none.
        """
        self.over = True
        for request in self.trials if stops else ():
            request.change("stop", None)

    def keep(self, state: Any, progress: float) -> None:
        """Put in the state of the searcher."""
        self.state, self.progress = state, progress

    def order(self, trial: int) -> str:
        """Return the order for a trial; that to train for one that a later turn has created."""
        return self.trials[trial].order if trial < len(self.trials) else "run"

    def rests(self, snapshot: Snapshot) -> bool:
        """Whether each trial is in the ledger, and has ended or is paused for good."""
        states = {trial: snapshot.state_of(trial) for trial in snapshot.chains}
        return all(
            states.get(trial) in ENDED or (states.get(trial) == "paused" and not request.trains(snapshot, trial))
            for trial, request in enumerate(self.trials)
        )


class Custom:
    """A source of the trials that the user's own searcher has created.

    The searcher runs in one worker. The last turn has all its requests, so that any worker can add the trials that are
    missing, and continue those that are paused.

    Args:
        ledger: Of the experiment.
        concurrency: The most trials that are unfinished at the same time.
        distributions: Of the hyperparameters.
        length: Of a full trial; None if the training code decides.
    """

    def __init__(
        self, ledger: Ledger, concurrency: int, distributions: Mapping[str, BaseDistribution], length: int | None
    ) -> None:
        self._ledger, self._concurrency, self._distributions = ledger, concurrency, distributions
        self._length = length

    def next_entry(self, snapshot: Snapshot) -> Entry | None:
        turn = Turn.last(self._ledger)
        if turn is None or turn.over or len(snapshot.unfinished()) >= self._concurrency:
            return None
        for trial, request in enumerate(turn.trials[: snapshot.trials]):
            if snapshot.state_of(trial) == "paused" and request.trains(snapshot, trial):
                return snapshot.last(trial).successor("paused", until=request.until)
        if snapshot.trials == len(turn.trials):
            return None
        new = turn.trials[snapshot.trials]
        return Entry(snapshot.trials, more={_UNTIL: new.until}, params=new.params, distributions=self._distributions)

    def is_done(self, snapshot: Snapshot) -> bool:
        turn = Turn.last(self._ledger)
        return turn is not None and turn.over

    def progress(self) -> float:
        """Return the share of the search that is done, from 0 to 1."""
        turn = Turn.last(self._ledger)
        return turn.progress if turn is not None else 0.0

    def lengths(self, attempt: Attempt) -> list[int]:
        """Return the lengths at which an attempt pauses and ends, in the unit of the full length."""
        return sorted({length for length in (attempt.more[_UNTIL], self._length) if length is not None})


def reached(snapshot: Snapshot, trial: int) -> int:
    """Return the last length at which a trial was to pause and that it has reached; 0 before."""
    return snapshot.attribute(trial, REACHED) or 0


def reach(ledger: Ledger, attempt: Attempt) -> None:
    """Write that an attempt of this worker has reached the length at which it pauses.

    Raises:
        LostAttempt: The attempt has ended.
    """
    ledger.write(attempt, REACHED, attempt.more[_UNTIL])


def ending(turn: Turn | None, trial: int) -> Ending | None:
    """Return how a trial is to end by the request of the searcher; None if it is to train."""
    return None if turn is None else _ENDS.get(turn.order(trial))
