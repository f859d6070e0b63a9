"""User values: each kind is seen when it changes, and restored in place from a file of plain values."""

from __future__ import annotations

import argparse
import array
import enum
import io
import itertools
import queue
import random
import threading
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import numpy
import omegaconf
import pytest
import torch

from lightlib.core.values.attributes import ABSENT, LARGEST, SnapshotContext, TooLarge, Unsaveable, attributes_of
from lightlib.core.values.class_source import saves
from lightlib.core.values.contents import checksum_on_device
from lightlib.core.values.digest import digest
from lightlib.core.values.encoding import encode
from lightlib.core.values.restoring import restored

ROOTS = frozenset({"tests"})
Pair = namedtuple("Pair", "first second")  # noqa: PYI024  untyped, as users write it


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Kind(str, enum.Enum):
    LORA = "lora"


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclass
class Record:
    x: object
    past: list = field(default_factory=list)


class Table(dict):
    def __init__(self):
        super().__init__(a=1)
        self.hits = 0


class Items(list):
    hits = 0


class Dice(random.Random):
    rolls = 0


class Slots:
    __slots__ = ("__hidden", "count")

    def __init__(self):
        self.count = self.__hidden = 0

    def raise_hidden(self):
        self.__hidden += 1
        return self.__hidden


def augment():
    """A function with attributes, as users count calls."""


def nested(levels):
    inner = []
    for _ in range(levels):
        inner = [inner]
    return inner


def innermost(value):
    while value and isinstance(value[0], list):
        value = value[0]
    return value


KINDS = {
    "SimpleNamespace": (lambda: types.SimpleNamespace(a=1), lambda v: setattr(v, "a", 2), vars),
    "argparse.Namespace": (lambda: argparse.Namespace(a=1), lambda v: setattr(v, "a", 2), vars),
    "bytearray": (lambda: bytearray(2), lambda v: v.__setitem__(0, 7), bytes),
    "array.array": (lambda: array.array("d", [1.0]), lambda v: v.append(2.0), list),
    "Queue": (queue.Queue, lambda v: v.put(3), lambda v: (list(v.queue), v.qsize(), v.unfinished_tasks)),
    "LifoQueue": (queue.LifoQueue, lambda v: v.put(3), lambda v: v.queue),
    "PriorityQueue": (queue.PriorityQueue, lambda v: v.put((2, "b")), lambda v: v.queue),
    "UserList": (UserList, lambda v: v.append(3), list),
    "UserDict": (UserDict, lambda v: v.update(a=3), dict),
    "UserString": (lambda: UserString("a"), lambda v: setattr(v, "data", "b"), str),
    "ChainMap": (lambda: ChainMap({"a": 1}), lambda v: v.update(b=2), dict),
    "Counter": (Counter, lambda v: v.update("aab"), dict),
    "OrderedDict": (lambda: OrderedDict(a=1, b=2), lambda v: v.move_to_end("a"), lambda v: list(v.items())),
    "defaultdict": (lambda: defaultdict(list), lambda v: v["a"].append(1), dict),
    "deque with maxlen": (lambda: deque(maxlen=3), lambda v: v.extend(range(5)), lambda v: (list(v), v.maxlen)),
    "dict subclass": (Table, lambda v: setattr(v, "hits", 3), lambda v: (dict(v), v.hits)),
    "list subclass": (Items, lambda v: (v.append(3), setattr(v, "hits", 3)), lambda v: (list(v), v.hits)),
    "slots with a private name": (Slots, Slots.raise_hidden, attributes_of),
    "BytesIO": (io.BytesIO, lambda v: v.write(b"abc"), lambda v: (v.getvalue(), v.tell())),
    "StringIO": (lambda: io.StringIO("abc"), lambda v: v.read(1), lambda v: (v.getvalue(), v.tell())),
    "Decimal, Fraction": (list, lambda v: v.extend([Decimal("1.5"), Fraction(1, 3)]), list),
    "range, slice": (dict, lambda v: v.update(a=range(3), b=slice(1, None, 2)), dict),
    "enumerations": (
        dict,
        lambda v: v.update({Kind.LORA: [Colour.RED, Flags.A | Flags.B], "b": Record(Colour.BLUE)}),
        lambda v: (v, [type(key) for key in v]),
    ),
    "function": (lambda: augment, lambda v: setattr(v, "calls", 2), lambda v: v.calls),
    "OmegaConf dict": (
        lambda: omegaconf.OmegaConf.create({"a": {"b": 1}, "c": "${a.b}"}),
        lambda v: v.a.update(b=5),
        lambda v: (v.c, omegaconf.OmegaConf.to_container(v, resolve=False)),
    ),
    "OmegaConf list": (lambda: omegaconf.OmegaConf.create([1]), lambda v: v.append(2), list),
    "fields": (
        lambda: numpy.zeros(3, dtype=[("x", "f4"), ("p", "f8")]),
        lambda v: v["p"].__iadd__(1),
        lambda v: (v.dtype.names, v["p"].tolist()),
    ),
    "masked": (
        lambda: numpy.ma.array([1.0, 2.0], mask=[False, True]),
        lambda v: v.__setitem__(0, numpy.ma.masked),
        lambda v: (v.mask.tolist(), v.data.tolist()),
    ),
    "objects": (lambda: numpy.array([1, "a"], object), lambda v: v.__setitem__(0, [2]), lambda v: v.tolist()),
    "matrix": (
        lambda: numpy.ones((1, 1)).view(numpy.matrix),
        lambda v: v.__setitem__((0, 0), 9),
        lambda v: (type(v), v.tolist()),
    ),
    "array without dimensions": (lambda: numpy.array(1.0), lambda v: v.__setitem__((), 5), float),
    "RandomState": (lambda: numpy.random.RandomState(3), lambda v: v.rand(2), lambda v: v.rand()),
    "BitGenerator": (lambda: numpy.random.PCG64(3), lambda v: v.random_raw(2), lambda v: v.random_raw()),
    "SeedSequence": (
        lambda: numpy.random.SeedSequence(3),
        lambda v: v.spawn(2),
        lambda v: v.spawn(1)[0].generate_state(1).tolist(),
    ),
    "Random subclass": (Dice, lambda v: setattr(v, "rolls", 3), lambda v: v.rolls),
    "60 levels": (lambda: nested(50), lambda v: innermost(v).append(1), innermost),
    "tensor by .data": (lambda: torch.zeros(5000, 64), lambda v: v.data[0].add_(1), lambda v: v.sum().item()),
    "tensor by NumPy": (lambda: torch.zeros(5000, 64), lambda v: v.numpy().__setitem__((9, 9), 1), torch.Tensor.tolist),
    "long list": (lambda: [0.0] * 250_001, lambda v: v.__setitem__(123_457, 1.0), sum),
    "long dict of tensors": (
        lambda: {n: torch.zeros(2) for n in range(20_003)},
        lambda v: v[12_345].data.add_(1),
        lambda v: [n for n in v if v[n].sum()],
    ),
    "long list of objects": (
        lambda: [types.SimpleNamespace(a=0) for _ in range(60_000)],
        lambda v: setattr(v[54_321], "a", 1),
        lambda v: [n for n, one in enumerate(v) if one.a],
    ),
}  # fmt: skip


def known(start=None):
    return SnapshotContext(roots=ROOTS, ids={} if start is None else dict(start.seen))


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(("make", "change", "content"), KINDS.values(), ids=KINDS)
def test_a_change_in_place_is_seen_and_restored_in_place(make, change, content):
    if make() is augment:
        augment.__dict__.clear()
    value, start = make(), known()
    before = digest(value, start, "v")
    assert digest(value, known(start), "v") == before
    change(value)
    now = known(start)
    assert digest(value, now, "v") != before
    encoded = through_a_file(encode(value, now.again(start=start), "v"))
    if value is augment:
        augment.__dict__.clear()
    fresh = make()
    assert restored(encoded, fresh, known()) is fresh
    expected = 2 if value is augment else content(value)
    assert content(fresh) == expected


NEW = ("SimpleNamespace", "bytearray", "array.array", "Queue", "UserList", "UserString", "fields", "masked", "objects",
       "matrix", "BytesIO", "SeedSequence", "deque with maxlen", "OrderedDict", "enumerations")  # fmt: skip


@pytest.mark.parametrize("name", NEW)
def test_what_training_made_is_made_again(name):
    make, change, content = KINDS[name]
    value = make()
    change(value)
    encoded = through_a_file(encode(value, known(), "v"))
    made = restored(encoded, ABSENT, known(), False)
    assert type(made) is type(value)
    assert content(made) == content(value)


def test_a_counter_of_itertools_continues_where_it_was():
    counter = itertools.count(3, 2)
    next(counter)
    assert next(restored(encode(counter, known()), ABSENT, known())) == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter([1, 2, 3]),
        lambda: iter({1: 2}),
        lambda: (n for n in range(3)),
        lambda: zip([1, 2], [3, 4], strict=True),
        lambda: map(abs, [1, 2]),
        lambda: itertools.cycle([1, 2, 3]),
        lambda: itertools.islice([1, 2, 3], 2),
    ],
)
def test_an_iterator_is_reported_only_after_it_was_used(make):
    iterator, start = make(), known()
    before = digest(iterator, start, "v")
    assert digest(iterator, known(start), "v") == before
    next(iterator)
    assert digest(iterator, known(start), "v") != before
    with pytest.raises(Unsaveable, match=r"an iterator \(.*\), whose position cannot be saved"):
        encode(iterator, known(start).again(start=start), "v")


def test_closures_and_defaults_that_change_are_reported():
    total = [0]

    def counts(seen=[]):  # noqa: B006  the mutable default is the point
        total[0] += 1
        seen.append(1)

    start = known()
    before = digest(counts, start, "v")
    assert digest(counts, known(start), "v") == before
    counts()
    assert digest(counts, known(start), "v") != before
    with pytest.raises(Unsaveable, match="closure"):
        encode(counts, known(start).again(start=start), "v")


def test_a_second_place_of_an_object_looks_the_same_later():
    shared = [object()]
    value, start = {"a": shared, "b": shared, "c": [shared]}, known()
    assert digest(value, start, "v") == digest(value, known(start), "v")


def test_what_cannot_be_saved_is_left_out_of_a_container_if_it_has_not_changed():
    handle = threading.Lock()
    value, start = {"handle": handle, "sparse": torch.eye(2).to_sparse(), "count": 0}, known()
    digest(value, start, "v")
    value["count"] = 3
    encoded = encode(value, known(start).again(start=start), "v")
    fresh = {"handle": threading.Lock(), "sparse": torch.eye(2).to_sparse(), "count": 0}
    expected = fresh["handle"]
    assert restored(through_a_file(encoded), fresh, known())["count"] == 3
    assert fresh["handle"] is expected
    value["handle"] = threading.Lock()
    with pytest.raises(Unsaveable, match="it is a lock"):
        encode(value, known(start).again(start=start), "v")


def test_values_below_the_deepest_level_are_compared_and_reported():
    value, start = nested(3000), known()
    before = digest(value, start, "v")
    assert digest(value, known(start), "v") == before
    innermost(value).append(1)
    assert digest(value, known(start), "v") != before
    with pytest.raises(Unsaveable, match="nested more than 60 levels deep"):
        encode(value, known(start).again(start=start), "v")


def test_large_tensors_and_many_of_them_are_compared_by_samples(monkeypatch):
    monkeypatch.setattr("lightlib.core.values.contents.LARGE", 2**20)
    for value in (torch.zeros(2**19), torch.zeros(2**10, 2**10).t()):
        before = digest(value, known())
        value.data.mul_(0.5).add_(1)
        assert digest(value, known()) != before


def test_a_checksum_on_a_device_sees_one_number_and_the_order():
    data = torch.arange(101, dtype=torch.uint8)
    other, swapped = data.clone(), data.clone()
    other[100] += 1
    swapped[0], swapped[8] = data[8], data[0]
    assert len({checksum_on_device(one) for one in (data, other, swapped)}) == 3
    assert checksum_on_device(data[1:]) == checksum_on_device(data[1:].clone())


# a replay buffer: a few records instead of many
def transitions(number):
    for n in range(number):
        last = None if n % 5 == 0 else torch.full((2,), float(n))
        yield torch.full((3,), float(n)), numpy.full(2, n), 0.5 * n, n % 5 == 0, last


def tensors_in(encoded):
    if isinstance(encoded, torch.Tensor):
        return 1
    parts = encoded.values() if isinstance(encoded, dict) else encoded if isinstance(encoded, (list, tuple)) else ()
    return sum(map(tensors_in, parts))


def plain(value):
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return value.tolist()
    if isinstance(value, Record):
        return plain([value.x, value.past])
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return list(map(plain, value)) if isinstance(value, (list, tuple, deque)) else value


@pytest.mark.parametrize(
    ("make", "records"),
    [
        (lambda n: deque(transitions(n)), 4),
        (lambda n: [Pair(torch.full((k % 3 + 1,), k), k) for k in range(n)], 2),
        (lambda n: [{"x": torch.full((2,), k), "y": k} for k in range(n)], 1),
        (lambda n: {k: torch.full((2,), k) for k in range(n)}, 1),
        (lambda n: [Record(torch.full((2,), k), k) for k in range(n)], 1),
        (lambda n: tuple(torch.full((2,), k) for k in range(n)), 1),
    ],
)
def test_a_buffer_is_saved_as_few_tensors_however_many_entries_it_has(make, records):
    for number in (40, 400):
        value = make(number)
        encoded = encode(value, known(), "v")
        assert tensors_in(encoded) == records
        found = restored(through_a_file(encoded), ABSENT, known(), False)
        assert type(found) is type(value)
        assert plain(found) == plain(value)
        assert all(map(torch.is_tensor, found)) or plain(found)[0] == plain(value)[0]


def test_a_buffer_is_compared_without_a_call_for_each_entry(monkeypatch):
    calls = []
    module = "lightlib.core.values.digest.content_of_tensor"
    monkeypatch.setattr(module, lambda value, _: calls.append(1) or (value.tolist(),))
    buffer = deque(transitions(3000))
    before = digest(buffer, known())
    buffer[1234][0].data.add_(1)
    assert digest(buffer, known()) != before
    assert not calls


def test_tensors_of_a_buffer_are_restored_in_place_and_independent():
    buffer = [(torch.zeros(2), n) for n in range(20)]
    changed = [(torch.full((2,), float(n)), n) for n in range(20)]
    held = [one for one, _ in buffer]
    restored(through_a_file(encode(changed, known())), buffer, known())
    assert all(one is now for one, (now, _) in zip(held, buffer, strict=True))
    assert [one.tolist() for one in held] == [[n, n] for n in range(20)]
    fresh = restored(through_a_file(encode(changed, known())), ABSENT, known(), False)
    fresh[3][0].add_(1)
    assert fresh[4][0].tolist() == [4.0, 4.0]
    assert fresh[4][0].untyped_storage().nbytes() == 8


def test_a_buffer_that_is_too_large_is_refused_before_it_is_stacked():
    buffer = [torch.zeros(8)] * 100
    with pytest.raises(TooLarge):
        encode(buffer, known().again(room=1000))
    assert known().again().room == LARGEST


def test_parameters_in_a_long_list_stay_the_modules():
    parameters = [torch.zeros(2) for _ in range(20)]
    parts = {f"p{n}": one for n, one in enumerate(parameters)}
    run = SnapshotContext(names={id(one): name for name, one in parts.items()}, parts=parts)
    assert restored(encode(parameters, run), [], run) == parameters
    assert tensors_in(encode(parameters, run)) == 0


# the attributes that a method of the user saves
class Prefix:
    SAVED = ("listed",)

    def __init__(self):
        self.count = self.counter = self.listed = self.packed = self.named = self.other = 0

    def state_dict(self):
        state = {name: getattr(self, name) for name in self.SAVED}
        return {**state, "count": self.counter, "named": getattr(self, "named"), **self.pack()}  # noqa: B009  so written

    def pack(self):
        return {"other": self.packed}


class Inherits(Prefix):
    def state_dict(self):
        return {**super().state_dict(), "more": self.more}


class Everything:
    def state_dict(self):
        return dict(vars(self))


def test_an_attribute_is_saved_by_the_user_if_a_method_reads_it_and_not_if_a_text_contains_its_name():
    names = ("count", "counter", "listed", "packed", "named", "other", "more")
    assert [name for name in names if saves(Prefix, name)] == ["counter", "listed", "packed", "named"]
    assert [name for name in names if saves(Inherits, name)] == ["counter", "listed", "packed", "named", "more"]
    assert saves(Everything, "anything")
    space: dict = {}
    exec("class Typed:\n    def state_dict(self):\n        return {'count': self.counter}", space)
    assert [name for name in names if saves(space["Typed"], name)] == ["counter"]
