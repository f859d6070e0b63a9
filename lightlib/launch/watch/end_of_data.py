"""Checks without a per-batch collective that the data of all ranks end at the same batch."""

from __future__ import annotations

from collections.abc import Callable

from lightlib.launch.watch.board import Board

MORE = -1  # in place of a number of batches: the rank has more of them


class EndOfData:
    """Compares the number of batches per rank. The main thread calls `follow`, the watch thread everything else.

    A rank whose data have ended publishes its number of batches and waits until every other rank has done so. A rank
    with more data does not know this: it waits for the first one in a collective, or soon will. So its watch thread
    compares the number of batches that its main thread has received with the number that the first rank published.
    """

    def __init__(self, board: Board, rank: int, world_size: int) -> None:
        self._board, self._rank, self._world_size = board, rank, world_size
        self.begin("")

    def begin(self, path: str) -> None:
        """Begin a run; `path` is the prefix of its keys."""
        self._path, self._number = path, 0
        self._received: Callable[[], int] | None = None
        self.pending = False

    def follow(self, received: Callable[[], int]) -> None:
        """Begin a pass through the data; `received` returns how many of its batches the main thread has received."""
        self._received = received

    def publish(self, batches: int) -> None:
        """Publish that the data of this rank ended after `batches`."""
        path = self._key()
        self._board.write(f"{path}/batches/{self._rank}", str(batches))
        self._board.write_first(f"{path}/first", f"{self._rank} {batches}")
        self._board.count(f"{path}/ranks", 1)

    def outcome(self) -> dict[int, int] | None:
        """Return the number of batches by rank once it is known: of all ranks, or of two that differ."""
        path = self._key()
        beyond = self._board.read(f"{path}/beyond")
        if beyond is not None:
            rank, batches = map(int, (self._board.read(f"{path}/first") or "").split())
            return dict(sorted({rank: batches, int(beyond): MORE}.items()))
        if self._board.count(f"{path}/ranks") < self._world_size:
            return None
        notes = self._board.read_all([f"{path}/batches/{rank}" for rank in range(self._world_size)])
        self._number, self._received = self._number + 1, None
        return dict(enumerate(map(int, notes)))

    def step(self) -> None:
        """If another rank's data have ended and this rank has more, publish that."""
        received = self._received
        first = None if received is None else self._board.read(f"{self._key()}/first")
        self.pending = first is not None
        if received is not None and first is not None and received() >= int(first.split()[1]):
            self._board.write_first(f"{self._key()}/beyond", str(self._rank))

    def _key(self) -> str:
        return f"{self._path}/ends/{self._number}"
