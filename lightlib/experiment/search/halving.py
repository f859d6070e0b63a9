"""Halving: asynchronous successive halving, decided from the ledger by any worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lightlib.experiment.ledger.attempt import Attempt, Entry
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import Snapshot
from lightlib.experiment.search import promoting, stopping
from lightlib.experiment.search.brackets import Bracket
from lightlib.experiment.search.plain import NewTrial

Action = Literal["train", "pause", "stop", "complete"]


@dataclass(frozen=True)
class Course:
    """The position of a trial in its bracket.

    Attributes:
        bracket: The number of its bracket.
        rung: The rung that it trains to, or the last one that it reached.
        action: The decision there; None while it trains, or before the decision.
        value: The score there; None until it is reached.
    """

    bracket: int
    rung: int
    action: Action | None
    value: float | None


class Halving:
    """A source of trials that are compared at the same lengths: the best of each rung train on.

    The score in a rung and the decision are attributes of the attempt. The owner writes the decision before it acts, so
    an attempt that continues after a death does not decide again. The promotions that a bracket owes are a function of
    the scores in its rungs, so any worker may make them, at any time.

    Args:
        brackets: Their lengths, trials and concurrency.
        divisor: One of so many trials trains on after each rung.
        new: Returns the first attempt of the trial with a number.
        promotes: Whether trials pause at a rung until they are promoted. Default: the rest stop at once.
    """

    def __init__(self, brackets: Sequence[Bracket], divisor: float, new: NewTrial, promotes: bool = False) -> None:
        self.brackets, self._divisor, self._new, self._promotes = list(brackets), divisor, new, promotes

    # a source
    def next_entry(self, snapshot: Snapshot) -> Entry | None:
        courses = self._courses(snapshot)
        for number, bracket in enumerate(self.brackets):
            own = {trial: course for trial, course in courses.items() if course.bracket == number}
            unfinished = sum(snapshot.last(trial).ended_as is None for trial in own)
            if unfinished >= bracket.concurrent:
                continue
            for trial, rung in self._promotions(snapshot, own, number):
                if snapshot.state_of(trial) == "paused":  # else its owner has yet to decide, or to end the attempt
                    return snapshot.last(trial).successor("paused", rung=rung)
            if self._tried(snapshot, own) < bracket.trials:
                entry = self._new(snapshot.trials, snapshot)
                return replace(entry, more={**entry.more, "bracket": number, "rung": 0})
        return None

    def is_done(self, snapshot: Snapshot) -> bool:
        courses = self._courses(snapshot)
        for number, bracket in enumerate(self.brackets):
            own = {trial: course for trial, course in courses.items() if course.bracket == number}
            if self._tried(snapshot, own) < bracket.trials or self._promotions(snapshot, own, number):
                return False
        return True

    # a trial
    def course(self, snapshot: Snapshot, trial: int) -> Course:
        """Return where a trial is in its bracket."""
        more = snapshot.last(trial).more
        rung = int(more["rung"])
        while snapshot.attribute(trial, f"decision:{rung}") == "train":
            rung += 1
        action, value = (snapshot.attribute(trial, f"{name}:{rung}") for name in ("decision", "score"))
        return Course(more["bracket"], rung, action, value)

    def length(self, course: Course) -> int:
        """Return the length that a trial trains to now, in total since its start."""
        return self.brackets[course.bracket].lengths[course.rung]

    def decide(self, ledger: Ledger, attempt: Attempt, score: float) -> Action:
        """Write the score of a trial that has reached its rung, decide, write the decision, and return it.

        Args:
            ledger: Of the experiment.
            attempt: One of this worker.
            score: The metric, such that less is better.

        Raises:
            LostAttempt: The attempt has ended.
        """
        rung = self.course(ledger.snapshot(), attempt.trial).rung
        ledger.write(attempt, f"score:{rung}", score)
        snapshot = ledger.snapshot()
        action = self._decision(snapshot, attempt.trial, score)
        ledger.write(attempt, f"decision:{rung}", action)
        return action

    def _decision(self, snapshot: Snapshot, trial: int, score: float) -> Action:
        courses = self._courses(snapshot)
        course = courses[trial]
        if course.rung == len(self.brackets[course.bracket].lengths) - 1:
            return "complete"
        own = {one: each for one, each in courses.items() if each.bracket == course.bracket}
        if self._promotes:
            return "train" if (trial, course.rung + 1) in self._promotions(snapshot, own, course.bracket) else "pause"
        scores = self._scores(snapshot, own, course.rung)
        others = [value for one, value in scores.items() if one != trial]
        return "train" if stopping.continues(others, score, self._divisor) else "stop"

    def _courses(self, snapshot: Snapshot) -> dict[int, Course]:
        return {trial: self.course(snapshot, trial) for trial in snapshot.chains}

    def _tried(self, snapshot: Snapshot, own: dict[int, Course]) -> int:
        """Return how many trials of a bracket count: those with an invalid combination are replaced."""
        return sum(snapshot.state_of(trial) != "invalid" for trial in own)

    def _scores(self, snapshot: Snapshot, own: dict[int, Course], rung: int) -> dict[int, float]:
        """Return the scores in a rung, by trial; the worst for a trial that failed on its way to it."""
        found = {}
        for trial, course in own.items():
            state = snapshot.state_of(trial)
            score = snapshot.attribute(trial, f"score:{rung}") if rung <= course.rung else None
            if state == "errored" and score is None and course.rung == rung:
                score = math.inf
            if score is not None and state != "invalid":
                found[trial] = float(score)
        return found

    def _promotions(self, snapshot: Snapshot, own: dict[int, Course], bracket: int) -> list[tuple[int, int]]:
        """Return the trials that a bracket owes a promotion, with the rung to train to."""
        if not self._promotes:
            return []
        rungs = [self._scores(snapshot, own, rung) for rung in range(len(self.brackets[bracket].lengths))]
        ended = [trial for trial in own if snapshot.state_of(trial) in ("errored", "canceled", "completed", "stopped")]
        return promoting.due(rungs, {trial: course.rung for trial, course in own.items()}, ended, self._divisor)
