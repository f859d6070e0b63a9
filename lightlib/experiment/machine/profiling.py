"""Profiling: a thread of the worker that measures its trials once a second, into a file for each."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from lightlib.experiment.machine.load import Load, gpus, loads
from lightlib.experiment.machine.slots import Slot
from lightlib.experiment.machine.usage import FILE

_INTERVAL = 1.0  # seconds between two measurements


class Measured(NamedTuple):
    """An attempt that runs.

    Attributes:
        pid: Of its process.
        folder: In which its measurements are written.
        slots: That it has.
    """

    pid: int
    folder: Path
    slots: Sequence[Slot]


class Profiling(threading.Thread):
    """Appends a line of JSON per second to ``usage.jsonl`` in the folder of each attempt that runs.

    A line has ``time`` (UTC), ``cpu_seconds``, ``cpu_percent`` of one core since the line before (None in the first),
    ``memory_bytes`` and, with GPUs, ``gpus``.

    Args:
        here: Returns the attempts that run.
        ended: Is set when the worker ends.
        show: Gets a line for each measurement that this machine does not have.
    """

    def __init__(
        self, here: Callable[[], Iterable[Measured]], ended: threading.Event, show: Callable[[str], None]
    ) -> None:
        super().__init__(name="lightlib profiling", daemon=True)
        self._here, self._ended, self._show = here, ended, show
        self._before: dict[int, tuple[float, float]] = {}  # by process id: time and CPU seconds of its last line
        self._missing: set[str] = set()

    def run(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self.measure()

    def measure(self) -> None:
        """Append a line for each attempt that runs."""
        here = list(self._here())
        try:
            process_loads = loads(measured.pid for measured in here)
        except OSError as error:
            self._miss("CPU and memory", error)
            process_loads = {}
        now = time.monotonic()
        for measured in here:
            graphics = self._gpus(measured.slots)
            load = process_loads.get(measured.pid)
            if load is None and not graphics:
                continue
            line = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds")}
            more = {} if load is None else self._of_processes(measured.pid, load, now)
            text = json.dumps({**line, **more, **({"gpus": graphics} if graphics else {})})
            with suppress(OSError), (measured.folder / FILE).open("a") as file:  # a full disk must not end the worker
                file.write(f"{text}\n")

    def _of_processes(self, pid: int, load: Load, now: float) -> dict[str, Any]:
        before = self._before.get(pid)
        self._before[pid] = now, load.cpu_seconds
        percent = None if before is None else 100 * (load.cpu_seconds - before[1]) / max(now - before[0], 1e-9)
        return {
            "cpu_seconds": round(load.cpu_seconds, 2),
            "cpu_percent": None if percent is None else round(max(percent, 0.0), 1),
            "memory_bytes": load.memory_bytes,
        }

    def _gpus(self, slots: Sequence[Slot]) -> list[dict[str, Any]]:
        if "GPUs" in self._missing:
            return []
        try:
            return gpus(slots)
        except Exception as error:  # noqa: BLE001  packages and drivers of many vendors
            self._miss("GPUs", error)
            return []

    def _miss(self, label: str, error: Exception) -> None:
        if label not in self._missing:
            self._missing.add(label)
            self._show(f"profiling.enabled: {label} cannot be measured on this machine: {error}")
