"""The arithmetic of the sizes, and combinations that are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.strategies.axes.context import Context
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.combinations import REFUSED, filled
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.pipeline.pipeline_axis import Pipeline


class TestFilled:
    @given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 6), st.data())
    def test_what_is_open_becomes_what_is_left(self, known, rest, data):
        at = data.draw(st.integers(0, len(known)))
        names = [f"axis{i}" for i in range(len(known) + 1)]
        sizes = dict(zip(names, [*known[:at], -1, *known[at:]], strict=True))
        found = filled(sizes, math.prod(known) * rest)
        assert found == {**sizes, names[at]: rest}

    def test_nothing_is_open(self):
        assert filled({"shard": 2, "tensor": 3}, 6) == {"shard": 2, "tensor": 3}

    def test_another_number_of_processes(self):
        with pytest.raises(
            MisconfigurationException, match=r"shard=2 x tensor=3 make 6 processes, but there are 4"
        ) as e:
            filled({"shard": 2, "replicate": 1, "tensor": 3}, 4)
        assert "Trainer(devices=6), or -1" in str(e.value)

    def test_what_does_not_divide(self):
        with pytest.raises(MisconfigurationException, match=r"do not divide the 4 processes: 4 / 3") as caught:
            filled({"shard": -1, "tensor": 3}, 4)
        assert "Trainer(devices=6)" in str(caught.value)


class TestSizes:
    @pytest.mark.parametrize("size", ["2", 2.0, True, None])
    def test_no_number(self, size):
        with pytest.raises(ArgumentTypeError, match=rf"tensor={size!r} \("):
            MeshStrategy(tensor=size)

    @pytest.mark.parametrize("size", [0, -2])
    def test_no_size(self, size):
        with pytest.raises(MisconfigurationException, match=f"shard={size}"):
            MeshStrategy(shard=size)

    def test_open_twice(self):
        with pytest.raises(MisconfigurationException, match=r"replicate=-1 and shard=-1: only one size"):
            MeshStrategy(replicate=-1, shard=-1)


def test_each_refusal_says_why():
    arguments = {
        "pipeline": {"pipeline": 2}, "context": {"context": Context(2)}, "tensor": {"tensor": 2},
        "expert": {"expert": 2}, "shard": {"shard": 2}, "zero": {"replicate": Replicate(2, zero=True)},
        "zero_bubble": {"pipeline": Pipeline(2, schedule="zbv")}, "compile": {"compile": True},
    }  # fmt: skip
    for together, why, fix in REFUSED:
        with pytest.raises(MisconfigurationException) as caught:
            MeshStrategy(**{name: value for one in together for name, value in arguments[one].items()})
        assert why in str(caught.value)
        assert fix in str(caught.value)


def test_an_open_size_is_refused_as_well():
    with pytest.raises(MisconfigurationException, match="already shards the optimizer state"):
        MeshStrategy(replicate=Replicate(2, zero=True), shard=-1)
