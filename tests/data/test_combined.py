"""CombinedLoader: four modes over any nesting of loaders, with limits and lengths."""

from __future__ import annotations

import gc
import weakref
from itertools import islice
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader

from lightlib.data.combined import CombinedLoader, Place, flatten
from lightlib.errors import MisconfigurationException, UnknownNameError
from tests.runs.plain import Net, Unsized, batches, loader, quiet_trainer

SHORT, LONG = range(1, 3), range(7, 10)


def items(combined):
    return [batch for batch, _, _ in combined]


class TestModes:
    @pytest.mark.parametrize(
        ("mode", "expected", "length"),
        [
            ("min_size", [[1, 7], [2, 8]], 2),
            ("max_size_cycle", [[1, 7], [2, 8], [1, 9]], 3),
            ("max_size", [[1, 7], [2, 8], [None, 9]], 3),
            ("sequential", [1, 2, 7, 8, 9], 5),
        ],
    )
    def test_each(self, mode, expected, length):
        combined = CombinedLoader([SHORT, LONG], mode)
        assert len(combined) == length, "the length is known without iterating"
        assert items(combined) == expected
        assert items(combined) == expected, "and it can be iterated again"
        assert items(CombinedLoader([Unsized(SHORT), Unsized(LONG)], mode)) == expected

    def test_indices(self):
        assert list(CombinedLoader([SHORT, LONG], "sequential")) == [
            (1, 0, 0), (2, 1, 0), (7, 0, 1), (8, 1, 1), (9, 2, 1),
        ]  # fmt: skip
        assert [where for _, *where in CombinedLoader([SHORT, LONG], "max_size")] == [[0, 0], [1, 0], [2, 0]]

    def test_a_shorter_loader_is_started_again_as_often_as_needed(self):
        combined = CombinedLoader({"one": range(1, 2), "five": range(5)}, "max_size_cycle")
        assert items(combined) == [{"one": 1, "five": i} for i in range(5)]

    def test_equal_lengths(self):
        for mode in ("min_size", "max_size_cycle", "max_size"):
            assert items(CombinedLoader([range(1, 3), range(3, 5)], mode)) == [[1, 3], [2, 4]]

    @pytest.mark.parametrize("mode", ["min_size", "max_size_cycle", "max_size", "sequential"])
    def test_no_loaders_at_all(self, mode):
        assert items(CombinedLoader({}, mode)) == []
        assert len(CombinedLoader({}, mode)) == 0

    def test_default(self):
        assert CombinedLoader([SHORT, LONG]).mode == "min_size"

    def test_unknown(self):
        with pytest.raises(UnknownNameError, match="max_size_cycle"):
            CombinedLoader([SHORT], "max_size_cycl")


class Pair(NamedTuple):
    left: object
    right: object


class TestNesting:
    def test_batches_have_the_nesting_of_the_loaders(self):
        five = DataLoader(range(4, 6), batch_size=None)
        nested = CombinedLoader({"a": range(2), "b": [range(2, 4), Pair(range(8, 10), {"c": five})]}, "min_size")
        assert items(nested) == [
            {"a": 0, "b": [2, Pair(8, {"c": 4})]},
            {"a": 1, "b": [3, Pair(9, {"c": 5})]},
        ]
        assert len(nested.flattened) == 4

    def test_loaders_are_let_go_as_soon_as_nothing_uses_them(self):
        """A loader with workers that waits for a garbage collection keeps them until then."""
        loader = DataLoader(range(2))
        gone = weakref.ref(loader)
        gc.disable()
        try:
            leaves, _ = flatten({"a": [loader]})
            del leaves, loader, _
            assert gone() is None
        finally:
            gc.enable()

    def test_flatten_and_back(self):
        leaves, rebuild = flatten({"a": [range(1)], "b": (range(2), range(3))})
        assert leaves == [range(1), range(2), range(3)]
        assert rebuild([1, 2, 3]) == {"a": [1], "b": (2, 3)}

    def test_a_list_of_batches_is_one_loader(self):
        assert items(CombinedLoader([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
        assert items(CombinedLoader({"a": [[1, 2], [3, 4]], "b": range(2)})) == [
            {"a": [1, 2], "b": 0},
            {"a": [3, 4], "b": 1},
        ]
        assert items(CombinedLoader([{"x": 1}, {"x": 2}])) == [{"x": 1}, {"x": 2}]

    def test_what_cannot_be_iterated(self):
        with pytest.raises(MisconfigurationException, match=r"A loader is 7 \(int\), which cannot be iterated"):
            CombinedLoader({"a": 7})


class TestLengths:
    def test_limits(self):
        combined = CombinedLoader([SHORT, LONG], "sequential")
        combined.limits = [1, 2]
        assert items(combined) == [1, 7, 8]
        assert len(combined) == 3
        combined.limits = [0, 2]
        assert list(combined) == [(7, 0, 1), (8, 1, 1)]
        combined.mode, combined.limits = "min_size", [2, 1]
        assert items(combined) == [[1, 7]]
        combined.mode, combined.limits = "max_size", [1, 3]
        assert items(combined) == [[1, 7], [None, 8], [None, 9]]

    def test_a_limit_stops_reading(self):
        read = []
        combined = CombinedLoader([(read.append(i) or i for i in range(9))], "sequential")
        combined.limits = [3]
        assert items(combined) == [0, 1, 2]
        assert read == [0, 1, 2]

    @pytest.mark.parametrize("limits", [None, [1, 2, 9], [9, 2, 1], [2, 9, 3], [0, 1, 2]])
    @pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
    @pytest.mark.parametrize("sizes", [(2, 3, 5), (5, 3, 2), (1, 5, 1), (0, 0, 0), (0, 3, 2), (2, 0, 2)])
    def test_it_gives_as_many_items_as_its_length(self, sizes, mode, limits):
        combined = CombinedLoader([range(size) for size in sizes], mode)
        combined.limits = limits
        each = [min(size, limit) for size, limit in zip(sizes, limits or sizes, strict=True)]
        count = {"min_size": min, "sequential": sum}.get(mode, max)(each)
        assert len(combined) == count
        if mode == "max_size_cycle" and count and 0 in sizes:
            empty = sizes.index(0)
            with pytest.raises(MisconfigurationException, match=rf"loader {empty} of 3 .* gave no batch .* after 0"):
                items(combined)
        else:
            assert len(items(combined)) == count

    def test_a_loader_that_can_be_read_once_does_not_cycle(self):
        combined, read = CombinedLoader({"a": range(5), "b": iter(range(2))}, "max_size_cycle"), []
        with pytest.raises(MisconfigurationException, match=r"loader 1 of 2 .* was started again, after 2 batches"):
            read.extend(batch for batch, _, _ in combined)
        assert items(CombinedLoader([iter(range(2)), iter(range(2))], "max_size_cycle")) == [[0, 0], [1, 1]]

    def test_unknown(self):
        with pytest.raises(TypeError, match=r"has no length \(lengths: \[2, inf\]\)"):
            len(CombinedLoader([SHORT, Unsized(LONG)], "max_size"))
        assert len(CombinedLoader([SHORT, Unsized(LONG)], "min_size")) == 2

    @pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
    def test_places(self, mode):
        """The places while reading match those derived from lengths, and reading resumes from each."""
        combined, place = CombinedLoader([SHORT, range(5), LONG], mode), Place(3)
        begin = lambda loader: iter(combined.flattened[loader])  # noqa: E731
        whole, told = [], [combined.place_of(0).now]
        for item in combined.read(begin, place):
            whole.append(item)
            told.append(combined.place_of(len(whole)).now)
            assert place.now == told[-1]
            assert place.before == told[-2]
        assert whole == list(combined)
        for done in range(len(whole) + 1):
            at = combined.place_of(done)
            skipped = [islice(loader, read, None) for loader, read in zip(combined.flattened, at.read, strict=True)]
            given = set()

            def go_on(loader, given=given, skipped=skipped):
                first = loader not in given
                given.add(loader)
                return skipped[loader] if first else iter(combined.flattened[loader])

            assert list(combined.read(go_on, at)) == whole[done:]

    @pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
    def test_places_are_not_told_without_lengths(self, mode):
        assert CombinedLoader([SHORT, Unsized(LONG)], mode).place_of(1) is None


class Reads(Net):
    """Keeps the batches that its steps are given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch)
        return sum(p.sum() for p in self.parameters())

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.seen.append((batch, batch_idx, dataloader_idx))


class TestInARun:
    def test_several_training_loaders_cycle_by_default(self):
        module = Reads()
        trainer = quiet_trainer(limit_val_batches=0)
        trainer.fit(module, {"a": loader(8), "b": loader(20)})
        assert trainer.num_training_batches == 5
        assert [set(batch) for batch in module.seen] == [{"a", "b"}] * 5
        assert module.seen[0]["a"][0].equal(module.seen[2]["a"][0])

    @pytest.mark.parametrize(("mode", "number"), [("min_size", 2), ("max_size", 5), ("sequential", 7)])
    def test_another_mode(self, mode, number):
        module = Reads()
        trainer = quiet_trainer(limit_val_batches=0)
        trainer.fit(module, CombinedLoader([loader(8), loader(20)], mode))
        assert trainer.num_training_batches == len(module.seen) == number

    def test_validation_is_sequential_by_default(self):
        module = Reads()
        trainer = quiet_trainer(limit_val_batches=2)
        trainer.validate(module, {"a": batches(1), "b": loader(20)}, verbose=False)
        assert trainer.num_val_batches == [1, 2]
        assert [where for _, *where in module.seen] == [[0, 0], [0, 1], [1, 1]]

    def test_validation_in_parallel(self):
        module = Reads()
        trainer = quiet_trainer()
        trainer.validate(module, CombinedLoader({"a": batches(1), "b": batches(3)}, "max_size"), verbose=False)
        assert [(i, index) for _, i, index in module.seen] == [(0, 0), (1, 0), (2, 0)]
        assert module.seen[2][0]["a"] is None
        assert torch.equal(module.seen[2][0]["b"][0], batches(3)[2][0])
