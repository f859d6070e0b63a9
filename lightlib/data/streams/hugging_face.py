"""Hugging Face's streams: sharded by `split_dataset_by_node`, and shuffled in a buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightlib import report
from lightlib.data.streams.adapter import StreamAdapter
from lightlib.data.streams.loaders import with_dataset


class HuggingFaceStreams(StreamAdapter):
    """Data sets of the package ``datasets``."""

    def shards_itself(self, loader: Any) -> bool:
        return getattr(loader.dataset, "_distributed", None) is not None

    def keeps_position(self, loader: Any) -> bool:
        return not _has_shuffle_buffer(getattr(loader.dataset, "_ex_iterable", None))

    def of_rank(self, loader: Any, rank: int, size: int) -> Any:
        data = loader.dataset
        split = getattr(data, "_distributed", None)
        if split is None or (split.rank, split.world_size) == (rank, size):
            return loader
        copied = object.__new__(type(data))  # copy.copy would return one that shares its attributes
        vars(copied).update(vars(data), _distributed=replace(split, rank=rank, world_size=size))
        return with_dataset(loader, copied)

    def warn(self, loader: Any, name: str) -> None:
        if hasattr(loader, "load_state_dict") and not self.keeps_position(loader):
            report.info_once(
                f"{name.capitalize()} data: the state of a Hugging Face data set lacks the samples in its shuffle "
                "buffer. A resumed run therefore reads the epoch again from its start up to its position. Without "
                "shuffle(buffer_size=…), for instance with files that are shuffled once, it continues at once."
            )


def _has_shuffle_buffer(examples: Any) -> bool:
    while examples is not None:
        if type(examples).__name__ == "BufferShuffledExamplesIterable":
            return True
        examples = getattr(examples, "ex_iterable", None)
    return False
