"""Where all processes leave a run together: asked of the watch once, then compared."""

from __future__ import annotations

from lightlib.launch.watch.watch import Watch

__all__ = ["Agreement"]


class Agreement:
    """The boundaries that the processes of one run have agreed on, by the kind of wish.

    Args:
        watch: Speaks with the other processes.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._at: dict[str, tuple[int, ...]] = {}

    def reached(self, kind: str, position: tuple[int, ...]) -> bool:
        """Whether this process is where all leave; the first question waits until all have said where they are.

        Args:
            kind: ``"stop"``, ``"interrupt"`` or ``"terminate"``.
            position: Where this process is.
        """
        if kind not in self._at:
            self._at[kind] = tuple(self._watch.agree(kind, position))
        return position >= self._at[kind]

    def forget(self, kind: str) -> None:
        """The wish was not granted, on any process; another may follow."""
        self._at.pop(kind, None)
        self._watch.refuse(kind)
