"""Agreement: the position at which all processes leave a run together, found through the watch."""

from __future__ import annotations

from lightlib.launch.watch.watch import Watch

__all__ = ["Agreement"]


class Agreement:
    """The positions that the processes of one run have agreed on, by kind of request.

    Args:
        watch: Connects to the other processes.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._at: dict[str, tuple[int, ...]] = {}

    def reached(self, kind: str, position: tuple[int, ...]) -> bool:
        """Whether this process has reached the agreed position; the first call waits for all processes' positions.

        Args:
            kind: ``"stop"``, ``"interrupt"`` or ``"terminate"``.
            position: Where this process is.
        """
        if kind not in self._at:
            self._at[kind] = tuple(self._watch.agree(kind, position))
        return position >= self._at[kind]

    def forget(self, kind: str) -> None:
        """Drop a request that was refused on all processes, so that a new one can follow."""
        self._at.pop(kind, None)
        self._watch.refuse(kind)
