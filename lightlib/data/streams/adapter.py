"""StreamAdapter: how lightlib reads the loaders of a library that streams data."""

from __future__ import annotations

from typing import Any

from lightlib import registry


class StreamAdapter:
    """How lightlib reads the loaders of one library. By default they shard themselves and are read unchanged.

    A package adds one for its own data sets by an entry point of the group ``lightlib.streams`` that has the package's
    name. No method changes the user's objects.
    """

    def shards_itself(self, loader: Any) -> bool:
        """Whether each process reads only its shard of the data."""
        return True

    def of_rank(self, loader: Any, rank: int, size: int) -> Any:
        """Return a loader that reads the shard of one of `size` ranks; None if the library has no way to read it."""
        return None

    def resizes_itself(self, loader: Any) -> bool:
        """Whether its state can be loaded by another number of processes than saved it."""
        return False

    def state_for(self, loader: Any, state: Any, size: int) -> Any:
        """Return a saved state in the form in which `loader`, one of `size`, can load it."""
        return state

    def keeps_position(self, loader: Any) -> bool:
        """Whether a `state_dict` of the loader is exact."""
        return True

    def gives_batches(self, dataset: Any) -> bool:
        """Whether an iterable data set is itself a loader of batches."""
        return False

    def start_epoch(self, loader: Any, epoch: int) -> None:
        """Let a loader that `of_rank` returned draw the order of this epoch."""

    def warn(self, loader: Any, name: str) -> None:
        """Warn before the run if it cannot be resumed exactly; `name` is the stage."""


def adapter_of(loader: Any) -> StreamAdapter | None:
    """Return the adapter for a loader, by the packages that define its class and that of its data set.

    Example:
        >>> adapter_of([1, 2]) is None
        True
    """
    data = getattr(loader, "dataset", None)
    packages = [cls.__module__.partition(".")[0] for cls in (*type(data).__mro__, *type(loader).__mro__)]
    registered = registry.names("streams")
    adapter: StreamAdapter | None = next(
        (registry.get("streams", name)() for name in packages if name in registered), None
    )
    return adapter
