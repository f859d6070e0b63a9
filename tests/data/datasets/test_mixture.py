"""Mixtures: exact proportions, ends of epochs, passes of sources, and bad input."""

from __future__ import annotations

import pickle
import random
from collections import Counter

import pytest
from torch.utils.data import IterableDataset

from lightlib import registry
from lightlib.data import MixtureDataset
from lightlib.data.datasets.proportions import Proportions
from lightlib.data.streams.adapter import StreamAdapter
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.data.datasets.loaders import Positioned, Stream
from tests.runs.bad_input import refused

FIX = 'MixtureDataset({"web": web, "code": code}, {"web": 0.7, "code": 0.3})'


class Letters(IterableDataset):
    def __init__(self, text):
        self.text = text

    def __iter__(self):
        return iter(self.text)


@pytest.mark.parametrize("number", range(12))
def test_each_prefix_has_the_shares_to_within_one_sample(number):
    rng = random.Random(number)
    weights = [rng.choice([0.05, 0.3, 1, 7, rng.random()]) for _ in range(1 + number % 6)]
    turns, counts = Proportions(weights), Counter()
    assert turns.shares == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-4)
    for position in range(3000):
        source, turn = turns.at(position)
        assert (turn, position) == (counts[source], turns.position(source, turn))
        counts[source] += 1
        for one, share in enumerate(turns.shares):
            assert abs(counts[one] - share * (position + 1)) < 1
            assert turns.count(one, position + 1) == counts[one]


def test_weights_that_people_write_are_exact():
    assert Proportions([0.7, 0.2, 0.1]).shares == [0.7, 0.2, 0.1]
    assert Proportions([1 / 3, 2 / 3]).shares == [1 / 3, 2 / 3]


@pytest.mark.parametrize(
    ("options", "expected", "passes"),
    [
        ({}, "aXbYc", {"a": 0.6, "b": 1}),
        ({"stopping": "all_exhausted"}, "aXbYcXdYeX", {"a": 1, "b": 2.5}),
        ({"num_samples": 7}, "aXbYcXd", {"a": 0.8, "b": 1.5}),
    ],
    ids=str,
)
def test_an_epoch_ends_and_a_stream_has_the_same_samples(options, expected, passes):
    mixture = MixtureDataset({"a": "abcde", "b": "XY"}, **options)
    assert "".join(mixture[i] for i in range(len(mixture))) == expected
    assert mixture.source_epochs() == passes
    stream = MixtureDataset({"a": Letters("abcde"), "b": Letters("XY")}, **options)
    assert "".join(stream) == "".join(stream) == expected
    ended = {name: int(n) for name, n in passes.items()}
    assert ended.keys() == stream.source_epochs().keys()
    assert all(stream.source_epochs()[name] >= ended[name] - (n == ended[name]) for name, n in passes.items())


def test_repeat_has_no_end():
    stream = iter(MixtureDataset([(Letters("abc"), 2), (Letters("X"), 1)], stopping="repeat"))
    assert "".join(next(stream) for _ in range(9)) == "aXbcXabXc"


def test_the_forms_of_the_arguments_are_equal():
    a, b = tuple("abcdefg"), tuple("XYZ")
    forms = [
        ({a: 0.7, b: 0.3}, None),
        ([(a, 7), (b, 3)], None),
        ([a, b], [0.7, 0.3]),
        ({"a": a, "unused": "Q", "b": b}, {"b": 3, "a": 7, "unused": 0}),
    ]
    mixtures = [MixtureDataset(*form) for form in forms]
    assert len({tuple(mixture) for mixture in mixtures}) == 1
    assert list(mixtures[0].weights.values()) == [0.7, 0.3]
    copied = pickle.loads(pickle.dumps(mixtures[0]))
    copied.set_epoch(3)
    assert (len(copied), mixtures[0].source_epochs()["0"], copied.source_epochs()["0"]) == (10, 1, 4)


def test_epochs_continue_each_source_and_each_pass_has_another_order():
    mixture = MixtureDataset({"a": range(10), "b": range(100, 103)}, seed=4)
    read = []
    for epoch in range(10):
        mixture.set_epoch(epoch)
        assert mixture.source_epochs(0) == pytest.approx({"a": 0.4 * epoch, "b": epoch})
        read += [mixture[i] for i in range(len(mixture))]
    of_a = [i for i in read if i < 100]
    passes = [of_a[at : at + 10] for at in range(0, 40, 10)]
    assert [sorted(one) for one in passes] == [list(range(10))] * 4
    assert len(set(map(tuple, passes))) == 4


@pytest.mark.parametrize("kind", [Stream, Positioned])
@pytest.mark.parametrize("options", [{}, {"stopping": "all_exhausted"}, {"num_samples": 19}], ids=str)
def test_a_stream_continues_at_its_position_also_within_a_mixture(kind, options):
    def make():
        sources = {"a": kind(range(5)), "b": kind(range(100, 103))}
        stream = MixtureDataset([(MixtureDataset(sources, **options), 2), (kind(range(200, 209)), 1)], num_samples=30)
        stream.set_epoch(1)
        return stream, sources["a"]

    (stream, _), states, complete = make(), [], []
    for sample in stream:
        complete.append(sample)
        states.append(stream.state_dict())
    assert len(complete) == 30
    for number, state in enumerate(states, 1):
        again, source = make()
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert list(again) == complete[number:]
        assert again.source_epochs() == stream.source_epochs()
        if kind is Positioned and number == 29:
            assert len(source.read) <= 1, "nothing is read again"
        assert list(again) == complete, "the next epoch begins at the start"


class LacksABuffer(StreamAdapter):
    def keeps_position(self, loader):
        return False


def test_a_source_whose_state_is_not_exact_is_read_again():
    registry.register("streams", "tests", LacksABuffer)
    try:
        source = Positioned(range(9))
        stream = MixtureDataset([source, Positioned(range(9))])
        samples = iter(stream)
        first = [next(samples) for _ in range(8)]
        assert [one["dataset"] for one in stream.state_dict()["sources"].values()] == [None, None]
        stream.load_state_dict(stream.state_dict())
        source.read.clear()
        assert first + list(stream) == list(stream)
        assert source.read[:5] == [1, 2, 3, 4, 5]
    finally:
        registry.unregister("streams", "tests")


@pytest.mark.parametrize(
    ("sources", "options", "kind", "what", "expected"),
    [
        ({"a": "x", "b": "y"}, {"weights": {"a": 1, "c": 1}}, UnknownNameError,
         "Unknown source of a mixture 'c'.***", "***"),
        ({"a": "x", "b": "y"}, {"weights": {"a": -1, "b": 2}}, MisconfigurationException,
         "MixtureDataset(weights['a']=-1).", "a finite number >= 0."),
        ({"a": "x"}, {"weights": {"a": "1"}}, ArgumentTypeError, "***weights['a']='1' (str)).", "***"),
        ({"a": "x"}, {"weights": [0.0]}, MisconfigurationException, "***weights [0.0]***", "a weight above 0."),
        (["x", "y"], {"weights": [1]}, MisconfigurationException, "***got 2 data sets and 1 weights.", "***"),
        ({}, {}, MisconfigurationException, "***got 0 data sets and 0 weights.", "***"),
        (5, {}, ArgumentTypeError, "MixtureDataset(5 (int)).", "***"),
        ({"a": "", "b": "y"}, {}, MisconfigurationException, "***the source 'a' has no samples.", "***"),
        ({"a": 3, "b": "y"}, {}, ArgumentTypeError, "***the source 'a' is 3 (int).", "***"),
        ({"a": iter("x")}, {}, ArgumentTypeError, "***the source 'a' is ***", "***reads from its start."),
        ({"a": Letters("x"), "b": "y"}, {}, MisconfigurationException,
         "***'a' can only be iterated, and 'b' is read by index.", "either streams or map-style data sets."),
        ({"a": "x"}, {"stopping": "repeat"}, MisconfigurationException, "***stopping='repeat'***", "num_samples***"),
        ({"a": "x"}, {"stopping": "first"}, UnknownNameError, "Unknown stopping of MixtureDataset 'first'.***", "***"),
        ({"a": "x"}, {"stopping": "all_exhausted", "num_samples": 3}, MisconfigurationException,
         "***num_samples=3).", "one of them***"),
        ({"a": "x"}, {"num_samples": 0}, MisconfigurationException, "***(num_samples=0).", "an int >= 1."),
        ({"a": Letters("x")}, {"seed": 1}, MisconfigurationException, "***(seed=1) of streams.", "no seed***"),
    ],
)  # fmt: skip
def test_bad_input(sources, options, kind, what, expected):
    with refused(kind, what, expected, "***"):
        MixtureDataset(sources, **options)


def test_a_source_without_samples_is_named_when_it_has_its_turn():
    stream = MixtureDataset({"a": Letters("abc"), "b": Letters("")})
    with refused(MisconfigurationException, "***the source 'b' has no samples.", "***", "***leave it out."):
        list(stream)
