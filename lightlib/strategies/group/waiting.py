"""Waiting: reports missing ranks after a while, and raises when the patience is over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from lightlib import report
from lightlib.errors import LightlibError
from lightlib.launch.environment.detect import Environment

POLL = 0.02
_LONGEST_POLL = 0.5
_SHARE = 0.1


class Waiting:
    """Clock of a waiting process: names the missing ranks after `word_after` seconds, and raises after `patience`."""

    def __init__(self, environment: Environment, patience: timedelta, word_after: float) -> None:
        self.environment, self.patience, self.word_after = environment, patience.total_seconds(), word_after
        self._begun, self._silent = time.monotonic(), True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    @property
    def due(self) -> bool:
        """Whether something is to be printed or raised now."""
        return self.seconds >= self.patience or (self._silent and self.seconds >= self.word_after)

    def report(self, missing: str, speaker: bool, cause: BaseException | None = None) -> None:
        """Print once which ranks are missing, if this is the `speaker`; raise at the end, or because of `cause`."""
        rank, seconds = self.environment.rank, self.seconds
        if cause is not None or seconds >= self.patience:
            raise LightlibError(
                f"Rank {rank} has waited {min(seconds, self.patience):.3g} s for {missing}.",
                expected="all of them, with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
                fix="see what they have printed; DDPStrategy(timeout=...) gives them more seconds.",
            ) from cause
        if speaker:
            report.log.info(f"Rank {rank} waits for {missing}.")
        self._silent = False

    def pause(self) -> None:
        """Sleep before the next look: the longer the wait, the longer, because thousands of ranks may ask one store."""
        time.sleep(min(max(POLL, _SHARE * self.seconds), _LONGEST_POLL))


def named(missing: Sequence[int], place: Environment) -> str:
    """Return the ranks that have not come, and where they are expected, for a message."""
    shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
    return f"{len(missing)} of the {place.world_size} processes at {place.address}:{place.port}: rank {shown}"
