"""StopRequests: the stops, validations and ends of epochs that the ranks of one run have requested."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from lightlib.launch.watch.board import Board
from lightlib.launch.watch.stop_point import Position, StopConsensus

KINDS = ("stop", "terminate", "interrupt", "validate", "end_epoch")
_CODES = {"terminate": 143, "interrupt": 130}


class StopRequests:
    """The stop requests of one run. The watch thread calls `step`, the main thread everything else."""

    def __init__(self, board: Board, path: str, rank: int, world_size: int, patience: float) -> None:
        self._board, self._path, self._rank, self._world_size = board, path, rank, world_size
        self._patience = patience
        self._consensus = {kind: self._new(kind, attempt=0) for kind in KINDS}

    def __getitem__(self, kind: str) -> StopConsensus:
        return self._consensus[kind]

    @property
    def pending(self) -> bool:
        """Whether a stop is requested and not decided."""
        return any(consensus.pending for consensus in self._consensus.values())

    @property
    def ending(self) -> bool:
        """Whether SIGTERM or Ctrl-C has requested the end of the run."""
        return any(self._consensus[kind].requested_at is not None for kind in ("terminate", "interrupt"))

    @property
    def signal_code(self) -> int:
        """The exit code of the signal that this process has received; 0 for none."""
        return next((code for kind, code in _CODES.items() if self._consensus[kind].requested_here), 0)

    def request(self, kind: str) -> None:
        """Request a stop; an unknown kind is ignored. Safe in a signal handler."""
        if kind in self._consensus:
            self._consensus[kind].request()

    def refuse(self, kind: str) -> bool:
        """Replace a decided request, so that a stop can be requested again; return whether there was one."""
        refused = self._consensus.get(kind)
        if refused is None or not refused.decided.is_set():
            return False
        self._consensus[kind] = self._new(kind, int(refused.path.rpartition("/")[2]) + 1)
        return True

    def step(
        self, raise_flag: Callable[[str], None], position: Callable[[], Position], answer: float
    ) -> Iterator[list[int]]:
        """Do the next step of each request without waiting; yield the ranks that did not answer in time."""
        for consensus in list(self._consensus.values()):
            consensus.step(self._board, raise_flag, position, f"{self._path}/left")
            requested_at = consensus.requested_at
            if consensus.pending and requested_at is not None and time.monotonic() - requested_at > answer:
                yield consensus.missing(self._board)

    def _new(self, kind: str, attempt: int) -> StopConsensus:
        path = f"{self._path}/{kind}/{attempt}"
        return StopConsensus(kind, path, self._rank, self._world_size, self._patience)
