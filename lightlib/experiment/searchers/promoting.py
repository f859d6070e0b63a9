"""Promoting: a trial pauses at each rung, and trains on once it is among the best in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lightlib.experiment.searchers.scores import score

__all__ = ["due", "is_complete", "owed"]


def owed(values: Mapping[int, float], promoted: Collection[int], divisor: float) -> list[int]:
    """Return the trials of a rung that are to be promoted: those among the best, one of `divisor`, not yet promoted.

    The result depends only on the values in the rung, so any process may ask at any time. Asked after every new value,
    it gives the promotions of asynchronous successive halving, one at most each time.

    Args:
        values: The score of each trial in the rung, in the order of arrival; the first of equal ones is better.
        promoted: Trials that were promoted from this rung, or that have ended and cannot continue.
        divisor: One of so many trials is promoted.

    Returns:
        The trials, best first.

    Example:
        >>> owed({0: 0.5, 1: 0.4, 2: 0.6, 3: 0.3}, promoted={1}, divisor=2)
        [3]
    """
    best = sorted(values, key=lambda trial: score(values[trial]))[: int(len(values) / divisor)]
    return [trial for trial in best if trial not in promoted]


def due(
    rungs: Sequence[Mapping[int, float]], reaching: Mapping[int, int], ended: Collection[int], divisor: float
) -> list[tuple[int, int]]:
    """Return all promotions that a bracket owes, those to the highest rung first.

    Args:
        rungs: The scores in each rung, as in `owed`. A trial that failed counts with the worst score.
        reaching: For each trial, the highest rung that it has reached or trains to.
        ended: Trials that failed or were canceled: their scores count, but they do not continue.
        divisor: As in `owed`.

    Returns:
        Pairs of a trial and the rung to train to.

    Example:
        >>> due([{0: 0.5, 1: 0.4}, {}], reaching={0: 0, 1: 0}, ended=(), divisor=2)
        [(1, 1)]
    """
    promotions = []
    for rung in reversed(range(len(rungs) - 1)):
        promoted = {trial for trial in rungs[rung] if trial in ended or reaching[trial] > rung}
        promotions += [(trial, rung + 1) for trial in owed(rungs[rung], promoted, divisor)]
    return promotions


def is_complete(trials: int, in_first_rung: int, outstanding: int) -> bool:
    """Return whether a bracket is complete, so that its paused trials end.

    Args:
        trials: The number of trials that the bracket has to try.
        in_first_rung: The trials whose score is in the first rung.
        outstanding: The trials that train, or that are owed a promotion.

    Example:
        >>> is_complete(12, 12, 1), is_complete(12, 12, 0)
        (False, True)
    """
    return in_first_rung >= trials and outstanding == 0
