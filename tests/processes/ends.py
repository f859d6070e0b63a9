"""Whether a process lives, and the wait for its end, by its number."""

from __future__ import annotations

import time
from pathlib import Path

from tests.processes.programs import HANGS_AFTER


def alive(pid: int) -> bool:
    """Return whether a process lives; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between the opening and the reading
        return False


def ends(pid: int) -> bool:
    """Return whether a process comes to its end; wait for it."""
    deadline = time.monotonic() + HANGS_AFTER
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)
