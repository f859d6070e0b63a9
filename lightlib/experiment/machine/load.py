"""Load: CPU time and memory of the processes of trials, from /proc, and of their GPUs, from torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lightlib.experiment.machine.slots import Slot

PROC = Path("/proc")


class Load(NamedTuple):
    """The load of a process and its descendants.

    Attributes:
        cpu_seconds: Of these processes, and of those of their children that have ended.
        memory_bytes: That is resident; memory that processes share counts in each of them.
    """

    cpu_seconds: float
    memory_bytes: int


class _Process(NamedTuple):
    parent: int
    load: Load


def loads(roots: Iterable[int], proc: Path = PROC) -> dict[int, Load]:
    """Return the load of each of these processes with its descendants, by process id.

    Args:
        roots: Process ids. One that has ended is left out.
        proc: The file system with a folder for each process. Default: that of this machine.

    Raises:
        OSError: There is no such file system.
    """
    processes = {
        int(path.name): process for path in proc.iterdir() if path.name.isdecimal() and (process := _process(path))
    }
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    return {root: _total(root, processes, children) for root in roots if root in processes}


def _total(root: int, processes: Mapping[int, _Process], children: Mapping[int, Sequence[int]]) -> Load:
    members = [root]
    for member in members:  # grows meanwhile
        members += children.get(member, ())
    each = [processes[member].load for member in members]
    return Load(sum(load.cpu_seconds for load in each), sum(load.memory_bytes for load in each))


def _process(path: Path) -> _Process | None:
    """Read the file of a process: its fields after the name, which may have spaces; see proc_pid_stat(5)."""
    try:
        fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has ended
        return None
    seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return _Process(int(fields[1]), Load(seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")))


def gpus(slots: Iterable[Slot]) -> list[dict[str, Any]]:
    """Return the utilization in percent and the used bytes of the GPUs of a trial.

    Raises:
        ImportError: The package nvidia-ml-py is not installed, or that of ROCm.
        RuntimeError: The driver does not answer.
    """
    import torch  # optional: torch, which takes seconds

    return [
        {
            "device": slot.number,
            "utilization_percent": torch.cuda.utilization(slot.number),
            "memory_bytes": torch.cuda.device_memory_used(slot.number),
        }
        for slot in slots
        if slot.kind == "cuda"
    ]
