"""Halving: successive halving, decided from the ledger by any worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lightlib.experiment.ledger.attempt import Attempt, Entry
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import Snapshot
from lightlib.experiment.searchers import promoting, stopping, synchronous
from lightlib.experiment.searchers.brackets import Bracket
from lightlib.experiment.searchers.plain import NewTrial

Action = Literal["train", "pause", "stop", "complete"]
Rule = Literal["stopping", "promoting", "synchronous"]


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


Courses = dict[int, Course]  # by trial


class Halving:
    """A source of trials that are compared at the same lengths: the best of each rung train on.

    The score in a rung and the decision are attributes of the attempt. The owner writes the decision before it acts, so
    an attempt that continues after a death does not decide again. The promotions that a bracket owes are a function of
    the scores in its rungs, so any worker may make them, at any time.

    Args:
        brackets: Their lengths, trials and concurrency.
        divisor: One of so many trials trains on after each rung.
        new: Returns the first attempt of the trial with a number.
        rule: With ``"stopping"`` (default), a trial that is not among the best of its rung stops at once; with
            ``"promoting"`` it pauses until it is; with ``"synchronous"`` all pause until their rung is full.
    """

    def __init__(self, brackets: Sequence[Bracket], divisor: float, new: NewTrial, rule: Rule = "stopping") -> None:
        self.brackets, self._divisor, self._new, self._rule = list(brackets), divisor, new, rule

    # a source
    def next_entry(self, snapshot: Snapshot) -> Entry | None:
        courses = self._courses(snapshot)
        for number in self._brackets_with_room(snapshot, courses):
            for trial, rung in self._promotions(snapshot, courses, number):
                if snapshot.state_of(trial) == "paused":  # else its owner has yet to decide, or to end the attempt
                    return snapshot.last(trial).successor("paused", rung=rung)
            if self._creates(snapshot, courses, number):
                entry = self._new(snapshot.trials, snapshot)
                if entry is not None:
                    return replace(entry, more={**entry.more, "bracket": number, "rung": 0})
        return None

    def is_done(self, snapshot: Snapshot) -> bool:
        courses = self._courses(snapshot)
        return not any(
            self._missing(snapshot, courses, number) or self._promotions(snapshot, courses, number)
            for number in range(len(self.brackets))
        )

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

    def pass_rungs(self, ledger: Ledger, attempt: Attempt, rung: int, score: float) -> Action:
        """Decide at each rung up to one that a trial has reached, unless it was decided before; return the last action.

        Args:
            ledger: Of the experiment.
            attempt: One of this worker.
            rung: The highest rung that the trial has reached. It may have passed several with one report.
            score: The metric there, such that less is better.

        Raises:
            LostAttempt: The attempt has ended.
        """
        while True:
            course = self.course(ledger.snapshot(), attempt.trial)
            if course.action is not None:
                return course.action
            if course.rung > rung:
                return "train"
            self.decide(ledger, attempt, score)

    def complete(self, ledger: Ledger, attempt: Attempt, score: float) -> None:
        """Let the score of a trial that ended its training by itself stand in its rung.

        Args:
            ledger: Of the experiment.
            attempt: One of this worker.
            score: The metric, such that less is better.

        Raises:
            LostAttempt: The attempt has ended.
        """
        rung = self.course(ledger.snapshot(), attempt.trial).rung
        ledger.write(attempt, f"score:{rung}", score)
        ledger.write(attempt, f"decision:{rung}", "complete")

    def _decision(self, snapshot: Snapshot, trial: int, score: float) -> Action:
        courses = self._courses(snapshot)
        course = courses[trial]
        if course.rung == len(self.brackets[course.bracket].lengths) - 1:
            return "complete"
        if self._rule == "synchronous":
            return "pause"
        if self._rule == "promoting":
            promotions = self._promotions(snapshot, courses, course.bracket)
            return "train" if (trial, course.rung + 1) in promotions else "pause"
        scores = self._scores(snapshot, courses, course.bracket, course.rung)
        others = [value for other, value in scores.items() if other != trial]
        return "train" if stopping.continues(others, score, self._divisor) else "stop"

    # brackets
    def _courses(self, snapshot: Snapshot) -> Courses:
        return {trial: self.course(snapshot, trial) for trial in snapshot.chains}

    def _brackets_with_room(self, snapshot: Snapshot, courses: Courses) -> list[int]:
        """Return the brackets that may have another unfinished trial; synchronous ones share their room."""
        unfinished = [courses[trial].bracket for trial in snapshot.unfinished()]
        limits = [bracket.concurrent for bracket in self.brackets]
        if self._rule == "synchronous":
            return list(range(len(limits))) if len(unfinished) < sum(limits) else []
        return [number for number, limit in enumerate(limits) if unfinished.count(number) < limit]

    def _creates(self, snapshot: Snapshot, courses: Courses, bracket: int) -> bool:
        """Whether the next new trial belongs to a bracket.

        The brackets of a synchronous search follow from the numbers of the trials: they are filled one after another,
        and invalid trials are replaced when the first rung of each is decided.
        """
        if not self._missing(snapshot, courses, bracket):
            return False
        if self._rule != "synchronous":
            return True
        number, first = snapshot.trials, sum(earlier.trials for earlier in self.brackets[:bracket])
        if number < sum(planned.trials for planned in self.brackets):
            return first <= number < first + self.brackets[bracket].trials
        return not any(each.rung == 0 and snapshot.last(trial).ended_as is None for trial, each in courses.items())

    def _missing(self, snapshot: Snapshot, courses: Courses, bracket: int) -> int:
        """Return how many trials a bracket has yet to try: those with an invalid combination are replaced."""
        trials = [trial for trial, course in courses.items() if course.bracket == bracket]
        return self.brackets[bracket].trials - sum(snapshot.state_of(trial) != "invalid" for trial in trials)

    def _scores(self, snapshot: Snapshot, courses: Courses, bracket: int, rung: int) -> dict[int, float]:
        """Return the scores in a rung, by trial; the worst for a trial that failed on its way to it."""
        scores = {}
        lost = ("errored", "canceled") if self._rule == "synchronous" else ("errored",)
        for trial, course in courses.items():
            if course.bracket != bracket or (state := snapshot.state_of(trial)) == "invalid":
                continue
            score = snapshot.attribute(trial, f"score:{rung}") if rung <= course.rung else None
            if state in lost and score is None and course.rung == rung:
                score = math.inf
            if score is not None:
                scores[trial] = float(score)
        return scores

    def _promotions(self, snapshot: Snapshot, courses: Courses, bracket: int) -> list[tuple[int, int]]:
        """Return the trials that a bracket owes a promotion, with the rung to train to."""
        if self._rule == "stopping":
            return []
        size = self.brackets[bracket]
        rungs = [self._scores(snapshot, courses, bracket, rung) for rung in range(len(size.lengths))]
        rung_of_trial = {trial: course.rung for trial, course in courses.items() if course.bracket == bracket}
        ended = [
            trial
            for trial in rung_of_trial
            if snapshot.state_of(trial) in ("errored", "canceled", "completed", "stopped")
        ]
        if self._rule == "synchronous":
            return synchronous.due(rungs, rung_of_trial, ended, self._divisor, size.trials)
        return promoting.due(rungs, rung_of_trial, ended, self._divisor)
