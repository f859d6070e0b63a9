"""CombinedLoader: several loaders iterated as one, in four modes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightlib.errors import MisconfigurationException, UnknownNameError

__all__ = ["CombinedLoader", "flatten", "holds_loaders", "length"]

MODES = ("min_size", "max_size_cycle", "max_size", "sequential")


class CombinedLoader:
    """Several loaders as one. An item is ``(batch, batch_idx, dataloader_idx)``.

    Args:
        iterables: A loader or any nesting of dicts, lists and tuples of loaders; `batch` has the same nesting.
        mode: ``"min_size"`` stops with the shortest; ``"max_size_cycle"`` starts shorter ones again until the longest
            ends; ``"max_size"`` gives None for those that have ended; ``"sequential"`` takes one after the other, and
            `batch` is then that loader's alone.

    Raises:
        UnknownNameError: The mode is none of these.

    Example:
        >>> loader = CombinedLoader({"a": [1, 2, 3], "b": "xy"}, mode="max_size_cycle")
        >>> [batch for batch, _, _ in loader]
        [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}, {'a': 3, 'b': 'x'}]
        >>> len(loader)
        3
    """

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        if mode not in MODES:
            raise UnknownNameError("mode of CombinedLoader", mode, MODES)
        self.iterables = iterables
        self.mode = mode
        self.flattened, self._rebuild = flatten(iterables)
        self.limits: list[float] | None = None

    def with_loaders(self, loaders: Sequence[Any]) -> CombinedLoader:
        """Return a combination of the same form over other loaders."""
        other = CombinedLoader(self._rebuild(loaders), self.mode)
        other.flattened, other._rebuild, other.limits = list(loaders), self._rebuild, self.limits
        return other

    def lengths(self) -> list[float]:
        """Return each loader's number of batches, after its limit; `inf` where the loader cannot tell."""
        limits = self.limits or [math.inf] * len(self.flattened)
        return [min(length(loader), limit) for loader, limit in zip(self.flattened, limits, strict=True)]

    def __len__(self) -> int:
        lengths = self.lengths() or [0]
        total = {"min_size": min, "sequential": sum}.get(self.mode, max)(lengths)  # type: ignore[operator]
        if total == math.inf:
            raise TypeError(f"a loader of this CombinedLoader has no length (lengths: {lengths})")
        return int(total)

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        if self.mode == "sequential":
            return self._sequential()
        iterators: list[Iterator[Any] | None] = [iter(loader) for loader in self.flattened]  # now, not at `next`
        return ((batch, i, 0) for i, batch in enumerate(self._together(iterators)))

    def places(self, batches: int) -> list[int] | None:
        """Return how far each loader has been read after so many batches; None when that cannot be told."""
        sizes = [length(loader) for loader in self.flattened] if self.mode == "max_size_cycle" else self.lengths()
        if self.mode == "sequential" or math.inf in sizes:
            return None
        if self.mode == "max_size_cycle":
            return [(batches - 1) % int(size) + 1 if batches else 0 for size in sizes]
        return [min(batches, int(size)) for size in sizes]

    def _sequential(self) -> Iterator[tuple[Any, int, int]]:
        limits = self.limits or [math.inf] * len(self.flattened)
        for index, (loader, limit) in enumerate(zip(self.flattened, limits, strict=True)):
            if limit <= 0:
                continue
            iterator = iter(loader)
            for i in count() if limit == math.inf else range(int(limit)):
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                yield batch, i, index

    def _together(self, iterators: list[Iterator[Any] | None]) -> Iterator[Any]:
        loaders = self.flattened
        running = [True] * len(loaders)
        end = math.inf if self.limits is None or self.mode != "max_size_cycle" else max(self.limits, default=0)
        for i in count():
            if i >= end:
                return
            batches: list[Any] = []
            for k, loader in enumerate(loaders):
                over = self.limits is not None and i >= self.limits[k]
                iterator = None if over and self.mode != "max_size_cycle" else iterators[k]
                batch = _next(iterator)
                if batch is _END and running[k]:
                    running[k] = False
                if batch is _END and self.mode == "max_size_cycle" and any(running):
                    iterators[k] = iter(loader)
                    batch = _next(iterators[k])
                if batch is _END and self.mode == "max_size":
                    iterators[k], batch = None, None
                batches.append(batch)
            ended = not any(running) if self.mode.startswith("max_size") else not all(running)
            if ended or not loaders or any(batch is _END for batch in batches):
                return
            yield self._rebuild(batches)


_END = object()


def _next(iterator: Iterator[Any] | None) -> Any:
    return _END if iterator is None else next(iterator, _END)


def length(loader: Any) -> float:
    """Return the number of batches that `loader` says it has, or `inf` when it cannot tell."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return math.inf


def holds_loaders(values: Sequence[Any]) -> bool:
    """Whether a list or tuple is a collection of loaders; otherwise it is one loader, a list of batches."""
    return bool(values) and all(
        _is_loader(value)
        or (isinstance(value, (list, tuple)) and holds_loaders(value))
        or (isinstance(value, Mapping) and bool(value) and all(map(_is_loader, value.values())))
        or (
            isinstance(value, Iterable)
            and not isinstance(value, (Tensor, str, bytes, list, tuple, Mapping, *_arrays()))
        )
        for value in values
    )


def _is_loader(value: Any) -> bool:
    return isinstance(value, (Dataset, DataLoader))


def _arrays() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray,)


def flatten(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the leaves of nested dicts, lists and tuples, and the function that puts others in their places."""
    leaves: list[Any] = []

    def build(node: Any) -> Callable[[Iterator[Any]], Any]:
        if isinstance(node, Mapping):
            parts = {key: build(value) for key, value in node.items()}
            return lambda values: {key: part(values) for key, part in parts.items()}
        if isinstance(node, (list, tuple)) and holds_loaders(node):
            kind, items = type(node), [build(value) for value in node]
            if hasattr(node, "_fields"):
                return lambda values: kind(*(item(values) for item in items))
            return lambda values: kind(item(values) for item in items)
        if not isinstance(node, Iterable):
            raise MisconfigurationException(
                f"A loader is {' '.join(repr(node).split())[:80]} ({type(node).__name__}), which cannot be iterated.",
                expected="a DataLoader, a Dataset, or any iterable of batches.",
                fix="DataLoader(dataset, batch_size=32)",
            )
        leaves.append(node)
        return next

    put = build(tree)
    return leaves, lambda values: put(iter(values))
