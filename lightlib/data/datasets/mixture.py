"""MixtureDataset: samples of several data sets in fixed proportions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lightlib.data.datasets.proportions import Proportions
from lightlib.data.datasets.reader import END, StreamReader
from lightlib.data.datasets.sources import sources_of
from lightlib.errors import MisconfigurationException, check_int, check_word

_OWNER = "MixtureDataset"
_ENDS: dict[str, Callable[[list[int]], bool]] = {
    "first_exhausted": any,
    "all_exhausted": all,
    "repeat": lambda _: False,
}


class MixtureDataset(Dataset[Any]):
    """Samples of several data sets, in proportion to their weights.

    The sources take turns, so that each prefix has the share of each source to within one sample; nothing is drawn at
    random. Map-style sources give a map-style data set for any sampler. Iterable ones give a :class:`MixtureStream`,
    which has the same order, and a position that torchdata's ``StatefulDataLoader`` saves.

    In a map-style mixture the next epoch continues each source where the last one ended, so that all its samples are
    read equally often; the Trainer calls `set_epoch`, a loop of your own has to.

    Args:
        sources: A mapping of names to data sets or of data sets to weights, a list of data sets, or a list of pairs of
            a data set and its weight.
        weights: For each name, or in the order of the list: numbers of at least 0 in any unit; 0 leaves a source out.
            Default: all equal.
        stopping: When an epoch ends: ``"first_exhausted"`` at the first turn of a source that has no more samples,
            ``"all_exhausted"`` once that is so for every source; the shorter ones start over. ``"repeat"``: never.
            Default: the first one, or ``"repeat"`` with `num_samples`.
        num_samples: Samples of an epoch; each worker of a stream yields a share of them.
        seed: Shuffle each map-style source, in another order in each of its passes. Default: in its own order. A stream
            shuffles itself: its `set_epoch` gets another number for each pass.

    Raises:
        MisconfigurationException: A source is empty, a weight is negative or unknown, all are 0, streams and map-style
            data sets are mixed, or the length of an epoch is unknown.

    Example:
        >>> mixture = MixtureDataset({"web": "abcdefghi", "code": "XYZ"}, {"web": 0.75, "code": 0.25})
        >>> "".join(mixture[i] for i in range(len(mixture)))
        'abXcdeYfghZi'
        >>> mixture.set_epoch(1)
        >>> mixture.source_epochs(samples=4)
        {'web': 1.3333333333333333, 'code': 1.3333333333333333}
    """

    not_in_checkpoint = ("_data", "_epoch", "_orders", "_turns")

    def __new__(cls, sources: Any = (), weights: Any = None, **options: Any) -> Any:
        """Return a stream for sources that can only be iterated; without sources, an object to unpickle into."""
        is_stream = bool(sources) and sources_of(sources, weights).stream
        return MixtureStream(sources, weights, **options) if is_stream else super().__new__(cls)

    def __init__(
        self,
        sources: Any,
        weights: Any = None,
        *,
        stopping: str | None = None,
        num_samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.sources, shares, _ = sources_of(sources, weights)
        self.stopping = _checked_stopping(stopping, num_samples)
        self.seed = None if seed is None else check_int(_OWNER, "seed", seed, 0)
        self._turns, self._data = Proportions(shares), tuple(self.sources.values())
        self.weights = dict(zip(self.sources, self._turns.shares, strict=True))
        ends = [self._turns.position(number, len(data)) for number, data in enumerate(self._data)]
        if num_samples is None and self.stopping == "repeat":
            raise MisconfigurationException(
                f"{_OWNER}(stopping='repeat') of map-style data sets.",
                expected="num_samples, the length of an epoch.",
                fix=f"{_OWNER}(…, num_samples={max(ends)})",
            )
        by_end = min(ends) if self.stopping == "first_exhausted" else max(ends)
        self.num_samples = by_end if num_samples is None else num_samples
        self._of_epoch = [self._turns.count(number, self.num_samples) for number in range(len(ends))]
        self._epoch = _shared(())
        self._orders: dict[tuple[int, int, int], torch.Tensor] = {}

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        number, turn = self._turns.at(index % len(self))
        epoch, data = int(self._epoch), self._data[number]
        passed, at = divmod(epoch * self._of_epoch[number] + turn, len(data))
        return data[at if self.seed is None else int(self._order(epoch, number, passed)[at])]

    def _order(self, epoch: int, number: int, passed: int) -> torch.Tensor:
        """Return the order of a source in a pass; those of the present epoch are kept."""
        key = epoch, number, passed
        if key not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] == epoch}
            seed = blake2b(f"{self.seed}/{number}/{passed}".encode(), digest_size=7)
            generator = torch.Generator().manual_seed(int.from_bytes(seed.digest(), "little"))
            self._orders[key] = torch.randperm(len(self._data[number]), generator=generator)
        return self._orders[key]

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, also for persistent workers."""
        self._epoch.fill_(epoch)

    def source_epochs(self, samples: int | None = None) -> dict[str, float]:
        """Return how often each source has been read, after the first samples of the present epoch.

        It follows from the number of the epoch, so it is the same on all ranks and in a resumed run. With a sampler
        that shuffles it is exact at the end of an epoch.

        Args:
            samples: Of the present epoch, by all ranks together. Default: all.
        """
        done = len(self) if samples is None else samples
        read = (int(self._epoch) * each + self._turns.count(number, done) for number, each in enumerate(self._of_epoch))
        return {name: n / len(data) for n, (name, data) in zip(read, self.sources.items(), strict=True)}


class MixtureStream(IterableDataset[Any]):
    """Samples of several streams, in proportion to their weights; `MixtureDataset` makes it, and has its arguments.

    Each worker mixes what its sources yield there, so sources have to share out their samples over workers, as any
    stream has to.

    Example:
        >>> class Letters(IterableDataset):
        ...     def __init__(self, text):
        ...         self.text = text
        ...     def __iter__(self):
        ...         return iter(self.text)
        >>> mixture = MixtureDataset({Letters("abc"): 1, Letters("X"): 1}, stopping="all_exhausted")
        >>> "".join(mixture), mixture.source_epochs()
        ('aXbXcX', {'0': 1, '1': 2})
    """

    not_in_checkpoint = (  # the loader saves the position, or reads the stream again
        *("sources", "stopping", "num_samples", "weights"),
        *("_turns", "_epoch", "_passes", "_readers", "_drawn", "_loaded"),
    )

    def __init__(
        self,
        sources: Any,
        weights: Any = None,
        *,
        stopping: str | None = None,
        num_samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.sources, shares, _ = sources_of(sources, weights)
        self.stopping, self.num_samples = _checked_stopping(stopping, num_samples), num_samples
        if seed is not None:
            raise MisconfigurationException(
                f"{_OWNER}(seed={seed}) of streams.",
                expected="no seed: only map-style data sets can be read in another order.",
                fix="shuffle each stream, as in hugging_face_stream.shuffle(seed=0).",
            )
        self._turns = Proportions(shares)
        self.weights = dict(zip(self.sources, self._turns.shares, strict=True))
        self._epoch, self._passes = _shared(()), _shared((len(shares),))
        self._readers: dict[str, StreamReader] = {}
        self._drawn = 0
        self._loaded: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        state, self._loaded = self._loaded or {"drawn": 0, "sources": {}}, None
        self._drawn = state["drawn"]
        self._readers = {name: StreamReader(data, int(self._epoch)) for name, data in self.sources.items()}
        for name, position in state["sources"].items():
            self._readers[name].load_state_dict(position)
        return self._draws(list(self._readers.values()))

    def _draws(self, readers: list[StreamReader]) -> Iterator[Any]:
        worker, most = get_worker_info(), self.num_samples
        if worker is not None and most is not None:
            most = len(range(worker.id, most, worker.num_workers))
        is_over = _ENDS[self.stopping]
        while not is_over([reader.passes for reader in readers]) and (most is None or self._drawn < most):
            number, _ = self._turns.at(self._drawn)
            sample = readers[number].next()
            if sample is END:
                self._begin_again(number, readers[number])
                continue
            self._drawn += 1
            yield sample

    @property
    def underlying_streams(self) -> list[Any]:
        """The sources."""
        return list(self.sources.values())

    def _begin_again(self, number: int, reader: StreamReader) -> None:
        """Begin the next pass of a source; the passes are those of the worker that is ahead."""
        if not reader.read:
            worker = get_worker_info()
            where = "" if worker is None else f" in worker {worker.id} of {worker.num_workers}"
            raise MisconfigurationException(
                f"{_OWNER}: the source {list(self.sources)[number]!r} has no samples{where}.",
                expected="one sample at least" + (" in each worker." if where else "."),
                fix="check the source, or " + ("use fewer workers or more files." if where else "leave it out."),
            )
        reader.restart()
        self._passes[number].clamp_(min=reader.passes)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, also for persistent workers."""
        self._epoch.fill_(epoch)
        self._passes.zero_()

    def source_epochs(self) -> dict[str, int]:
        """Return how many passes of each source have ended in the present epoch; workers read ahead."""
        return dict(zip(self.sources, self._passes.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return the position in each source, and how many samples were drawn."""
        sources = {name: reader.state_dict() for name, reader in self._readers.items()}
        return self._loaded or {"drawn": self._drawn, "epoch": int(self._epoch), "sources": sources}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin at a position that `state_dict` returned."""
        self._epoch.fill_(state["epoch"])
        self._loaded = state
        for passes, position in zip(self._passes, state["sources"].values(), strict=False):
            passes.clamp_(min=position["passes"])


def _shared(shape: tuple[int, ...]) -> torch.Tensor:
    """Return zeros that workers see change."""
    return torch.zeros(shape, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call, no-any-return]


def _checked_stopping(stopping: str | None, num_samples: int | None) -> str:
    if num_samples is not None:
        check_int(_OWNER, "num_samples", num_samples, 1)
    default = "first_exhausted" if num_samples is None else "repeat"
    stopping = default if stopping is None else check_word(_OWNER, "stopping", stopping, _ENDS)
    if num_samples is not None and stopping != "repeat":
        raise MisconfigurationException(
            f"{_OWNER}(stopping={stopping!r}, num_samples={num_samples}).",
            expected="one of them: with num_samples the sources start over until there are so many.",
            fix=f"{_OWNER}(…, num_samples={num_samples})",
        )
    return stopping
