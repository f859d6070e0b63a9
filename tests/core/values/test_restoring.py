"""Equality of values of a checkpoint and of a run."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import tensor

from lightlib.core.values.restoring import same

NAN = float("nan")


@pytest.mark.parametrize("value", [NAN, tensor(NAN), tensor([1.0, NAN]), {"a": [tensor(NAN), 2]}, torch.ones(0), None])
def test_a_value_is_the_same_as_a_copy(value):
    assert same(value, deepcopy(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tensor([1.0, NAN]), tensor([NAN, 1.0])),
        (tensor([1.0, NAN]), tensor([1.0, 2.0])),
        (tensor([1.0]), tensor([1.0, 1.0])),
        (tensor([1.0]), tensor([1])),
        ({"a": 1}, {"b": 1}),
        ([1, 2], [1]),
        (NAN, 1.0),
    ],
)
def test_different_values(one, other):
    assert not same(one, other)
    assert not same(other, one)
