"""Loaders with the distributed sampler that Lightning gives them, in place of their own sampler."""

from __future__ import annotations

import inspect
import os
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from lightlib import report
from lightlib.data.resumable_loader import copied_loader, in_data_order
from lightlib.data.seed import SEED_VARIABLE, seed_was_chosen
from lightlib.data.sharding import DataShard, is_sharded_by_user
from lightlib.errors import owner
from lightlib.samplers.distributed import DistributedSamplerWrapper, UnrepeatedDistributedSamplerWrapper

PREDICTION, FABRIC = "predict", "fabric"
_NOT_BY_NAME = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def with_distributed_sampler(loader: Any, share: DataShard, stage: str, sequential: bool = False) -> Any:
    """Return a copy of a loader with the sampler that Lightning gives it on several processes.

    A training loader is shuffled whether or not its own sampler shuffles, unless that is one of the user's. The seed is
    ``PL_GLOBAL_SEED`` if the user has set one, else 0. A loader that is read as it is (an iterable data set, or samples
    that the user has sharded) is returned unchanged, and so is one whose batch sampler cannot be made again.

    Args:
        loader: The user's loader.
        share: The share of the data that this process reads.
        stage: "training", "validation", "test" or "predict"; "fabric" for a loader of a Fabric, which does not shuffle
            what its own sampler leaves in order.
        sequential: Take the samples in the data set's order (`overfit_batches`).

    Example:
        >>> share = DataShard(1, 2, broadcast=lambda value: value, gather=lambda value: [value, value])
        >>> loader = DataLoader(range(5), batch_size=2)
        >>> list(with_distributed_sampler(DataLoader(range(6), batch_size=2), share, "validation"))
        [tensor([1, 3]), tensor([5])]
        >>> list(with_distributed_sampler(loader, share, "predict"))
        [tensor([1, 3])]
    """
    is_indexed = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if not is_indexed or is_sharded_by_user(loader, share, stage):
        return loader
    if sequential:
        loader = in_data_order(loader, stage)
    shuffles = (stage == "training" or isinstance(_innermost(loader), RandomSampler)) and not sequential
    sampler = _sampler(loader, share, stage, shuffles)
    if stage in ("validation", "test") and (repeated := sampler.total_size - len(loader.sampler)) > 0:
        report.warn_once(
            ("repeated", stage),
            f"The {stage} metrics count {repeated} of {len(loader.sampler)} samples twice, as in Lightning, so that "
            f"{share.size} processes read equally many. With one device, or without compat, each counts once.",
        )
    return _with_sampler(loader, sampler, stage)


def without_drop_last(loader: Any) -> Any:
    """Return the loader, or a copy that keeps an incomplete last batch, as Lightning's predictions do."""
    batches = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader) or type(batches) is not BatchSampler or not batches.drop_last:
        return loader
    return _with_sampler(loader, loader.sampler, PREDICTION)


def _innermost(loader: Any) -> Any:
    """Return the sampler that decides the order: that of the batch sampler, if there is one."""
    batches = loader.batch_sampler
    return loader.sampler if batches is None else getattr(batches, "sampler", batches)


def _sampler(loader: Any, share: DataShard, stage: str, shuffles: bool) -> DistributedSampler[Any]:
    seed = 0 if seed_was_chosen() else int(os.environ.get(SEED_VARIABLE, "0"))
    options: dict[str, Any] = {"num_replicas": share.size, "rank": share.rank, "shuffle": shuffles, "seed": seed}
    if stage == PREDICTION:
        return UnrepeatedDistributedSamplerWrapper(loader.sampler, **options)
    if isinstance(loader.sampler, (RandomSampler, SequentialSampler)):
        return DistributedSampler(loader.dataset, **options)
    return DistributedSamplerWrapper(loader.sampler, **options)


def _with_sampler(loader: Any, sampler: Any, stage: str) -> Any:
    """Return a copy of the loader that reads `sampler`; a batch sampler of the user's reads it, too."""
    batches, predicts = loader.batch_sampler, stage == PREDICTION
    if batches is None:
        return copied_loader(loader, sampler=sampler)
    if type(batches) is BatchSampler:
        drops = batches.drop_last and not predicts
        plain = BatchSampler(sampler, batches.batch_size, drops)
        return copied_loader(loader, sampler=sampler, batch_sampler=plain, drop_last=drops)
    rebuilt = _rebuilt(batches, sampler, {"drop_last": False} if predicts else {})
    if rebuilt is None:
        report.info_once(
            f"{stage.capitalize()} data: {type(batches).__name__} cannot be made again with a distributed sampler, so "
            "each process reads every batch of it and keeps its share. Give it the attributes that __init__ takes, or "
            f"shard in it and use {owner().loaders}use_distributed_sampler=False)."
        )
        return loader
    return copied_loader(loader, batch_sampler=rebuilt)


def _rebuilt(batches: Any, sampler: Any, changes: dict[str, Any]) -> Any:
    """Return a batch sampler of the same class that reads `sampler`; None if its attributes are not its arguments."""
    accepted = inspect.signature(type(batches)).parameters
    if "sampler" not in accepted or any(each.kind in _NOT_BY_NAME for each in accepted.values()):
        return None
    arguments = {name: getattr(batches, name) for name in accepted if hasattr(batches, name)}
    if any(name not in arguments and each.default is each.empty for name, each in accepted.items()):
        return None
    changed = {name: value for name, value in changes.items() if name in accepted}
    return type(batches)(**{**arguments, "sampler": sampler, **changed})
