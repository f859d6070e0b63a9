"""Batches of data in memory equal a DataLoader's in values, draws and errors, to the last bit."""

from __future__ import annotations

import contextlib
import pickle

import numpy
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from lightlib.core.setup.loaders import serve
from lightlib.data.combined import CombinedLoader
from lightlib.data.evaluation import EvalData
from lightlib.data.gather import batches_of
from lightlib.data.seed import rng_state
from lightlib.data.train import TrainData
from tests.data.reads import plain, read_all, read_rest, seeded, through_a_file
from tests.data.test_sharding import Processes
from tests.runs.plain import network, quiet_trainer, same_weights, samples, subclass

DTYPES = [getattr(torch, f"float{n}") for n in (16, 32, 64)] + [getattr(torch, f"int{n}") for n in (8, 16, 32, 64)]
DTYPES += [torch.bfloat16, torch.bool, torch.uint8, torch.complex64, torch.complex128]
SHAPES = [(), (0,), (1,), (3,), (2, 0, 3), (1, 1, 1), (3, 1, 1), (1, 4, 5), (2, 3, 4), (2, 1, 3, 3)]


def own():
    return torch.Generator().manual_seed(4)


def data(n=22):
    return TensorDataset(*samples(n))


def by_torch(samples):
    """The default collate function under another name, which lightlib does not recognize."""
    return default_collate(samples)


def facts(batch):
    """Return every observable property of a batch."""
    if not isinstance(batch, torch.Tensor):
        return type(batch), [facts(one) for one in batch]
    own = batch.dtype, batch.shape, batch.stride(), batch.storage_offset(), batch.untyped_storage().nbytes()
    more = batch.requires_grad, batch.is_inference(), batch._base is None, batch.is_leaf, batch.device, type(batch)
    return own, more, bytes(batch.detach().contiguous().flatten().view(torch.uint8).tolist())


def pass_of(iterate, loader):
    """Return the batches of a pass, the state of the generators after each, and its error."""
    seeded(5)
    found = []
    try:
        found.extend((facts(batch), rng_state()["torch"].tolist()) for batch in iterate(loader))
    except Exception as error:  # noqa: BLE001  any: it has to be the same
        found.append((type(error), str(error)))
    return found, rng_state()["torch"].tolist()


def is_gathered(loader):
    return not isinstance(batches_of(loader), _SingleProcessDataLoaderIter)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_shape_and_number_of_samples(dtype):
    for shape in SHAPES:
        rows = torch.randn(7, *shape).mul(3).to(dtype)
        for size in (1, 2, 7):
            loader = DataLoader(TensorDataset(rows, torch.arange(7)), size)
            assert is_gathered(loader)
            assert pass_of(batches_of, loader) == pass_of(iter, loader), (shape, size)


LOADERS = {
    "in order": lambda: DataLoader(data(), 4),
    "shuffled": lambda: DataLoader(data(), 4, shuffle=True),
    "dropped": lambda: DataLoader(data(), 4, shuffle=True, drop_last=True),
    "one tensor": lambda: DataLoader(TensorDataset(torch.arange(9)), 4, shuffle=True),
    "own generator": lambda: DataLoader(data(), 4, shuffle=True, generator=own()),
    "two generators": lambda: DataLoader(data(), 4, sampler=RandomSampler(range(22), generator=own()), generator=own()),
    "with replacement": lambda: DataLoader(data(), 4, sampler=RandomSampler(range(22), replacement=True)),
    "weighted": lambda: DataLoader(data(), 4, sampler=WeightedRandomSampler([1.0] * 22, 40)),
    "some of them": lambda: DataLoader(data(), 4, sampler=SubsetRandomSampler([3, 8, 1, 20, 3])),
    "batch sampler": lambda: DataLoader(data(), batch_sampler=[[3, 2], [1], [4, 4, 4]]),
    "a subset": lambda: DataLoader(Subset(data(), [5, 3, 21, 0, 0, 7, 9]), 3, shuffle=True),
    "a subset by a range": lambda: DataLoader(Subset(data(), range(20, 2, -3)), 3, shuffle=True),
    "a subset by NumPy": lambda: DataLoader(Subset(data(), numpy.arange(4, 17)), 3, shuffle=True),
    "a subset from the end": lambda: DataLoader(Subset(data(), [-1, -4, 2]), 3),
    "nested subsets": lambda: DataLoader(Subset(Subset(data(), range(1, 15)), [9, 2, 3, 3]), 3, shuffle=True),
    "random split": lambda: DataLoader(torch.utils.data.random_split(data(), [10, 12], own())[1], 5, shuffle=True),
    "lightlib's own, of arrays": lambda: serve((numpy.eye(40), numpy.arange(40)), "train", 16),
    "lightlib's own, of a data set": lambda: serve(data(), "val", None),
    "views of memory that other tensors write": lambda: DataLoader(
        TensorDataset(torch.arange(40.0)[7:].view(11, 3)), 4
    ),
    "broadcast over nothing": lambda: DataLoader(TensorDataset(torch.empty(5, 0), torch.arange(5)), 2),
}


@pytest.mark.parametrize("name", LOADERS)
def test_batches_and_draws_are_those_of_the_loader(name):
    assert is_gathered(LOADERS[name]())
    assert pass_of(batches_of, LOADERS[name]()) == pass_of(iter, LOADERS[name]())


def test_a_second_pass_goes_on_with_the_generators():
    twice = lambda iterate: lambda loader: [*iterate(loader), *iterate(loader)]  # noqa: E731
    for name in ("shuffled", "own generator", "two generators"):
        assert pass_of(twice(batches_of), LOADERS[name]()) == pass_of(twice(iter), LOADERS[name]())


def test_inference_mode_is_that_of_the_reader():
    with torch.inference_mode():
        found = pass_of(batches_of, LOADERS["shuffled"]())
        assert found == pass_of(iter, LOADERS["shuffled"]())
    assert found != pass_of(iter, LOADERS["shuffled"]()), "and the facts show it"


class Odd:
    """A batch sampler that gives any indices."""

    def __init__(self, *batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


ODD = {
    "from the end": [[-1, 2], [-22, 0]],
    "past the end": [[1, 2], [3, 22]],
    "past the start": [[-23]],
    "nothing": [[1], []],
    "too large": [[2**70]],
    "bools": [[True, False]],
    "a bool among numbers": [[1, True]],
    "floats": [[1.0, 2.0]],
    "slices": [[slice(0, 2), slice(3, 5)]],
    "lists": [[[0, 1], [2, 3]]],
    "None": [[None, None]],
    "NumPy's numbers": [[numpy.int64(3), numpy.int64(-1)], [numpy.int32(3), 4], [numpy.uint8(1)], [numpy.bool_(True)]],
    "tensors": [[torch.tensor(3), torch.tensor(0)], [torch.tensor(True)], [torch.tensor([1, 2])]],
    "a tensor": [torch.tensor([4, 2])],
    "an array": [numpy.array([4, 2])],
    "a tuple": [(4, 2)],
    "a range": [range(3, 6)],
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("among", [data, lambda: Subset(data(30), list(range(22)))], ids=["rows", "a subset"])
def test_odd_indices_give_what_the_loader_gives_or_raises(name, among):
    loader = DataLoader(among(), batch_sampler=Odd(*ODD[name]))
    assert is_gathered(loader)
    assert pass_of(batches_of, loader) == pass_of(iter, loader)


def test_an_iterator_of_indices_is_read_once():
    iterators = lambda: DataLoader(data(), batch_sampler=Odd(iter([3, 1]), iter([2])))  # noqa: E731
    assert pass_of(batches_of, iterators()) == pass_of(iter, iterators())


def test_subsets_by_other_things_than_numbers():
    for indices in ([True, False, 2], [slice(0, 2)], torch.tensor([3, 1]), numpy.eye(3, dtype=int), [None], ["a"]):
        loader = DataLoader(Subset(data(), indices), 2)
        assert pass_of(batches_of, loader) == pass_of(iter, loader)


def reads_while(change, make, iterate):
    """Batches of a pass during which the data change after the first."""
    loader = make()
    iterator = iterate(loader)
    found = [facts(next(iterator))]
    change(loader.dataset)
    return found + [facts(one) for one in iterator]


def _in_place(dataset):
    dataset.tensors[0].mul_(2)


def _replaced(dataset):
    dataset.tensors = (dataset.tensors[0] + 1, dataset.tensors[1].float().requires_grad_())


def _no_tuple(dataset):
    dataset.tensors = [dataset.tensors[0] - 1]


def _other_memory(dataset):
    dataset.tensors[0].data = dataset.tensors[0].data + 3


@pytest.mark.parametrize("change", [_in_place, _replaced, _no_tuple, _other_memory])
def test_data_that_change_within_an_epoch_are_seen(change):
    make = lambda: DataLoader(data(), 4)  # noqa: E731
    first = reads_while(lambda _: None, make, iter)
    assert first != reads_while(change, make, iter) == reads_while(change, make, batches_of)


def test_data_that_no_longer_fit_are_refused_as_the_loader_refuses_them():
    for iterate in (iter, batches_of):
        loader = DataLoader(data(), 4)
        batches = iterate(loader)
        next(batches)
        loader.dataset.tensors = (loader.dataset.tensors[0].to_sparse(), loader.dataset.tensors[1])
        with pytest.raises(RuntimeError, match="sparse tensors are not"):
            next(batches)


def _other_indices(subset):
    subset.indices = list(reversed(subset.indices))


def _indices_in_place(subset):
    subset.indices[:] = subset.indices[::-1]


def _other_data(subset):
    subset.dataset = TensorDataset(*samples(30, seed=9))


@pytest.mark.parametrize("change", [_other_indices, _indices_in_place, _other_data])
def test_subsets_that_change_within_an_epoch_are_seen(change):
    make = lambda: DataLoader(Subset(data(), list(range(20))), 4)  # noqa: E731
    first = reads_while(lambda _: None, make, iter)
    assert first != reads_while(change, make, iter) == reads_while(change, make, batches_of)


class Looked(TensorDataset):
    """Rows with a `__getitem__` of their own."""

    def __getitem__(self, index):
        return tuple(-one for one in super().__getitem__(index))


class OnlyNamed(TensorDataset):
    """Rows under another name."""


class LookedAt(Subset):
    """A subset with a `__getitems__` of its own."""

    def __getitems__(self, indices):
        return [tuple(-part for part in one) for one in super().__getitems__(indices)]


class Several(DataLoader):
    """A custom loader."""


class Kept(torch.Tensor):
    """A custom tensor class."""


def _with(dataset, **attributes):
    vars(dataset).update(attributes)
    return dataset


def rows_of(make, **arguments):
    return lambda: DataLoader(TensorDataset(make()), 3, **arguments)


OTHERS = {
    "a data set of one's own": lambda: DataLoader(Looked(*samples(10)), 3),
    "a subclass": lambda: DataLoader(OnlyNamed(*samples(10)), 3),
    "a subset of a data set of one's own": lambda: DataLoader(Subset(Looked(*samples(10)), [2, 3]), 3),
    "a subset of one's own": lambda: DataLoader(LookedAt(data(), [2, 3]), 3),
    "a data set with __getitems__": lambda: DataLoader(_with(data(), __getitems__=lambda _: [(torch.ones(2),)]), 3),
    "a loader of one's own": lambda: Several(data(), 3),
    "a collate function": lambda: DataLoader(data(), 3, collate_fn=len),
    "without batches": lambda: DataLoader(data(), batch_size=None),
    "a tensor with a gradient": rows_of(lambda: torch.ones(5, 2, requires_grad=True)),
    "a parameter": rows_of(lambda: torch.nn.Parameter(torch.ones(5, 2))),
    "a kind of tensor": rows_of(lambda: torch.ones(5, 2).as_subclass(Kept)),
    "columns": rows_of(lambda: torch.arange(15.0).view(3, 5).t()),
    "channels last": rows_of(lambda: torch.randn(5, 3, 4, 4).to(memory_format=torch.channels_last)),
    "broadcast": rows_of(lambda: torch.ones(1, 3).expand(5, 3)),
    "every second row": rows_of(lambda: torch.randn(10, 3)[::2]),
    "conjugated": rows_of(lambda: torch.randn(5, 2, dtype=torch.complex64).conj()),
    "a negated view": rows_of(lambda: torch.randn(5, 2, dtype=torch.complex64).conj().imag),
    "sparse": rows_of(lambda: torch.eye(5).to_sparse()),
    "quantized": rows_of(lambda: torch.quantize_per_tensor(torch.ones(5, 2), 0.1, 0, torch.qint8)),
    "long rows": rows_of(lambda: torch.randn(4, 20_000)),
    "a rare dtype": rows_of(lambda: torch.ones(5, 2).to(torch.float8_e4m3fn)),
    "a list": lambda: DataLoader([1, 2, 3, 4], 3),
}


@pytest.mark.filterwarnings("ignore")  # of torch, about some of these tensors
@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_is_read_by_torch(name):
    loader = OTHERS[name]()
    assert not is_gathered(loader)
    seeded(5)
    ours, theirs = [], []
    for found, iterate in ((ours, batches_of), (theirs, iter)):
        try:
            found.extend(map(repr, iterate(loader)))
        except Exception as error:  # noqa: BLE001  some cannot be read at all
            found.append(str(error))
    assert ours == theirs
    assert ours


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_pinned_memory_is_left_to_torch():
    assert not is_gathered(rows_of(lambda: torch.ones(5, 2), pin_memory=True)())


def test_meta_tensors_are_left_to_torch():
    assert not is_gathered(rows_of(lambda: torch.ones(5, 2, device="meta"))())


class Stream(IterableDataset):
    """A stream of numbers."""

    def __iter__(self):
        return iter(range(5))


@pytest.mark.parametrize("loader", [[1, 2], DataLoader(Stream(), 2), iter([3])], ids=["list", "stream", "iterator"])
def test_what_is_no_such_loader_is_iterated(loader):
    assert list(map(plain, batches_of(loader))) in ([1, 2], [[0, 1], [2, 3], [4]], [3])


@pytest.mark.parametrize("kind", [torch.Tensor, tuple])
def test_types_that_are_added_to_torchs_table_are_collated_by_it(kind, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, kind, lambda batch, **_: len(batch))
    assert list(batches_of(DataLoader(data(8), 4))) == list(DataLoader(data(8), 4))


@pytest.mark.parametrize("kind", [TensorDataset, Subset])
def test_a_patched_data_set_is_asked(kind, monkeypatch):
    loader, asked = DataLoader(Subset(data(), [3, 4]), 2), []
    name = "__getitem__" if kind is TensorDataset else "__getitems__"
    given = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda self, index: (asked.append(index), given(self, index))[1])
    assert list(map(plain, batches_of(loader))) == list(map(plain, loader))
    assert len(asked) in (4, 2)


def test_a_default_device_does_not_move_what_is_taken():
    batches = batches_of(DataLoader(data(), 4))
    with torch.device("meta"):
        x, y = next(batches)
    assert (x.device.type, y.device.type) == ("cpu", "cpu")


def test_a_profile_names_what_torch_names():
    names = []
    for iterate in (iter, batches_of):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in iterate(DataLoader(data(8), 4)):
                pass
        names.append([one.count for one in profile.key_averages() if one.key.startswith("enumerate(DataLoader)")])
    assert names == [[3], [2]]  # torch also counts the end


MAKES = {
    "shuffled": lambda **more: DataLoader(data(), 4, shuffle=True, **more),
    "own generator": lambda **more: DataLoader(data(), 4, shuffle=True, generator=own(), drop_last=True, **more),
    "a subset": lambda **more: DataLoader(Subset(data(), [4, 2, 9, 9, 1, 0, 20]), 3, shuffle=True, **more),
    "a batch sampler": lambda **more: DataLoader(
        data(), batch_sampler=BatchSampler(RandomSampler(range(22), True), 5, False), **more
    ),
    "several": lambda **more: {"a": DataLoader(data(), 4, shuffle=True, **more), "b": DataLoader(data(7), 3, **more)},
    "one after the other": lambda **more: CombinedLoader(
        [DataLoader(data(), 8, shuffle=True, **more), DataLoader(data(7), 3, shuffle=True, **more)], "sequential"
    ),
}


@pytest.mark.parametrize("name", MAKES)
def test_a_run_goes_on_exactly_whichever_way_it_was_read_before(name):
    def gathered():
        return MAKES[name]()

    def as_torch():
        return MAKES[name](collate_fn=by_torch)

    whole, saved = read_all(gathered)
    reference, by_torchs = read_all(as_torch)
    assert whole == reference
    for mine, theirs in zip(saved, by_torchs, strict=True):
        epoch, batch, done, _, numbers = mine
        for (*_, written, _), make in ((mine, as_torch), (theirs, gathered), (mine, gathered)):
            state = through_a_file(pickle.loads(written))
            assert read_rest(make, epoch, batch, state, numbers) == whole[done:]


@pytest.mark.parametrize("arguments", [{"limit": 3}, {"limit": 0.5}, {"sequential": True}, {"largest": 2}], ids=str)
def test_limits_and_overfitting_and_smaller_batches(arguments):
    with pytest.warns() if "sequential" in arguments else contextlib.nullcontext():
        gathered, _ = read_all(MAKES["shuffled"], **arguments)
        by_torchs, _ = read_all(lambda: MAKES["shuffled"](collate_fn=by_torch), **arguments)
    assert gathered == by_torchs


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_read_what_they_read_by_torch(size):
    def parts(**more):
        def train(share):
            read = TrainData(lambda: MAKES["shuffled"](**more), 1.0, None, share=share)
            read.start_epoch(0, 0)
            found = [facts(next(read)) for _ in range(int(read.num_batches))]
            read.close()
            return found

        def evaluate(share):
            loader = DataLoader(data(), 4, **more)
            read = EvalData(loader, 1.0, None, "limit_val_batches", "validation", share, lockstep=False)
            return [facts(batch) for batch, _, _ in read.batches()]

        return Processes(size).each_of_all(train), Processes(size).each_of_all(evaluate)

    assert parts() == parts(collate_fn=by_torch)


def test_training_and_validation_are_those_of_a_plain_loop():
    both = subclass(validation_step=lambda self, batch, batch_idx: seen.append(float(self.loss(batch))))
    seen, expected = [], []
    seeded(8)
    module = both(dropout=0.3)
    quiet_trainer(max_epochs=2).fit(module, DataLoader(data(), 4, shuffle=True), DataLoader(data(9), 4))
    seeded(8)
    net = network(0.3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training, validation = DataLoader(data(), 4, shuffle=True), DataLoader(data(9), 4)
    for _ in range(2):
        for x, y in training:
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        with torch.inference_mode():
            expected += [float(cross_entropy(net(x), y)) for x, y in validation]
        net.train()
    other = both()
    other.net = net
    assert same_weights(module, other)
    assert seen == expected
