"""Ends: whether the data of all ranks end at the same batch, found without a collective per batch."""

from __future__ import annotations

from collections.abc import Callable

from lightlib.launch.watch.board import Board

__all__ = ["MORE", "Ends"]

MORE = -1  # batches of a rank whose data go on


class Ends:
    """The ends of one run's data. `follow` is for the main thread; all else is called by the watch thread.

    A rank whose data have ended publishes after how many batches, and waits for the others to do the same. One whose
    data go on does not know that it should: it waits for that rank in a collective, or soon will. So its watch thread
    compares what its main thread has been given with what the first rank has published.

    Args:
        board: Where the ranks meet.
        rank: This process.
        world_size: Number of processes.
    """

    def __init__(self, board: Board, rank: int, world_size: int) -> None:
        self._board, self._rank, self._world_size = board, rank, world_size
        self.begin("")

    def begin(self, path: str) -> None:
        """A run begins, whose keys begin with `path`."""
        self._path, self._number = path, 0
        self._given: Callable[[], int] | None = None
        self.pending = False

    def follow(self, given: Callable[[], int]) -> None:
        """A pass through the data begins; `given` returns how many batches of it the main thread has been given."""
        self._given = given

    def publish(self, batches: int) -> None:
        """The data have ended here."""
        path = self._key()
        self._board.write(f"{path}/batches/{self._rank}", str(batches))
        self._board.write_first(f"{path}/first", f"{self._rank} {batches}")
        self._board.count(f"{path}/ranks", 1)

    def outcome(self) -> dict[int, int] | None:
        """Return after how many batches the data of each rank end, once that is known; or only of two that differ."""
        path = self._key()
        beyond = self._board.read(f"{path}/beyond")
        if beyond is not None:
            rank, batches = map(int, (self._board.read(f"{path}/first") or "").split())
            return dict(sorted({rank: batches, int(beyond): MORE}.items()))
        if self._board.count(f"{path}/ranks") < self._world_size:
            return None
        notes = self._board.read_all([f"{path}/batches/{rank}" for rank in range(self._world_size)])
        self._number, self._given = self._number + 1, None
        return dict(enumerate(map(int, notes)))

    def step(self) -> None:
        """Tell a rank whose data have ended that those of this rank go on, when that is so."""
        given = self._given
        first = None if given is None else self._board.read(f"{self._key()}/first")
        self.pending = first is not None
        if given is not None and first is not None and given() >= int(first.split()[1]):
            self._board.write_first(f"{self._key()}/beyond", str(self._rank))

    def _key(self) -> str:
        return f"{self._path}/ends/{self._number}"
