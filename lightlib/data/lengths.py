"""Lengths: the number of batches that a limit leaves, the names of loaders, and errors of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lightlib.data.sharding import ShardedSampler
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, few, owner, shown


def limited(total: float, limit: float, argument: str, name: str, loader: Any = None) -> float:
    """Return the number of batches that `limit` leaves of `total`: an int is a number, a float a fraction.

    Args:
        loader: The name of the loader where limits were given by these names; it is part of an error.
    """
    if isinstance(limit, int):
        return min(total, limit)
    if limit == 1.0:
        return total
    if limit == 0.0 or total == 0:
        return 0

    def written(value: float) -> str:
        return f"{argument}={value if loader is None else {loader: value}}"

    if total == math.inf:
        raise MisconfigurationException(
            f"{written(limit)} is a fraction, but the {name} loader has no length.",
            expected="an int (a number of batches) or 1.0 for loaders without a length.",
            fix=f"Trainer({written(100)})",
        )
    if int(total * limit) == 0:
        raise MisconfigurationException(
            f"{written(limit)} of {int(total)} {name} batches leaves none.",
            expected=f"at least {1 / total:.3g}, or an int.",
            fix=f"Trainer({written(1)}) runs one batch.",
        )
    return int(total * limit)


def numbered_endings(count: int) -> tuple[str, ...]:
    """Return the endings of the names of metrics of loaders without names; none for a loader that is alone."""
    return ("",) if count == 1 else tuple(f"/dataloader_idx_{i}" for i in range(count))


def check_names(names: Sequence[Any], stage: str) -> None:
    """Refuse names of evaluation loaders that cannot end the name of a metric."""
    for name in names:
        if not isinstance(name, str) or not name or "/" in name:
            raise (MisconfigurationException if isinstance(name, str) else ArgumentTypeError)(
                f"A {stage} loader has the name {shown(name)}.",
                expected="a text without '/', which ends the names of its metrics, as in 'val_loss/clean'.",
                fix='{"clean": loader, …}, or a list of loaders, which are numbered.',
            )


def by_name(argument: str, given: Any, names: Sequence[str], stage: str, default: Any = None) -> list[Any]:
    """Return the value of an argument for each loader, in their order, from a dict by their names.

    Args:
        given: By the names of loaders.
        names: Of the loaders; none if they are in a list.
        stage: As in messages.
        default: Of a loader that the dict leaves out; None: it must name all.

    Raises:
        MisconfigurationException: The loaders have no names, or one is left out that must be named.
        UnknownNameError: No loader has a name.

    Example:
        >>> by_name("limit_val_batches", {"clean": 10}, ["clean", "noisy"], "validation", 1.0)
        [10, 1.0]
    """
    if not names:
        raise MisconfigurationException(
            f"{argument} has entries for the {stage} loaders {few(sorted(given))}, but these loaders have no names.",
            expected="a dict of loaders, which names them.",
            fix=f"{{{min(given)!r}: loader, …}} in place of the list, or one {argument} for all.",
        )
    if unknown := [name for name in given if name not in names]:
        fix = f"{argument}={{{names[0]!r}: …}}"
        raise UnknownNameError(f"name of a {stage} loader in {argument}:", unknown[0], names, fix=fix)
    missing = [name for name in names if name not in given]
    if missing and default is None:
        raise MisconfigurationException(
            f"{argument} has no entry for the {stage} loaders {few(missing)}.",
            expected="one for each loader.",
            fix=f"{argument}={{…, {missing[0]!r}: …}}",
        )
    return [given.get(name, default) for name in names]


def nothing_read(name: str, where: str) -> MisconfigurationException:
    """Return the error for a loader that gave no batch."""
    return MisconfigurationException(
        f"The {name} loader gave no batch{where and f' in {where}'}.",
        expected="at least one batch each time it is iterated.",
        fix="check the data set; a generator or iterator can be read only once: pass a list, or a DataLoader.",
    )


def is_length_exact(loader: Any) -> bool:
    """Whether the length is certain, so that no batch must be read ahead to know the last one."""
    source = loader.items if isinstance(loader, ShardedSampler) else loader
    if isinstance(source, DataLoader):
        return not isinstance(source.dataset, IterableDataset)
    return isinstance(source, Sequence)


def refuse_other_loaders(numbers: list[int], name: str) -> None:
    """Refuse processes with different numbers of loaders."""
    if len(set(numbers)) > 1:
        raise MisconfigurationException(
            f"The processes have different numbers of {name} loaders: {by_rank(numbers)}.",
            expected="the same loaders on every rank.",
            fix="create the loaders independently of the rank.",
        )


def refuse_other_ends(numbers: dict[int, int]) -> None:
    """Refuse streams that end after different numbers of batches on the processes; a negative number means "more"."""
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"rank {rank}: {number if number >= 0 else 'more'}" for rank, number in numbers.items())
        raise MisconfigurationException(
            f"The processes have different numbers of training batches: {listed}.",
            expected="the same stream on every rank, which keeps its share of the batches.",
            fix="make the stream independent of the rank; if each rank has a stream of its own, "
            f"{owner().loaders}use_distributed_sampler=False) reads it unchanged and ends the epoch with the shortest.",
        )


def by_rank(numbers: Sequence[float]) -> str:
    """Return the number of batches of each rank, as text."""
    return ", ".join(f"rank {rank}: {'no length' if n == math.inf else n}" for rank, n in enumerate(numbers))
