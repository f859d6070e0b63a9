"""The orders that samplers give, compared with closed forms, and their errors."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.samplers import (
    BucketBatchSampler,
    ClassBalancedDataset,
    ClassBalancedSampler,
    InfiniteSampler,
    LengthGroupedSampler,
    RepeatDataset,
    RepeatedAugmentationSampler,
    RepeatSampler,
    ShuffleSampler,
    SkipSampler,
)


class TestShuffled:
    def test_the_order_follows_from_seed_and_epoch(self):
        sampler, orders = ShuffleSampler(range(20), seed=3), []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            orders.append(list(sampler))
            assert orders[-1] == torch.randperm(20, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        assert orders[0] != orders[1] != orders[2]

    def test_the_program_does_not_change_it(self):
        first = list(ShuffleSampler(range(20)))
        torch.rand(5)
        assert list(ShuffleSampler(range(20))) == first

    def test_without_a_seed_it_draws_as_torchs_sampler_does(self):
        torch.manual_seed(1)
        mine = list(ShuffleSampler(range(20), seed=None))
        after = torch.rand(1)
        torch.manual_seed(1)
        assert list(RandomSampler(range(20))) == mine
        assert torch.rand(1).equal(after)


class TestInfinite:
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_it_goes_through_all_samples_before_it_repeats_one(self, shuffle):
        drawn = list(itertools.islice(InfiniteSampler(range(7), shuffle=shuffle, seed=2), 21))
        passes = [drawn[:7], drawn[7:14], drawn[14:]]
        assert all(sorted(one) == list(range(7)) for one in passes)
        assert (passes[0] != passes[1]) is shuffle

    def test_an_epoch_continues_where_the_last_one_ended(self):
        stream = list(itertools.islice(InfiniteSampler(range(7), seed=2), 25))
        sampler, epochs = InfiniteSampler(range(7), 5, seed=2), []
        for epoch in range(5):
            sampler.set_epoch(epoch)
            epochs += list(sampler)
        assert epochs == stream
        assert len(sampler) == 5

    def test_it_has_no_length_without_num_samples(self):
        with pytest.raises(TypeError, match="InfiniteSampler has no length"):
            len(InfiniteSampler(range(3)))

    def test_epochs_without_a_length_begin_differently(self):
        sampler = InfiniteSampler(range(50))
        first = list(itertools.islice(sampler, 50))
        sampler.set_epoch(1)
        assert list(itertools.islice(sampler, 50)) != first


class TestRepeated:
    def test_each_pass_is_drawn_again(self):
        torch.manual_seed(1)
        expected = [*RandomSampler(range(9)), *RandomSampler(range(9))]
        torch.manual_seed(1)
        sampler = RepeatSampler(RandomSampler(range(9)), 2)
        assert list(sampler) == expected
        assert len(sampler) == 18

    def test_passes_are_epochs_of_the_sampler(self):
        sampler, inner = RepeatSampler(ShuffleSampler(range(9)), 2), ShuffleSampler(range(9))
        sampler.set_epoch(1)
        expected = []
        for epoch in (2, 3):
            inner.set_epoch(epoch)
            expected += list(inner)
        assert list(sampler) == expected

    def test_a_data_set(self):
        data = RepeatDataset([10, 11, 12], 3)
        assert [data[i] for i in range(len(data))] == [10, 11, 12] * 3
        assert data[-1] == 12
        with pytest.raises(IndexError):
            data[9]

    @pytest.mark.parametrize("size", [1, 2])
    def test_augmentation_on_processes(self, size):
        order = list(RepeatedAugmentationSampler(range(12), repeats=4, seed=1))
        kept = torch.randperm(12, generator=torch.Generator().manual_seed(1))[:3]
        assert order == [int(i) for i in kept for _ in range(4)]
        assert Counter(order[0::size]) == dict.fromkeys(kept.tolist(), 4 // size)

    def test_augmentation_with_more_samples_than_the_data_have(self):
        sampler = RepeatedAugmentationSampler(range(2), repeats=2, num_samples=7, shuffle=False)
        assert list(sampler) == [0, 0, 1, 1, 0, 0, 1]
        assert len(sampler) == 7


class TestSkip:
    def test_the_first_items_of_each_pass(self):
        sampler = SkipSampler(ShuffleSampler(range(9)), 4)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            inner = ShuffleSampler(range(9))
            inner.set_epoch(epoch)
            assert list(sampler) == list(inner)[4:]
        assert len(sampler) == 5

    def test_of_a_stream(self):
        assert list(itertools.islice(SkipSampler(InfiniteSampler(range(3), shuffle=False), 4), 3)) == [1, 2, 0]


def padding(lengths, order, size):
    """Elements of padding if `order` is read in batches of `size`."""
    found = [[lengths[i] for i in order[at : at + size]] for at in range(0, len(order), size)]
    return sum(max(batch) * len(batch) - sum(batch) for batch in found)


class TestLengths:
    lengths = torch.randint(1, 100, (256,), generator=torch.Generator().manual_seed(0)).tolist()

    def test_less_padding_than_in_random_order(self):
        grouped = list(LengthGroupedSampler(self.lengths, 8, seed=0))
        assert sorted(grouped) == list(range(256))
        assert grouped != sorted(grouped)
        assert padding(self.lengths, grouped, 8) < 0.3 * padding(self.lengths, list(ShuffleSampler(range(256))), 8)

    def test_each_group_is_sorted_and_the_longest_sample_comes_first(self):
        order = list(LengthGroupedSampler(self.lengths, 8, 4, seed=0))
        for at in range(0, 256, 32):
            group = [self.lengths[i] for i in order[at : at + 32]]
            assert group == sorted(group, reverse=True)
        assert self.lengths[order[0]] == max(self.lengths)

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_batches_of_buckets(self, drop_last):
        sampler = BucketBatchSampler(self.lengths, 8, boundaries=[25, 50, 75], drop_last=drop_last, seed=0)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        for batch in batches:
            assert len({-(-self.lengths[i] // 25) for i in batch}) == 1
        drawn = [i for batch in batches for i in batch]
        if drop_last:
            assert {len(batch) for batch in batches} == {8}
        else:
            assert sorted(drawn) == list(range(256))
        sampler.set_epoch(1)
        assert list(sampler) != batches

    def test_batches_of_so_many_tokens(self):
        sampler = BucketBatchSampler(self.lengths, max_tokens=400, seed=0)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert sorted(i for batch in batches for i in batch) == list(range(256))
        assert all(max(self.lengths[i] for i in batch) * len(batch) <= 400 for batch in batches)
        assert len({len(batch) for batch in batches}) > 3

    def test_in_a_loader(self):
        loader = DataLoader(range(256), batch_sampler=BucketBatchSampler(self.lengths, 8))
        assert sorted(int(i) for batch in loader for i in batch) == list(range(256))


class TestBalance:
    def test_as_many_of_each_class(self):
        classes = [0] * 90 + [1] * 9 + [5]
        drawn = list(ClassBalancedSampler(classes, 99, seed=0))
        counts = Counter(classes[i] for i in drawn)
        assert counts == {0: 33, 1: 33, 5: 33}
        assert len({i for i in drawn if i < 90}) == 33, "no sample of a frequent class is repeated"
        times = Counter(i for i in drawn if 90 <= i < 99)
        assert len(times) == 9
        assert set(times.values()) == {3, 4}

    def test_the_rest_goes_to_some_classes(self):
        counts = Counter(ClassBalancedSampler([0, 1, 2], 8, seed=1))
        assert sorted(counts.values()) == [2, 3, 3]

    def test_repeat_factors(self):
        classes = [0] * 16 + [1] * 4 + [2]
        data = ClassBalancedDataset(range(21), 0.5, classes)
        counts = Counter(data[i] for i in range(len(data)))
        factors = {c: max(1, math.sqrt(0.5 / (n / 21))) for c, n in Counter(classes).items()}
        assert counts == {i: math.ceil(factors[c]) for i, c in enumerate(classes)}
        assert sorted(set(counts.values())) == [1, 2, 4]

    def test_samples_with_several_classes(self):
        class Detection:
            boxes = ((0,), (0,), (0, 1), ())

            def __len__(self):
                return 4

            def __getitem__(self, index):
                return index

            def get_cat_ids(self, index):
                return self.boxes[index]

        data = ClassBalancedDataset(Detection(), 1.0)
        assert [data[i] for i in range(len(data))] == [0, 0, 1, 1, 2, 2, 3]

    def test_targets(self):
        class Labelled(list):
            targets = torch.tensor([0, 0, 0, 1])

        data = ClassBalancedDataset(Labelled("aaab"), 1.0)
        assert [data[i] for i in range(len(data))] == list("aa" * 3 + "bb")


ERRORS = [
    (lambda: ShuffleSampler(iter([1])), ArgumentTypeError, "which has no length"),
    (lambda: ShuffleSampler([]), MisconfigurationException, "a list of length 0"),
    (lambda: ShuffleSampler(range(3), seed=-1), MisconfigurationException, r"ShuffleSampler\(seed=-1\)"),
    (lambda: ShuffleSampler(range(3), seed=True), ArgumentTypeError, r"ShuffleSampler\(seed=True"),
    (lambda: InfiniteSampler(range(3), 0), MisconfigurationException, r"InfiniteSampler\(num_samples=0\)"),
    (lambda: InfiniteSampler(range(3), seed=None), ArgumentTypeError, r"InfiniteSampler\(seed=None"),
    (lambda: RepeatSampler(5, 2), ArgumentTypeError, "RepeatSampler got 5.*, which is no sampler"),
    (lambda: RepeatSampler(range(2), 1.5), ArgumentTypeError, r"RepeatSampler\(times=1.5"),
    (lambda: RepeatDataset([1], 0), MisconfigurationException, r"RepeatDataset\(times=0\)"),
    (lambda: SkipSampler(range(3), 3), MisconfigurationException, r"SkipSampler\(skip=3\) leaves none of 3 items"),
    (lambda: RepeatedAugmentationSampler(range(3), 0), MisconfigurationException, r"repeats=0"),
    (lambda: LengthGroupedSampler("abc", 2), ArgumentTypeError, "one whole number for each sample"),
    (lambda: LengthGroupedSampler([1.5, 2.0], 2), MisconfigurationException, "the dtype torch.float32"),
    (lambda: LengthGroupedSampler([1, -2], 2), MisconfigurationException, "the smallest of the lengths is -2"),
    (lambda: LengthGroupedSampler([1, 2], 0), MisconfigurationException, "batch_size=0"),
    (lambda: BucketBatchSampler([1, 2]), MisconfigurationException, r"batch_size=None, max_tokens=None"),
    (lambda: BucketBatchSampler([1, 2], 2, max_tokens=4), MisconfigurationException, "one of the two"),
    (lambda: BucketBatchSampler([1, 9], max_tokens=4), MisconfigurationException, "longest sample has the length 9"),
    (lambda: BucketBatchSampler([1], 2, boundaries=[5, 5]), MisconfigurationException, r"boundaries=\[5\]"),
    (lambda: BucketBatchSampler([1], 2, boundaries="5"), ArgumentTypeError, "a list of lengths"),
    (lambda: ClassBalancedSampler(None), ArgumentTypeError, r"ClassBalancedSampler\(classes=None"),
    (lambda: ClassBalancedSampler([]), MisconfigurationException, "one whole number for each sample"),
    (lambda: ClassBalancedDataset([1], 2), MisconfigurationException, "a number > 0 and <= 1"),
    (lambda: ClassBalancedDataset([1], "all"), ArgumentTypeError, r"threshold='all'"),
    (lambda: ClassBalancedDataset([1], 0.5), ArgumentTypeError, "neither get_cat_ids nor targets"),
    (lambda: ClassBalancedDataset([1], 0.5, [1, 2]), MisconfigurationException, "classes of 2 samples"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "text"), ERRORS)
def test_errors(make, kind, text):
    with pytest.raises(kind, match=text) as caught:
        make()
    assert "Fix:" in str(caught.value)


def test_a_sampler_of_nothing_skips_nothing():
    assert list(SkipSampler(SequentialSampler(range(2)), 0)) == [0, 1]
