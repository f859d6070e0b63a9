"""Any nesting of plain values survives JSON unchanged; all other values are refused."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lightlib.checkpoint.directory.encoding import DEPTH, decode, encode, merged, tensor_names
from lightlib.errors import CheckpointError, CheckpointWriteError


def there_and_back(content: Any) -> Any:
    encoded, tensors = encode(content)
    return decode(json.loads(json.dumps(encoded, allow_nan=False)), tensors.__getitem__)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type and value; NaN equals NaN, and 0.0 is not -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, dict):
        keys = len(one) == len(other) and all(map(same, one, other))
        return keys and all(same(a, b) for a, b in zip(one.values(), other.values(), strict=True))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


VALUES = [
    None,
    True,
    0,
    -7,
    2**53,
    2**53 + 1,
    -(2**200),
    10**6000,
    0.1,
    -0.0,
    5e-324,
    math.inf,
    -math.inf,
    math.nan,
    complex(1, -0.0),
    complex(math.nan, math.inf),
    "",
    "ü\n\x00\ud800",
    b"",
    bytes(range(256)),
    torch.Size([2, 3]),
    torch.Size([]),
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.device("cpu"),
    torch.device("cuda:3"),
    [],
    (),
    {},
    set(),
    frozenset({1, 2}),
    {1, "1", (1, 2), b"1"},
    (1, [2, (3,)]),
    {"!": 1, "of": 2},
    {"": {"": 1}},
    {2**20000: 1, -(2**80): 2},
    {1: "int", "1": "str", None: 0, (1, 2): 1, False: 2, 2.5: 3, b"x": 4},
    OrderedDict(b=1, a=2),
    OrderedDict({2: 1, 1: 2}),
    Counter({30: 2, 10: 1}),
    {"betas": (0.9, 0.999), "params": [0, 1], "lr": 1e-3},
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_comes_back_as_it_was(value: Any):
    assert same(there_and_back(value), value)
    assert same(there_and_back({"in": [value]}), {"in": [value]})


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.binary(max_size=2), inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict)
        | st.sets(st.integers() | st.text(max_size=2), max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=150)
@given(PLAIN)
def test_any_nesting_comes_back_as_it_was(value: Any):
    assert same(there_and_back(value), value)


def test_tensors_are_named_by_their_place():
    tensors = [torch.tensor(float(number)) for number in range(9)]
    content = {
        "a/b": {"c": tensors[0]},
        "a": {"b/c": tensors[1], "b": {"c": tensors[2]}},
        "l": [tensors[3], (tensors[4],)],
        "m": {0: tensors[5], "0": tensors[6], "[0]": tensors[7], "": tensors[8]},
    }
    encoded, found = encode(content)
    assert sorted(value.item() for value in found.values()) == list(range(9))
    assert found["a/b/c"] is tensors[2]
    assert found["l/[1]/[0]"] is tensors[4]
    assert found["m/[0]"] is tensors[5]
    assert sorted(tensor_names(encoded)) == sorted(found)
    assert same(decode(encoded, found.__getitem__), content)


class Number(int):
    pass


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, object()]}, r"\['a'\]\[1\] there is an object of type builtins.object"),
        ({"a": Number(3)}, r"Number"),
        ({"a": defaultdict(int)}, "defaultdict"),
        ({"a": {object(): 1}}, "object"),
        ({"a": len}, "builtin_function"),
        ({"a": nn.LazyLinear(3).weight}, "without values"),
        ({"a": torch.empty(3, device="meta")}, "without values"),
        ({torch.ones(1): 1}, "a tensor as a key"),
        ({1: {"a": [object()]}}, r"\[1\]\['a'\]\[0\]"),
    ],
)
def test_what_is_no_plain_value_is_named(value: Any, place: str):
    with pytest.raises(CheckpointWriteError, match=place) as raised:
        encode(value)
    assert "Fix:" in str(raised.value)
    assert encode({"x": value}, lenient=True)[1] == {}


def test_nesting_is_bounded_both_ways():
    deep: Any = []
    for _ in range(DEPTH + 1):
        deep = [deep]
    with pytest.raises(CheckpointWriteError, match="nested more than"):
        encode(deep)
    with pytest.raises(CheckpointError, match="nested more than"):
        decode(deep, lambda name: None)
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(CheckpointWriteError, match="nested more than"):
        encode(circle)


STRANGE = [
    {"!": "object", "of": "os.system"},
    {"!": "global", "of": ["os", "system"]},
    {"!": "tuple"},
    {"!": "tuple", "of": {}},
    {"!": "tuple", "of": [], "more": 1},
    {"!": None, "of": []},
    {"!": ["tuple"], "of": []},
    {"!": "dict", "of": [[1]]},
    {"!": "dict", "of": [[[], 1]]},
    {"!": "dict", "of": [[1, 2], [1, 3]]},
    {"!": "set", "of": [[1]]},
    {"!": "Size", "of": ["a"]},
    {"!": "int", "of": "zz"},
    {"!": "int", "of": 3},
    {"!": "float", "of": "1e400"},
    {"!": "complex", "of": [1.0]},
    {"!": "complex", "of": ["a", 1.0]},
    {"!": "complex", "of": [{"!": "tensor", "of": "x"}, 1.0]},
    {"!": "bytes", "of": "!!"},
    {"!": "dtype", "of": "load"},
    {"!": "device", "of": "cpu; import os"},
    {"!": "device", "of": "nothing"},
    {"!": "tensor", "of": 3},
]


@pytest.mark.parametrize("encoded", STRANGE, ids=str)
def test_what_is_strange_is_refused(encoded: Any):
    with pytest.raises(CheckpointError, match="could not be read") as raised:
        decode({"a": [encoded]}, lambda name: None)
    assert "Fix:" in str(raised.value)


def test_what_processes_have_is_put_together():
    first, _ = encode({"state": {2: {"a": 1}}, "groups": [{"lr": 1.0}, {"lr": 2.0}]})
    second, _ = encode({"state": {1: {"a": 3}, 2: {"b": 4}}, "groups": [{"lr": 5.0}]})
    found = decode(merged(first, second), lambda name: None)
    assert found == {"state": {1: {"a": 3}, 2: {"a": 1, "b": 4}}, "groups": [{"lr": 1.0}, {"lr": 2.0}]}
    assert list(found["state"]) == [1, 2]
    assert decode(merged({}, second), lambda name: None)["state"][1] == {"a": 3}
    empty, _ = encode({"state": {}, "groups": []})
    assert decode(merged(empty, second), lambda name: None) == decode(second, lambda name: None)
