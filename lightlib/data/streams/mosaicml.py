"""mosaicml-streaming: it shards for any number of ranks, if the loader counts the samples."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import DataLoader

from lightlib.data.streams.adapter import StreamAdapter
from lightlib.data.streams.loaders import with_dataset


class MosaicMLStreams(StreamAdapter):
    """Data sets of the package ``streaming``."""

    def shards_itself(self, loader: Any) -> bool:
        """Whether it is a data set of the library: a program may have a package called ``streaming`` itself."""
        return hasattr(getattr(loader, "dataset", None), "num_canonical_nodes")

    def resizes_itself(self, loader: Any) -> bool:
        return True

    def of_rank(self, loader: Any, rank: int, size: int) -> Any:
        """Return the library's own loader in place of torch's: it counts the samples, and so knows its position."""
        if type(loader) is not DataLoader:
            return loader
        kind = sys.modules["streaming"].StreamingDataLoader  # the data set's package
        return with_dataset(loader, loader.dataset, __class__=kind, num_samples_yielded=0)
