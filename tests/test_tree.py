"""Trees: every function that walks nested data knows the same containers, and keeps their types."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from lightlib.core.metrics.batch_size import BatchSize
from lightlib.core.module.module import gathered
from lightlib.core.optimization.window import detached
from lightlib.precision.context import cast_floating
from lightlib.strategies.axes.context import _entries, _with_entries
from lightlib.tree import (
    children,
    map_children,
    map_tensors,
    named_children,
    split,
    tensors_in,
    to_device,
    with_children,
)


class Pair(NamedTuple):
    x: Any
    y: Any


class Items(list[Any]):
    """A list of the user's own."""


class Refusing(OrderedDict[str, Any]):
    """As transformers' ModelOutput: items can be assigned, but not updated."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("no update")


@dataclass
class Batch:
    x: Any
    y: Any
    kind: ClassVar[str] = "batch"


@dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any
    absent: Any = field(init=False)


def default(**values: Any) -> Any:
    return defaultdict(list, **values)


def proxy(**values: Any) -> Any:
    return types.MappingProxyType(values)


CONTAINERS = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "defaultdict": default,
    "UserDict": UserDict,
    "a dict without update": Refusing,
    "read-only mapping": proxy,
    "list": lambda x, y: [x, y],
    "list of a class": lambda x, y: Items([x, y]),
    "tuple": lambda x, y: (x, y),
    "named tuple": Pair,
    "dataclass": Batch,
    "frozen dataclass": Frozen,
}
in_each_container = pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)


def both(data: Any) -> list[Any]:
    return list(children(data))


@in_each_container
class TestContainers:
    """Each holds a tensor and a list with a tensor and a word."""

    @pytest.fixture
    def data(self, make):
        return make(x=torch.ones(4, 2), y=[torch.zeros(4), "word"])

    def same_kind(self, new, data):
        assert type(new) is type(data)
        assert new is not data
        assert [key for key, _ in named_children(new)] == [key for key, _ in named_children(data)]
        x, y = both(new)
        assert isinstance(x, Tensor)
        assert type(y) is list
        assert y[1] == "word"
        assert y is not both(data)[1]
        return x, y[0]

    def test_children(self, data):
        changed = map_children(lambda child: "tensor" if isinstance(child, Tensor) else "list", data)
        assert type(changed) is type(data)
        assert both(changed) == ["tensor", "list"]
        assert both(with_children(data, [1, 2])) == [1, 2]
        assert isinstance(both(data)[0], Tensor)  # unchanged

    def test_tensors(self, data):
        assert [tuple(tensor.shape) for tensor in tensors_in(data)] == [(4, 2), (4,)]
        x, y = self.same_kind(map_tensors(lambda tensor: tensor + 1, data), data)
        assert (float(x[0, 0]), float(y[0])) == (2, 1)

    def test_to_device(self, data):
        x, y = self.same_kind(to_device(data, torch.device("meta")), data)
        assert x.is_meta
        assert y.is_meta

    def test_cast_floating(self, data):
        x, y = self.same_kind(cast_floating(data, torch.float64), data)
        assert x.dtype == y.dtype == torch.float64

    def test_split(self, data):
        parts = split(data, 2, 4)
        assert len(parts) == 2
        for part in parts:
            x, y = self.same_kind(part, data)
            assert (tuple(x.shape), tuple(y.shape)) == ((2, 2), (2,))

    def test_batch_size(self, data):
        assert BatchSize()(data) == 4

    def test_gathered(self, data):
        x, y = self.same_kind(gathered(data, lambda tensor: torch.stack([tensor, tensor])), data)
        assert (x.shape[0], y.shape[0]) == (2, 2)

    def test_a_step_s_output(self, data):
        both(data)[0].requires_grad_()
        output = detached({"loss": both(data)[0].sum(), "more": data})
        x, _ = self.same_kind(output["more"], data)
        assert not x.requires_grad
        assert not output["loss"].requires_grad

    def test_entries_of_a_sequence(self, data):
        entries = dict(_entries({"of": data}))
        first, second = (str(key) for key, _ in named_children(data))
        assert list(entries) == [f"of.{first}", f"of.{second}.0"]
        new = _with_entries({"of": data}, {f"of.{first}": torch.zeros(1)})
        x, y = self.same_kind(new["of"], data)
        assert x.shape == (1,)
        assert y.shape == (4,)


class TestDetails:
    def test_a_default_factory_is_kept(self):
        moved = to_device(defaultdict(list, a=torch.ones(1)), torch.device("meta"))
        assert moved["b"] == []

    def test_fields_without_a_value_stay_without_one(self):
        moved = to_device(Frozen(torch.ones(1), 2), torch.device("meta"))
        assert not hasattr(moved, "absent")
        with pytest.raises(FrozenInstanceError):
            moved.x = 1

    @pytest.mark.parametrize("leaf", [None, 1, 2.5, "word", b"bytes", {1, 2}, object, Batch, range(3)])
    def test_leaves_are_returned_as_they_are(self, leaf):
        assert to_device(leaf, torch.device("meta")) is leaf
        assert map_children(lambda child: 1 / 0, leaf) is leaf
        assert list(tensors_in(leaf)) == list(children(leaf)) == list(named_children(leaf)) == []

    def test_a_container_that_moves_itself_is_asked_to(self):
        class Graph(dict[str, Any]):
            def to(self, device):
                return f"on {device}"

        assert to_device([Graph(x=torch.ones(1))], torch.device("meta")) == ["on meta"]

    def test_a_list_with_a_value_for_each_sample_is_cut(self):
        first, second = split({"x": torch.arange(4), "names": list("abcd"), "pair": [1, 2]}, 2, 4)
        assert (first["names"], second["names"], second["pair"]) == (["a", "b"], ["c", "d"], [1, 2])
        assert split(["a", "b"], 2, None) == [["a", "b"], ["a", "b"]]

    def test_a_list_of_as_many_tensors_as_samples_is_no_list_of_samples(self):
        first, _ = split([torch.arange(2), torch.arange(2)], 2, 2)
        assert [tensor.tolist() for tensor in first] == [[0], [0]]

    def test_an_empty_container_is_copied(self):
        empty: dict[str, Any] = {}
        assert to_device(empty, torch.device("cpu")) is not empty


@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestToDevice:
    def test_packed_sequences_keep_their_sizes_on_the_cpu(self):
        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
        moved = to_device({"x": [packed]}, torch.device("meta"))["x"][0]
        assert moved.data.device.type == "meta"
        assert moved.batch_sizes.device.type == "cpu"

    def test_a_defaultdict_stays_one(self):
        batch = collections.defaultdict(list, a=torch.ones(1))
        moved = to_device(batch, torch.device("meta"))
        assert moved["a"].is_meta
        assert moved["b"] == []
        assert not batch["a"].is_meta

    def test_a_dataclass_keeps_what_is_not_in_its_constructor(self):
        @dataclasses.dataclass(frozen=True)
        class Batch:
            x: torch.Tensor
            n: int = dataclasses.field(default=0, init=False)

        batch = Batch(torch.ones(1))
        object.__setattr__(batch, "n", 5)
        moved = to_device(batch, torch.device("meta"))
        assert (moved.x.is_meta, moved.n) == (True, 5)
