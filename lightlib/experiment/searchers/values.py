"""Values of trials: by which validation a trial is compared with the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lightlib.experiment.ledger.attempt import Attempt
from lightlib.experiment.searchers.scores import score


class Value(NamedTuple):
    """The validation of a trial that counts.

    Attributes:
        step: The batches after which it was.
        metrics: One value for each metric of the searcher.
    """

    step: int
    metrics: tuple[float, ...]


def value_of(chain: Iterable[Attempt], directions: Sequence[bool]) -> Value | None:
    """Return the validation of a trial that counts: the best one; of several metrics the last one, or None.

    Several metrics have no best validation, and those of one validation belong to the same weights.

    Args:
        chain: The attempts of the trial that hold.
        directions: Whether less is better, for each metric.
    """
    values = [Value(step, metrics) for attempt in chain for step, metrics in attempt.metrics.items()]
    if len(directions) > 1:
        return max(values, key=lambda value: value.step, default=None)
    return min(values, key=lambda value: score(value.metrics[0], directions[0]), default=None)
