"""Simulation of a search in memory: trials that train one unit of length in one unit of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lightlib.experiment.searchers.brackets import Bracket
from lightlib.experiment.searchers.promoting import is_complete, owed
from lightlib.experiment.searchers.scores import WORST, score
from lightlib.experiment.searchers.stopping import decide

__all__ = ["Simulation", "simulate"]


@dataclass(frozen=True)
class Simulation:
    """The events of a simulated search.

    Attributes:
        trained: The length that each trial has trained, by its number in the order of creation.
        rungs: For each bracket and each of its rungs, the score of each trial, in the order in which they arrived.
        promotions: The trials that trained on after a rung, in order; a trial is there once for each rung.
        duration: The time until the last trial ended.
    """

    trained: dict[int, int]
    rungs: list[list[dict[int, float]]]
    promotions: list[int]
    duration: int

    @property
    def units(self) -> int:
        """The length that all trials have trained."""
        return sum(self.trained.values())


def simulate(
    brackets: Sequence[Bracket],
    metric: Callable[[int, int], float],
    *,
    divisor: float = 4,
    stop_once: bool = True,
    failures: Mapping[int, int] | None = None,
) -> Simulation:
    """Simulate the search of brackets, from the first trial to the last.

    Args:
        brackets: The brackets; all of them train at the same time.
        metric: Returns the metric of a trial, less is better, by its number from 0 and the length it has trained. NaN
            and the infinities are the worst value.
        divisor: As in `brackets`.
        stop_once: Whether trials that are not among the best stop for good. Otherwise each trial pauses at its rung and
            may be promoted later. Default: True.
        failures: Trials that fail, with the length at which they do. Default: none.

    Example:
        >>> from lightlib.experiment.searchers.brackets import bracket_of_rungs
        >>> bracket = bracket_of_rungs(3, 10, 900, divisor=3, max_concurrent_trials=3)
        >>> list(simulate([bracket], lambda trial, length: trial, divisor=3).trained.values())
        [900, 100, 100, 100, 100, 100, 100, 100, 100, 100]
    """
    run = _Run(metric, failures or {})
    kind = _Stopping if stop_once else _Promoting
    members = [kind(bracket, divisor, run) for bracket in brackets]
    for member in members:
        for _ in range(min(member.bracket.concurrent, member.bracket.trials)):
            member.create()
    while run.events:
        run.now, _, member, trial, rung = heapq.heappop(run.events)
        length = member.bracket.lengths[rung]
        run.trained[trial] = length
        failed = run.failures.get(trial, length + 1) <= length
        member.report(trial, rung, WORST if failed else score(run.metric(trial, length)), failed)
    assert all(member.is_complete() for member in members)
    return Simulation(dict(sorted(run.trained.items())), [member.rungs for member in members], run.promotions, run.now)


@dataclass
class _Run:
    """The clock and the counters of all brackets."""

    metric: Callable[[int, int], float]
    failures: Mapping[int, int]
    events: list[tuple[int, int, _Stopping | _Promoting, int, int]] = field(default_factory=list)
    trained: dict[int, int] = field(default_factory=dict)
    promotions: list[int] = field(default_factory=list)
    now: int = 0
    created: int = 0
    started: int = 0

    def train(self, member: _Stopping | _Promoting, trial: int, rung: int) -> None:
        end = self.now + member.bracket.lengths[rung] - self.trained.get(trial, 0)
        heapq.heappush(self.events, (end, self.started, member, trial, rung))
        self.started += 1

    def promote(self, member: _Stopping | _Promoting, trial: int, rung: int) -> None:
        self.promotions.append(trial)
        self.train(member, trial, rung)

    def create(self, member: _Stopping | _Promoting) -> None:
        self.created += 1
        self.train(member, self.created - 1, 0)


class _Stopping:
    """A bracket in which trials stop for good."""

    def __init__(self, bracket: Bracket, divisor: float, run: _Run) -> None:
        self.bracket, self.divisor, self.run = bracket, divisor, run
        self.rungs: list[dict[int, float]] = [{} for _ in bracket.lengths]
        self.created = 0

    def create(self) -> None:
        if self.created < self.bracket.trials:
            self.created += 1
            self.run.create(self)

    def report(self, trial: int, rung: int, value: float, failed: bool) -> None:
        lengths = self.bracket.lengths
        rungs = [values.values() for values in self.rungs]
        decision = decide(rungs, lengths, rung=rung, step=lengths[rung], value=value, divisor=self.divisor)
        for entered in decision.entered:
            self.rungs[entered][trial] = value
        if failed or decision.action != "train":
            self.create()
        else:
            self.run.promote(self, trial, decision.rung)

    def is_complete(self) -> bool:
        return len(self.rungs[0]) == self.bracket.trials


class _Promoting:
    """A bracket in which trials pause at each rung."""

    def __init__(self, bracket: Bracket, divisor: float, run: _Run) -> None:
        self.bracket, self.divisor, self.run = bracket, divisor, run
        self.rungs: list[dict[int, float]] = [{} for _ in bracket.lengths]
        self.promoted: list[set[int]] = [set() for _ in bracket.lengths]
        self.failed: set[int] = set()
        self.created = self.outstanding = 0

    def create(self) -> None:
        if self.created < self.bracket.trials:
            self.created += 1
            self.outstanding += 1
            self.run.create(self)

    def report(self, trial: int, rung: int, value: float, failed: bool) -> None:
        self.outstanding -= 1
        self.rungs[rung][trial] = value
        if failed:
            self.failed.add(trial)
        top = rung == len(self.rungs) - 1
        best = [] if top else owed(self.rungs[rung], self.promoted[rung] | self.failed, self.divisor)
        for promoted in best:  # at most one
            self.promoted[rung].add(promoted)
            self.outstanding += 1
            self.run.promote(self, promoted, rung + 1)
        if not best:
            self.create()

    def is_complete(self) -> bool:
        return is_complete(self.bracket.trials, len(self.rungs[0]), self.outstanding)
