"""CombinedLoader: several loaders iterated as one, in four modes."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal, get_args

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightlib.errors import MisconfigurationException, UnknownNameError

Mode = Literal["min_size", "max_size_cycle", "max_size", "sequential"]
MODES = get_args(Mode)


class CombinedLoader:
    """Several loaders as one. An item is ``(batch, batch_idx, dataloader_idx)``.

    Iterating raises a MisconfigurationException if a loader cannot be started again in mode ``"max_size_cycle"``.

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

    def __init__(self, iterables: Any, mode: Mode = "min_size") -> None:
        super().__init__()
        if mode not in MODES:
            raise UnknownNameError("mode of CombinedLoader", mode, MODES)
        self.iterables = iterables
        self.mode = mode
        self.flattened, self._rebuild = flatten(iterables)
        self.limits: list[float] | None = None

    def with_loaders(self, loaders: Sequence[Any]) -> CombinedLoader:
        """Return the same combination, with its limits, of other loaders, in the order of `flattened`."""
        other = CombinedLoader(self._rebuild(loaders), self.mode)
        other.flattened, other._rebuild, other.limits = list(loaders), self._rebuild, self.limits
        return other

    def batches_in(self, batch: Any) -> list[Any]:
        """Return the batches of the loaders in `batch`; the batch itself where its nesting is another one.

        Example:
            >>> CombinedLoader({"a": [1, 2], "b": ["xy"]}).batches_in({"a": 1, "b": "x"})
            [1, 'x']
        """
        return list(_parts_of(self.iterables, batch))

    @property
    def names(self) -> list[Any]:
        """The keys of a dict of single loaders that are read one after the other; otherwise there are none.

        Example:
            >>> CombinedLoader({"clean": [1, 2], "noisy": "xy"}, mode="sequential").names
            ['clean', 'noisy']
        """
        named = self.iterables if self.mode == "sequential" and isinstance(self.iterables, Mapping) else {}
        return list(named) if all(len(flatten(value)[0]) == 1 for value in named.values()) else []

    def lengths(self) -> list[float]:
        """Return each loader's number of batches, after its limit; `inf` where it is unknown."""
        limits = self.limits or [math.inf] * len(self.flattened)
        return [min(length(loader), limit) for loader, limit in zip(self.flattened, limits, strict=True)]

    def __len__(self) -> int:
        lengths = self.lengths() or [0]
        total = {"min_size": min, "sequential": sum}.get(self.mode, max)(lengths)  # type: ignore[operator]
        if total == math.inf:
            raise TypeError(f"a loader of this CombinedLoader has no length (lengths: {lengths})")
        return int(total)

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        return self.read(lambda loader: iter(self.flattened[loader]))

    def read(self, begin: Callable[[int], Iterator[Any]], place: Place | None = None) -> Iterator[tuple[Any, int, int]]:
        """Iterate from a position on.

        Args:
            begin: Called with a loader's number whenever it is iterated; the first call for a loader that `place` is
                within returns an iterator that continues there.
            place: The position to begin at, which is kept up to date. Default: the start.
        """
        place = Place(len(self.flattened)) if place is None else place
        if self.mode == "sequential":
            current = place.current()
            first = begin(current) if current is not None else None
            return self._sequential(begin, place, first)
        ended = [turns > 0 and self.mode == "max_size" for turns in place.turns]
        iterators = [None if over else begin(loader) for loader, over in enumerate(ended)]  # now, not at `next`
        return self._together(begin, place, iterators)

    def place_of(self, batches: int) -> Place | None:
        """Return the position in each loader after so many batches; None when it is unknown."""
        sizes = [length(loader) for loader in self.flattened] if self.mode == "max_size_cycle" else self.lengths()
        if math.inf in sizes:
            return None
        if self.mode == "max_size_cycle":
            turns = [max(batches - 1, 0) // int(size) if size else 0 for size in sizes]
            read = [batches - turn * int(size) for turn, size in zip(turns, sizes, strict=True)]
        elif self.mode == "sequential":
            before = [int(sum(sizes[:k])) for k in range(len(sizes))]
            read = [int(min(max(batches - start, 0), size)) for start, size in zip(before, sizes, strict=True)]
            turns = [0] * len(sizes)
        else:
            read = [min(batches, int(size)) for size in sizes]
            turns = [int(batches > size) for size in sizes]
        return Place(now=(batches, tuple(read), tuple(turns)))

    def limit_to(self, limits: list[float]) -> None:
        """Read at most so many batches of each loader, in the order of `flattened`; ``math.inf`` is no limit."""
        self.limits = limits

    def _sequential(
        self, begin: Callable[[int], Iterator[Any]], place: Place, first: Iterator[Any] | None
    ) -> Iterator[tuple[Any, int, int]]:
        limits = self.limits or [math.inf] * len(self.flattened)
        read, num_given = list(place.read), place.batches
        for index in range(place.current() or 0, len(limits)):
            limit = limits[index]
            if limit <= 0:
                continue
            iterator, first = begin(index) if first is None else first, None
            for i in count(read[index]) if limit == math.inf else range(read[index], int(limit)):
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                num_given, read[index] = num_given + 1, i + 1
                place.last_two.append((num_given, tuple(read), place.turns))
                yield batch, i, index

    def _together(
        self, begin: Callable[[int], Iterator[Any]], place: Place, iterators: list[Iterator[Any] | None]
    ) -> Iterator[tuple[Any, int, int]]:
        loaders, cycles = self.flattened, self.mode == "max_size_cycle"
        read, turns = list(place.read), list(place.turns)
        end = math.inf if self.limits is None or not cycles else max(self.limits, default=0)
        running = [not turn for turn in turns]
        for i in count(place.batches):
            if i >= end:
                return
            batches: list[Any] = []
            for k in range(len(loaders)):
                over = self.limits is not None and i >= self.limits[k]
                running[k] &= not over or not cycles
                iterator = None if over and not cycles else iterators[k]
                batch = _next(iterator)
                read[k] += batch is not _END
                if batch is _END and running[k]:
                    running[k] = False
                    turns[k] += not cycles
                if batch is _END and cycles and any(running):
                    iterators[k], turns[k] = begin(k), turns[k] + 1
                    batch = _next(iterators[k])
                    read[k] = int(batch is not _END)
                if batch is _END and self.mode == "max_size":
                    iterators[k], batch = None, None
                batches.append(batch)
            ended = not any(running) if self.mode.startswith("max_size") else not all(running)
            if ended or not loaders:
                return
            if any(batch is _END for batch in batches):
                raise _cannot_cycle(batches.index(_END), len(loaders), given=i)
            place.last_two.append((i + 1, tuple(read), tuple(turns)))
            yield self._rebuild(batches), i, 0


Counts = tuple[int, tuple[int, ...], tuple[int, ...]]


class Place:
    """The position in a combination.

    Attributes:
        last_two: The positions before and after the last item, for a reader that is one item ahead. Each has the items
            given, the batches of each loader in its present pass, and the passes of each loader before that.
    """

    def __init__(self, loaders: int = 0, now: Counts | None = None) -> None:
        start = (0, (0,) * loaders, (0,) * loaders) if now is None else now
        self.last_two: deque[Counts] = deque((start, start), maxlen=2)

    @property
    def before(self) -> Counts:
        return self.last_two[0]

    @property
    def now(self) -> Counts:
        return self.last_two[1]

    @property
    def batches(self) -> int:
        return self.now[0]

    @property
    def read(self) -> tuple[int, ...]:
        return self.now[1]

    @property
    def turns(self) -> tuple[int, ...]:
        return self.now[2]

    def current(self) -> int | None:
        """Return the number of the loader of a sequence that was read last; None at the start."""
        return max((loader for loader, read in enumerate(self.read) if read), default=None)


_END = object()


def _cannot_cycle(loader: int, loaders: int, given: int) -> MisconfigurationException:
    return MisconfigurationException(
        f'CombinedLoader(mode="max_size_cycle"): loader {loader} of {loaders} (counted from 0) gave no batch when it '
        f"was started again, after {given} batches of the combination.",
        expected="loaders with at least one batch, which can be iterated again.",
        fix='check its data set, or mode="max_size", which gives None for loaders that have ended.',
    )


def _next(iterator: Iterator[Any] | None) -> Any:
    return _END if iterator is None else next(iterator, _END)


def length(loader: Any) -> float:
    """Return the number of batches of `loader` by its `len`; `inf` when it has none."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return math.inf


def holds_loaders(values: Sequence[Any]) -> bool:
    """Whether a list or tuple is a collection of loaders; otherwise it is one loader, a list of batches."""
    numpy = sys.modules.get("numpy")
    arrays = () if numpy is None else (numpy.ndarray,)
    return bool(values) and all(
        _is_loader(value)
        or (isinstance(value, (list, tuple)) and holds_loaders(value))
        or (isinstance(value, Mapping) and bool(value) and all(map(_is_loader, value.values())))
        or (isinstance(value, Iterable) and not isinstance(value, (Tensor, str, bytes, list, tuple, Mapping, *arrays)))
        for value in values
    )


def _is_loader(value: Any) -> bool:
    return isinstance(value, (Dataset, DataLoader))


def flatten(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the leaves of nested dicts, lists and tuples, and a function that builds the same nesting of new ones."""
    leaves: list[Any] = []
    put = _take_apart(tree, leaves)
    return leaves, lambda values: put(iter(values))


def _take_apart(node: Any, leaves: list[Any]) -> Callable[[Iterator[Any]], Any]:
    """Append the leaves of `node`, and return a function that builds the same nesting of new ones.

    It is not nested in `flatten`, because a function that refers to itself would keep the leaves, loaders with workers,
    until garbage is collected.
    """
    if isinstance(node, Mapping):
        parts = {key: _take_apart(value, leaves) for key, value in node.items()}
        return lambda values: {key: part(values) for key, part in parts.items()}
    if isinstance(node, (list, tuple)) and (not node or holds_loaders(node)):
        kind, items = type(node), [_take_apart(value, leaves) for value in node]
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


def _parts_of(node: Any, item: Any) -> Iterator[Any]:
    """Yield the parts of `item` at the places of the loaders in `node`."""
    if isinstance(node, Mapping) and isinstance(item, Mapping) and node.keys() == item.keys():
        for key, value in node.items():
            yield from _parts_of(value, item[key])
    elif (
        isinstance(node, (list, tuple))
        and (not node or holds_loaders(node))
        and isinstance(item, (list, tuple))
        and len(node) == len(item)
    ):
        for value, part in zip(node, item, strict=True):
            yield from _parts_of(value, part)
    else:
        yield item
