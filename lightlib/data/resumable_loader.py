"""Resumable loaders: copies of the user's DataLoaders that shard, seed and remember their order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    SequentialSampler,
    SubsetRandomSampler,
)

from lightlib import report
from lightlib.data.index_stream import IndexStream, draws_at_once, is_random
from lightlib.data.sharding import (
    DataShard,
    ShardedBatchSampler,
    ShardedSampler,
    inner_sampler,
    is_plain_batches,
    is_sharded_by_user,
    world_size_of,
)
from lightlib.data.streams.adapter import adapter_of
from lightlib.data.worker_signals import Undisturbed, started_undisturbed
from lightlib.data.workers import Seeding, WorkerStart, in_worker

_BLOCK = 1024


def resumable_loader(
    loader: Any,
    sequential: bool = False,
    share: DataShard | None = None,
    training: bool = True,
    name: str = "training",
    number: int = 0,
) -> Any:
    """Return a loader that reads as `loader`, or a shard of it, and remembers its position; `loader` is not changed.

    Args:
        loader: The user's loader. A plain DataLoader over a map-style data set is copied (a shallow copy, with the same
            data set, worker settings and sampler), and the copy reads its sampler through an :class:`IndexStream`.
        sequential: Take the samples in the data set's own order, whatever the sampler (`overfit_batches`).
        share: Shard the samples, where batches are groups of consecutive samples, else the batches.
        training: Give each process equally many. An evaluation repeats nothing and leaves nothing out.
    """
    place = (0, 1)
    adapter = adapter_of(loader)
    if adapter is not None and (share is None or share.deals) and adapter.shards_itself(loader):
        of_rank = adapter.of_rank(loader, *((0, 1) if share is None else (share.rank, share.size)))
        loader = loader if of_rank is None else of_rank
    if share is not None and is_sharded_by_user(loader, share, name):
        place, share = (share.rank, share.size), None
    if not is_read_by_index(loader):
        if _is_plain(loader) and _may_be_seeded(loader):
            loader = copied_loader(loader, Seeding(name, number, loader.persistent_workers))
        return loader if share is None else ShardedBatchSampler(loader, share, training, name)
    attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
    indices = getattr(loader, attribute)
    if sequential:
        indices = _in_order(indices, attribute == "batch_sampler", loader.dataset, name)
    seeding = None
    if _may_be_seeded(loader):
        seeding = Seeding(name, number, loader.persistent_workers, attribute == "batch_sampler")
    if share is None:
        indices = IndexStream(indices, None, loader.dataset, seeding, place)
    else:
        agreeing = share if is_random(indices) else None
        indices = IndexStream(_sharded(indices, share, training), agreeing, loader.dataset, seeding)
    return copied_loader(loader, seeding, **{attribute: indices})


def copied_loader(loader: Any, seeding: Seeding | None = None, **attributes: Any) -> Any:
    """Return a shallow copy of a DataLoader with other attributes and no workers; with `seeding` we seed its workers.

    The copy shares no iterator with `loader`: workers that the user has started read the user's own sampler.
    """
    copied = copy.copy(loader)
    attributes["_iterator"] = None
    if hasattr(copied, "_initial_iter_for_state_dict"):
        attributes["_initial_iter_for_state_dict"] = False  # its iterator is the user's loader's
    if seeding is not None:
        kind: Any = type(loader)
        attributes["__class__"] = started_undisturbed(kind)
        attributes["worker_init_fn"] = Undisturbed(WorkerStart(loader.worker_init_fn, seeding))
        attributes["dataset"] = in_worker(loader.dataset, seeding)
    for name, value in attributes.items():
        object.__setattr__(copied, name, value)  # a DataLoader's own __setattr__ refuses some of them
    return copied


def in_data_order(loader: Any, name: str) -> Any:
    """Return a copy of a DataLoader that takes the samples in the data set's order; `name` is its stage."""
    batches = loader.batch_sampler
    if batches is None:
        return copied_loader(loader, sampler=_in_order(loader.sampler, False, loader.dataset, name))
    ordered = _in_order(batches, True, loader.dataset, name)
    return loader if ordered is batches else copied_loader(loader, batch_sampler=ordered, sampler=ordered.sampler)


def _in_order(indices: Any, in_batches: bool, data: Any, name: str) -> Any:
    """Return a sampler or batch sampler that takes the samples in the data set's order, where `indices` does not.

    Sharded samplers, fixed lists and custom batch samplers stay as they are.
    """
    sampler = inner_sampler(indices) if in_batches else indices
    if sampler is None or isinstance(sampler, (SequentialSampler, Sequence)) or world_size_of(sampler) is not None:
        return indices
    report.warn(
        f"overfit_batches: the {name} loader shuffles ({type(sampler).__name__}); its samples are taken in the data "
        "set's order instead."
    )
    in_order = sampler.indices if isinstance(sampler, SubsetRandomSampler) else SequentialSampler(data)
    return BatchSampler(in_order, indices.batch_size, indices.drop_last) if in_batches else in_order


def _is_plain(loader: Any) -> bool:
    """Whether `loader` is a DataLoader that is iterated as torch iterates it and keeps no position of its own."""
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__  # else it may never use the sampler that is put into a copy
        and not hasattr(loader, "state_dict")
    )


def is_read_by_index(loader: Any) -> bool:
    """Whether a position in `loader` is a number of indices, so that no data are read to get there.

    This includes torchdata's StatefulDataLoader when neither its data set nor the user gave it a state.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    if type(loader).__iter__.__module__.startswith("torchdata.stateful_dataloader."):
        return not hasattr(loader.dataset, "state_dict") and getattr(loader, "next_iter_state", None) is None
    return _is_plain(loader)


def _may_be_seeded(loader: Any) -> bool:
    return loader.num_workers > 0 and not isinstance(loader.dataset, (IterDataPipe, MapDataPipe))


def _sharded(indices: Any, share: DataShard, training: bool) -> Any:
    """Return a sampler or batch sampler of this process's samples, or batches where they are not plain."""
    drops = bool(getattr(indices, "drop_last", False))
    last = "keep" if not training else "drop" if drops else "fill"
    block = 0 if draws_at_once(indices) else _BLOCK
    if is_plain_batches(indices) and (training or not drops):  # an evaluation drops the batch that one process drops
        return BatchSampler(ShardedSampler(indices.sampler, share, last, block), indices.batch_size, indices.drop_last)
    return ShardedSampler(indices, share, last, block)


def is_sharded(loader: Any) -> bool:
    """Whether `loader` gives this process only its shard, as `resumable_loader` makes it."""
    samplers = (getattr(loader, attribute, None) for attribute in ("batch_sampler", "sampler"))
    indices = [sampler.indices for sampler in samplers if isinstance(sampler, IndexStream)]
    return isinstance(loader, ShardedSampler) or any(
        isinstance(source, ShardedSampler) or isinstance(inner_sampler(source), ShardedSampler) for source in indices
    )


def batch_size_of_loader(loader: Any) -> int | None:
    """Return how many samples a batch of `loader` has, when it is a DataLoader with a fixed batch size."""
    batches = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None)
    if size is None and is_plain_batches(getattr(batches, "indices", batches)):
        size = batches.batch_size  # type: ignore[union-attr]
    return size if type(size) is int else None


def with_smaller_batches(loader: Any, largest: int) -> Any:
    """Return `loader`, or a copy of it with batches of `largest` samples when its own are larger."""
    size = batch_size_of_loader(loader)
    if size is None or size <= largest or not isinstance(loader, DataLoader):
        return loader
    batches: Any = loader.batch_sampler
    smaller = BatchSampler(batches.sampler, largest, batches.drop_last)
    return copied_loader(loader, batch_sampler=smaller, batch_size=largest)


def stop_workers(loader: Any, given: Any) -> None:
    """End the persistent workers of our copy of a loader."""
    copied = loader.items if isinstance(loader, ShardedSampler) else loader
    if copied is not given and isinstance(copied, DataLoader):
        copied._iterator = None  # noqa: SLF001  the only reference to them
