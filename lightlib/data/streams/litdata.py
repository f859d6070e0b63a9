"""litdata: its data sets read the rank when they are made, which may be before the processes have met."""

from __future__ import annotations

import copy
from typing import Any

from lightlib.data.streams.adapter import StreamAdapter
from lightlib.data.streams.loaders import with_dataset


class LitDataStreams(StreamAdapter):
    """Data sets of the package ``litdata``."""

    def resizes_itself(self, loader: Any) -> bool:
        return type(loader.dataset).__name__ == "StreamingDataset" and hasattr(loader, "load_state_dict")

    def of_rank(self, loader: Any, rank: int, size: int) -> Any:
        data = loader.dataset
        place = getattr(data, "distributed_env", None)
        if place is None:
            return None
        if (place.global_rank, place.world_size) == (rank, size):
            return loader
        data = copy.copy(data)
        for name, value in {
            "distributed_env": type(place)(size, rank, place.num_nodes),
            "drop_last": data.drop_last or size > 1,  # as litdata itself has it
            "shuffler": None,
        }.items():
            object.__setattr__(data, name, value)
        return with_dataset(loader, data)

    def start_epoch(self, loader: Any, epoch: int) -> None:
        if not hasattr(loader, "load_state_dict"):  # which litdata's own loader has, and counts epochs
            loader.dataset.set_epoch(epoch)
        elif getattr(loader, "restore", False):  # an epoch that was resumed and ended early would continue in this one
            vars(loader).update(restore=False)

    def state_for(self, loader: Any, state: Any, size: int) -> Any:
        """Leave out the values that depend on the number of ranks, which litdata 0.2.76 refuses if they differ."""
        of_data = state.get("dataset", {})
        if of_data.get("world_size", size) == size or "sample_in_epoch" not in of_data:
            return state
        changes = {"num_samples_yielded": 0, "drop_last": loader.dataset.drop_last}
        return {**state, "dataset": {**of_data, **changes}}
