"""FabricLoader: a loader that shards its data, moves its batches, and resumes within an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightlib.data.prefetch import Prefetch
from lightlib.data.sharding import DataShard
from lightlib.data.train import TrainData
from lightlib.errors import CheckpointError, MisconfigurationException, shown

_KEYS = ("epoch", "data")


class FabricLoader:
    """The user's loader as `Fabric.setup_dataloaders` returns it. Each pass through it is an epoch.

    Its state is the position in the epoch and what draws the same epoch again: a loader that loads it continues with
    the batch after the last one that was handed out. `Fabric.save` and `Fabric.load` take it like a module.

    Args:
        loader: The user's.
        move: Moves a batch to the device; None if batches stay where they are.
        share: The shard of the data that this process reads; None with one process.
        number: Of the loader among those of the Fabric: their workers draw different random numbers.
        prefetch: Moves batches ahead; None where devices have no streams.

    Attributes:
        loader: The user's loader, unchanged.
        epoch: The number of passes that have ended.
        device: Where its batches are; None if they stay where they are.

    Example:
        >>> import lightlib
        >>> fabric = lightlib.Fabric(accelerator="cpu")
        >>> loader = fabric.setup_dataloaders([1, 2, 3])
        >>> for batch in loader:
        ...     if batch == 2:
        ...         state = loader.state_dict()
        >>> loader.load_state_dict(state)
        >>> list(loader), list(loader)
        ([3], [1, 2, 3])
    """

    def __init__(
        self,
        loader: Any,
        move: Callable[[Any, int], Any] | None = None,
        share: DataShard | None = None,
        number: int = 0,
        prefetch: Prefetch | None = None,
        device: Any = None,
    ) -> None:
        self.loader, self.device, self.epoch = loader, device, 0
        self._data = TrainData(lambda: loader, 1.0, move, prefetch=prefetch, share=share, number=number)
        self._start: int | None = None  # the batch at which a loaded state continues
        self._open = False  # whether a pass has begun and not ended
        self._passes = 0

    def __len__(self) -> int:
        if self._data.num_batches == math.inf:
            raise TypeError(f"{type(self.loader).__name__} has no length")  # as torch's loaders do
        return int(self._data.num_batches)

    def __iter__(self) -> Iterator[Any]:
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        data = self._data
        self._passes = current = self._passes + 1
        start, self._start = self._start or 0, None
        if self._open:  # the last pass was left before its end
            self._close()
        data.start_epoch(self.epoch, start)
        self._open = True
        read = data.__next__
        while not data.exhausted:
            yield read()
            if self._passes != current:
                raise self._begun_again()
        self._close()

    def _close(self) -> None:
        self._data.end_epoch()
        self._open = False
        self.epoch += 1

    def _begun_again(self) -> MisconfigurationException:
        kind = type(self.loader).__name__
        return MisconfigurationException(
            f"An iteration over a {kind} was continued after another one over it had begun, or a state was loaded.",
            expected="one iteration at a time: the loader has one position, which it saves.",
            fix=f"set up a second {kind} for the inner loop.",
        )

    @property
    def is_sharded(self) -> bool:
        """Whether one state is right on every process: all draw the same, and each takes its shard."""
        return self._data.loaded.is_sharded

    def state_dict(self) -> dict[str, Any]:
        """Return the position, in batches handed out by this process, and the state that draws the same epoch again."""
        return {"epoch": self.epoch, "data": self._data.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration continue where the state was taken, also with another number of processes.

        Raises:
            CheckpointError: It is not the state of such a loader.
        """
        saved: Any = state_dict
        data = saved.get("data") if isinstance(saved, Mapping) else None
        if not isinstance(data, Mapping) or "batches" not in data or not isinstance(saved.get("epoch"), int):
            raise CheckpointError(
                f"The state of a {type(self.loader).__name__} is {shown(saved)}.",
                expected=f"what `state_dict` of a loader that a Fabric has set up returned: {', '.join(_KEYS)}.",
                fix="load the entry of the checkpoint under which the loader was saved.",
            )
        if self._open:
            self._data.end_epoch()
            self._open = False
        self._passes += 1
        self.epoch = saved["epoch"]
        self._start = self._data.load_state_dict(dict(data))

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __repr__(self) -> str:
        return f"FabricLoader({self.loader!r})"
