"""MemoryProfiler: how much memory each action keeps, and how much it needs while it runs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from lightlib import report
from lightlib.accelerators.out_of_memory import is_out_of_memory
from lightlib.errors import MisconfigurationException, check_flag
from lightlib.profilers.profiler import Profiler, not_started, started_twice
from lightlib.torch_private import record_memory, write_memory_snapshot

_MIB = 2**20
_ALLOCATIONS = 100_000


@dataclass(slots=True)
class MemoryUse:
    """The memory that an action kept and needed, over all its calls, in bytes.

    Attributes:
        calls: How often it ran.
        kept: The sum of the changes from its start to its end.
        most: The largest such change of one call.
        peak: The most memory in use while it ran; on the CPU, at its start or end.
    """

    calls: int = 0
    kept: int = 0
    most: int = 0
    peak: int = 0


@dataclass(slots=True)
class _Running:
    name: str
    before: int
    peak: int

    def note_peak(self, peak: int) -> None:
        self.peak = max(self.peak, peak)


class MemoryProfiler(Profiler):
    """Measures the memory in use before, after and during every action.

    On a GPU it is the memory of torch's allocator
    (`torch.cuda.memory_allocated <https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory_allocated.html>`_),
    with the peak during the action. On the CPU it is the resident memory of the process, which also changes by what
    the operating system and other threads do, and which Python seldom gives back: look at the actions that keep
    growing.

    Args:
        dirpath: The folder of the summary; the trainer's `log_dir` when only `filename` is given.
        filename: The start of the summary's file name. Without both arguments the summary is shown at the end.
        snapshot: Record the allocations on CUDA with their stacks, and when memory runs out write the last 100,000 to
            ``<stage>-memory-<rank>.pickle``, which https://docs.pytorch.org/memory_viz shows. It slows down each
            allocation. Never run on a GPU so far. Default: False.

    Raises:
        MisconfigurationException: When a run begins: `snapshot`, and there is no CUDA device.

    Example:
        >>> profiler = MemoryProfiler()
        >>> with profiler.profile("allocate"):
        ...     numbers = torch.ones(1000)
        >>> profiler.uses["allocate"].calls
        1
    """

    default_filename = "memory"

    def __init__(
        self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None, snapshot: bool = False
    ) -> None:
        super().__init__(dirpath, filename)
        self.snapshot = check_flag("MemoryProfiler", "snapshot", snapshot)
        self.uses: dict[str, MemoryUse] = {}
        self._running: list[_Running] = []
        self._module: nn.Module | None = None
        self._device: torch.device | None = None
        self._over = self._records = False

    def watch(self, module: nn.Module) -> None:
        self._module = module

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        if self._over:  # the measurements belong to the previous run
            self.uses.clear()
            self._over = False
        if self.snapshot:
            if not torch.cuda.is_available():
                raise MisconfigurationException(
                    "MemoryProfiler(snapshot=True) without a CUDA device.",
                    expected="a CUDA device, of which alone torch records allocations.",
                    fix="MemoryProfiler(), which measures the memory of each action on any device.",
                )
            record_memory(_ALLOCATIONS)
            self._records = True

    def note_failure(self, error: BaseException) -> None:
        if self._records and is_out_of_memory(error):
            path = str(self.path(".pickle"))
            write_memory_snapshot(path)
            report.info(f"Memory ran out. https://docs.pytorch.org/memory_viz shows the last allocations, in {path!r}.")

    def start(self, action_name: str) -> None:
        if any(running.name == action_name for running in self._running):
            raise started_twice(action_name)
        if self._device is None:
            self._find_device()
        if self._device is not None:
            self._note_peak()
            torch.cuda.reset_peak_memory_stats(self._device)
        now = self._in_use()
        self._running.append(_Running(action_name, now, now))

    def stop(self, action_name: str) -> None:
        names = [running.name for running in self._running]
        if action_name not in names:
            raise not_started(action_name, names)
        now = self._in_use()
        self._note_peak()
        action = self._running.pop(names.index(action_name))
        use = self.uses.setdefault(action_name, MemoryUse())
        use.calls += 1
        use.kept += now - action.before
        use.most = max(use.most, now - action.before)
        use.peak = max(use.peak, action.peak, now)

    def _find_device(self) -> None:
        """Look for a GPU of the module, which the strategy moves there after set-up."""
        parameter = next(self._module.parameters(), None) if self._module is not None else None
        if parameter is not None and parameter.device.type == "cuda":
            self._device = parameter.device

    def _in_use(self) -> int:
        return torch.cuda.memory_allocated(self._device) if self._device is not None else resident_memory()

    def _note_peak(self) -> None:
        """Pass the peak since the last action began or ended on to all that run."""
        if self._device is not None:
            peak = torch.cuda.max_memory_allocated(self._device)
            for action in self._running:
                action.note_peak(peak)

    def summary(self) -> str:
        if not self.uses:
            return ""
        kind = "resident memory of the process" if self._device is None else f"allocated on {self._device}"
        rows = [["Action", "Calls", "Kept (MiB)", "Most in a call (MiB)", "Peak (MiB)"]]
        for name, use in sorted(self.uses.items(), key=lambda item: item[1].most, reverse=True):
            sizes = (f"{size / _MIB:.1f}" for size in (use.kept, use.most, use.peak))
            rows.append([name, str(use.calls), *sizes])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        titles, *lines = [" | ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"Memory ({kind}; an action contains those within it)", titles, "-" * len(titles), *lines])

    def teardown(self, stage: str | None) -> None:
        self._running.clear()
        if self._records:
            record_memory(None)
            self._records = False
        self._over, self._module, self._device = True, None, None


def resident_memory() -> int:
    """Return the bytes of memory that this process has in use, or had at most where the system gives no more.

    Example:
        >>> resident_memory() > 1_000_000
        True
    """
    table = Path("/proc/self/statm")
    if table.exists():  # Linux
        return int(table.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import psutil  # optional: psutil

        return int(psutil.Process().memory_info().rss)
    except ImportError:
        import resource  # optional: only on Unix

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024  # bytes on macOS, else KiB
