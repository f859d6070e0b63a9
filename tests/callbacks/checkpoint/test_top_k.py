"""TopK as a table: the checkpoint that is kept, and the one that is removed."""

from __future__ import annotations

import math

import pytest
import torch

from lightlib.callbacks.checkpoint.top_k import TopK

INF = math.inf


def top(k, mode="min", **values):
    return TopK(k, mode, {name: torch.tensor(float(value)) for name, value in values.items()})


@pytest.mark.parametrize(
    ("best", "ranked", "kth", "evicted"),
    [
        (top(0), [], ("", INF), []),
        (top(1), [], ("", INF), []),
        (top(1, "max"), [], ("", -INF), []),
        (top(2, a=3), ["a"], ("", INF), []),
        (top(2, a=3, b=1), ["b", "a"], ("a", 3), ["a"]),
        (top(2, "max", a=3, b=1), ["a", "b"], ("b", 1), ["b"]),
        (top(2, a=1, b=1), ["a", "b"], ("b", 1), ["b"]),  # of equal ones the older is better
        (top(-1, a=3, b=1, c=2), ["b", "c", "a"], ("a", 3), []),
        (top(1, a=3, b=1, c=2), ["b", "c", "a"], ("a", 3), ["a", "c", "b"]),  # k was larger before a resume
        (top(1, a=INF), ["a"], ("a", INF), ["a"]),
    ],
)
def test_order(best, ranked, kth, evicted):
    assert best.ranked == ranked
    assert (best.kth[0], best.kth[1].item()) == kth
    assert best.evicted == evicted


@pytest.mark.parametrize(
    ("best", "value", "admitted"),
    [
        (top(0), 0, False),
        (top(-1, a=1), 5, True),
        (top(2, a=1), 5, True),
        (top(1, a=2), 1, True),
        (top(1, a=2), 2, False),
        (top(1, a=2), 3, False),
        (top(1, "max", a=2), 3, True),
        (top(1, "max", a=2), 1, False),
        (top(1, a=2), math.nan, False),
        (top(1, a=INF), 2, True),
    ],
)
def test_admits(best, value, admitted):
    assert best.admits(torch.tensor(float(value))) is admitted


@pytest.mark.parametrize(
    ("best", "before", "after"),
    [
        (top(2), "a", None),
        (top(2, a=3), "", ("a", 3)),
        (top(2, a=3, b=1), "a", ("b", 1)),
        (top(2, a=3), "of an earlier run", ("a", 3)),
        (top(2, a=INF), "of an earlier run", None),
        (top(2, a=INF), "a", ("a", INF)),
        (top(2, "max", a=-INF), "of an earlier run", None),
    ],
)
def test_best_after(best, before, after):
    found = best.best_after(before)
    assert (found and (found[0], found[1].item())) == after


def test_nothing_is_changed_in_place():
    best = top(2, a=3, b=1)
    more = best.add("c", torch.tensor(2.0))
    assert list(best.kept) == ["a", "b"]
    assert list(more.kept) == ["b", "c"]
    assert list(more.remove("b").kept) == ["c"]
    assert list(more.add("b", torch.tensor(0.0)).kept) == ["b"]
