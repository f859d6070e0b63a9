"""The front: against a comparison of all pairs."""

from __future__ import annotations

import math
import random

import pytest

from lightlib.experiment.searchers.pareto import front


def dominated(one, other):
    return all(a <= b for a, b in zip(other, one, strict=True)) and any(a < b for a, b in zip(other, one, strict=True))


@pytest.mark.parametrize("metrics", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_no_other_is_better_in_all(metrics, seed):
    numbers = random.Random(seed)
    values = [0.1, 0.2, 0.3, 0.4, math.inf]
    scores = {trial: tuple(numbers.choice(values) for _ in range(metrics)) for trial in range(numbers.randrange(30))}
    wanted = [trial for trial, one in scores.items() if not any(dominated(one, other) for other in scores.values())]
    assert front(scores) == wanted
