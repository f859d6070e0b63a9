"""Run the tests and print where CPU and wall seconds went; the arguments go to pytest (Linux)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.plugins.timing import FOLDER

PAUSE = 0.2  # seconds between two looks at /proc
TICKS = os.sysconf("SC_CLK_TCK")
SLOWEST = 20
ORDER = {
    "worker": "pytest workers: collection and tests in process",
    "warm": "warm processes: their imports",
    "fork": "ranks and programs forked from them",
    "other": "new interpreters and other programs, with their imports",
}


@dataclass
class Seen:
    """A process of the run, at the last look at it.

    Attributes:
        kind: A key of `ORDER`.
        command: Its command line.
        cpu: Its CPU seconds, without those of its children.
    """

    kind: str
    command: str
    cpu: float


class Sampler:
    """Adds up the CPU seconds of all descendants of a process by kind.

    Args:
        root: The process id of pytest.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.seen: dict[tuple[int, int], Seen] = {}

    def look(self) -> None:
        """Take note of all processes that live now."""
        live: dict[int, tuple[int, float, str, int]] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    command = (folder / "cmdline").read_text().replace("\0", " ")
                except OSError:  # it has just ended
                    continue
                cpu = (int(fields[11]) + int(fields[12])) / TICKS
                live[int(folder.name)] = (int(fields[1]), cpu, command, int(fields[19]))
        for pid, (_, cpu, command, start) in live.items():
            known = self.seen.get((pid, start))
            if known is not None and not command:  # it has ended, but is not reaped yet
                known.cpu = cpu
                continue
            kind = known.kind if known is not None else self._kind(pid, live)
            if known is not None and kind == "fork" and "tests.processes.warm" not in command:
                kind = "other"  # it has executed another program
            if kind:
                self.seen[pid, start] = Seen(kind, command, cpu)

    def _kind(self, pid: int, live: dict[int, tuple[int, float, str, int]]) -> str:
        if pid == self.root:
            return "worker"
        parent, _, command, _ = live[pid]
        if parent not in live:
            return ""
        above = self.seen.get((parent, live[parent][3]))
        if above is None:
            return ""
        if "tests.processes.warm" in command:
            return "fork" if "tests.processes.warm" in above.command else "warm"
        return "worker" if parent == self.root or (above.kind == "worker" and command == above.command) else "other"

    def totals(self) -> dict[str, tuple[float, int]]:
        """Return the CPU seconds and the number of processes of each kind."""
        seconds: defaultdict[str, float] = defaultdict(float)
        number: Counter[str] = Counter()
        for one in self.seen.values():
            seconds[one.kind] += one.cpu
            number[one.kind] += 1
        return {kind: (seconds[kind], number[kind]) for kind in ORDER}

    def costliest(self) -> list[tuple[str, tuple[float, int]]]:
        """Return the seconds and the number of the other programs by the first words of their commands."""
        programs: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.seen.values():
            if one.kind == "other":
                programs[" ".join(one.command.split()[1:])[:100]].append(one.cpu)
        totals = [(command, (sum(cpus), len(cpus))) for command, cpus in programs.items()]
        return sorted(totals, key=lambda total: -total[1][0])


def main() -> int:
    """Run pytest with a sampler; print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "pytest", *sys.argv[1:]], env={**os.environ, FOLDER: folder})
        sampler = Sampler(process.pid)
        while process.poll() is None:
            sampler.look()
            time.sleep(PAUSE)
        wall = time.monotonic() - begun
        notes = [json.loads(line) for file in Path(folder).iterdir() for line in file.read_text().splitlines()]
    print(f"\n{wall:.0f} s of wall time\n")
    print(f"{'CPU s':>8} {'processes':>10}")
    for kind, (seconds, number) in sampler.totals().items():
        print(f"{seconds:8.0f} {number:10d}  {ORDER[kind]}")
    print(f"\n{'CPU s':>8} {'processes':>10}  of these, the costliest")
    for command, (seconds, number) in sampler.costliest()[:SLOWEST]:
        print(f"{seconds:8.0f} {number:10d}  {command}")
    print(f"\n{'CPU s':>8} {'wall s':>8} {'number':>8}  in the workers")
    for kind in ("collection", "in process", "processes"):
        of_kind = [note for note in notes if note["kind"] == kind]
        cpu, waited = (sum(note[what] for note in of_kind) for what in ("cpu", "wall"))
        what = kind if kind == "collection" else f"tests {'with processes' if kind == 'processes' else kind}"
        print(f"{cpu:8.0f} {waited:8.0f} {len(of_kind):8d}  {what}")
    print(f"\nThe slowest {SLOWEST}:")
    tests = [note for note in notes if note["kind"] != "collection"]
    for note in sorted(tests, key=lambda note: -note["wall"])[:SLOWEST]:
        print(f"{note['wall']:8.1f}  {note['name']}")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
