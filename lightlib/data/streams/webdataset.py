"""webdataset: the shards of each rank, and another order of shards in each epoch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightlib import report
from lightlib.data.streams.adapter import StreamAdapter
from lightlib.data.streams.loaders import with_dataset

_BY_RANK = ("split_by_node", "single_node_only")


class OfRank:
    """A stage that keeps the shards of one rank; in place of `split_by_node`, which asks for that of the process."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def __call__(self, shards: Iterable[Any]) -> Iterator[Any]:
        return islice(iter(shards), self.rank, None, self.size)


class OfEpoch:
    """A stage that shuffles by seed and epoch; in place of `detshuffle`, which counts the passes of its process."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        stage = self.stage
        shuffled = type(stage)(stage.bufsize, stage.initial, stage.seed, int(self.epoch) - 1)
        passed: Iterator[Any] = shuffled.run(iter(items))
        return passed


class WebDatasetStreams(StreamAdapter):
    """Pipelines of the package ``webdataset``, in torch's loader or a WebLoader."""

    def shards_itself(self, loader: Any) -> bool:
        """Whether a stage keeps the shards of a rank; a stage of the user's own may."""
        return any(
            _name(stage) in _BY_RANK or isinstance(stage, OfRank) or _is_foreign(stage) or "Resampled" in _name(stage)
            for stage in _stages(loader)
        )

    def gives_batches(self, dataset: Any) -> bool:
        return isinstance(next(iter(getattr(dataset, "pipeline", ())), None), DataLoader)

    def of_rank(self, loader: Any, rank: int, size: int) -> Any:
        if not isinstance(loader, DataLoader):  # a WebLoader
            first, *rest = loader.pipeline
            inner = self.of_rank(first, rank, size)
            return None if inner is None else _with_pipeline(loader, [inner, *rest])
        stages = _stages(loader)
        if not any(_name(stage) in _BY_RANK for stage in stages):
            return None
        return with_dataset(loader, _with_pipeline(loader.dataset, [_stage_of(stage, rank, size) for stage in stages]))

    def start_epoch(self, loader: Any, epoch: int) -> None:
        for stage in _stages(loader):
            if isinstance(stage, OfEpoch):
                stage.epoch.fill_(epoch)

    def warn(self, loader: Any, name: str) -> None:
        stages = _stages(loader)
        if any("Resampled" in _name(stage) for stage in stages):
            report.warn_once(
                ("resampled", name),
                f"{name.capitalize()} data: WebDataset(resampled=True) draws shards at random, with new random numbers "
                "in each process. An epoch repeats some samples and leaves out some, and a resumed run draws "
                "different ones.\n  Expected: resampled=False, where a resumed run is exact.\n"
                "  Fix: WebDataset(…, shardshuffle=100, detshuffle=True, seed=0).",
            )
        elif any(_shuffles_unseeded(stage) for stage in stages):
            report.warn_once(
                ("unseeded", name),
                f"{name.capitalize()} data: shuffle(…) of a WebDataset has no seed, so webdataset takes one from the "
                "clock. A resumed run reads the epoch in another order, and so repeats and leaves out samples.\n"
                "  Expected: a seed.\n  Fix: .shuffle(1000, seed=0).",
            )


def _stages(loader: Any) -> list[Any]:
    """Return the stages of the data set that a loader or a WebLoader reads."""
    loader = getattr(loader, "items", loader)
    pipeline = list(getattr(loader, "pipeline", ()))
    if pipeline and isinstance(pipeline[0], DataLoader):
        loader = pipeline[0]
    data = getattr(loader, "dataset", None)
    return list(getattr(data, "pipeline", ()))


def _name(stage: Any) -> str:
    return str(getattr(stage, "__name__", type(stage).__name__))


def _is_foreign(stage: Any) -> bool:
    """Whether a stage is a function of another package, which may split shards by rank."""
    module = str(getattr(stage, "__module__", ""))
    return callable(stage) and module.partition(".")[0] not in ("webdataset", "lightlib")


def _stage_of(stage: Any, rank: int, size: int) -> Any:
    if _name(stage) in _BY_RANK:
        return OfRank(rank, size)
    return OfEpoch(stage) if _name(stage) == "detshuffle" else stage


def _with_pipeline(data: Any, stages: list[Any]) -> Any:
    copied = copy.copy(data)
    object.__setattr__(copied, "pipeline", stages)
    return copied


def _shuffles_unseeded(stage: Any) -> bool:
    is_shuffle = getattr(getattr(stage, "f", None), "__name__", "") == "_shuffle"
    return is_shuffle and stage.kw.get("seed") is None and stage.kw.get("rng") is None
