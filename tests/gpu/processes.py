"""Starts the processes of a part, follows their notes, and ends those that hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightlib.launch.environment.environment import HeldPort
from tests.gpu.case import Case, Outcome
from tests.gpu.device import Device

ROOT = Path(__file__).resolve().parents[2]
GRACE = 15.0  # seconds for the other ranks to end after one has failed
LAST_LINES = 30
Report = Callable[[Case, Outcome], None]


@dataclass(frozen=True)
class Limits:
    """Seconds that a part may take, and each of its cases, its start included."""

    part: float = 540.0
    case: float = 240.0


def run_cases(
    part: str, cases: Sequence[Case], device: Device, folder: Path, report: Report, limits: Limits = Limits()
) -> None:
    """Run cases in processes of their own, and report each result.

    After a case that fails, crashes or hangs, the processes are ended, and new ones continue with the next case.
    """
    until, attempts = time.monotonic() + limits.part, 0
    for number in sorted({case.ranks for case in cases}):
        waiting = [case for case in cases if case.ranks == number]
        while waiting:
            if time.monotonic() >= until:
                _not_reached(waiting, limits, report)
                break
            attempts += 1
            world = _World(part, waiting, device, folder / str(attempts))
            try:
                done = world.follow(report, limits, until)
            finally:
                world.end()
            waiting = waiting[done:]


def _not_reached(cases: Sequence[Case], limits: Limits, report: Report) -> None:
    for case in cases:
        report(case, Outcome("not reached", problem=f"the part's {limits.part:.0f} s were over"))


@dataclass
class _Rank:
    """A process, the file of its notes, and its output."""

    process: subprocess.Popen[bytes]
    notes: Path
    output: Path
    _read: int = field(default=0)

    def new_notes(self) -> Iterator[dict[str, Any]]:
        """Yield the notes since the last call."""
        if not self.notes.exists():
            return
        text = self.notes.read_bytes()
        complete = text.rfind(b"\n") + 1
        lines, self._read = text[self._read : complete].splitlines(), max(self._read, complete)
        yield from map(json.loads, lines)

    def last_lines(self) -> list[str]:
        return self.output.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]


class _World:
    """The ranks of one attempt at some cases, which all have the same number of ranks."""

    def __init__(self, part: str, cases: Sequence[Case], device: Device, folder: Path) -> None:
        self.cases, self.ranks = cases, list[_Rank]()
        folder.mkdir(parents=True)
        size = cases[0].ranks
        command = [sys.executable, "-m", "tests.gpu.worker", part, *(case.name for case in cases)]
        command += ["--devices", str(device.count), *(["--pretend"] if device.pretended else [])]
        self._held = HeldPort()
        for rank in range(size):
            notes, output = folder / f"rank{rank}.jsonl", folder / f"rank{rank}.txt"
            with output.open("wb") as file:
                process = subprocess.Popen(
                    [*command, "--notes", str(notes)], cwd=ROOT, env=_environment(rank, size, self._held.port),
                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            self.ranks.append(_Rank(process, notes, output))

    def follow(self, report: Report, limits: Limits, until: float) -> int:
        """Report the cases as they end; return how many have."""
        done, since, begun, failed = 0, time.monotonic(), False, False
        while done < len(self.cases):
            time.sleep(0.05)
            codes = [rank.process.poll() for rank in self.ranks]  # before the notes: those are complete after an end
            for note in self.ranks[0].new_notes():
                if "figures" in note:
                    report(self.cases[done], Outcome("passed", note["figures"], note["seconds"]))
                    done, since, begun = done + 1, time.monotonic(), False
                elif "problem" not in note:
                    begun = True
                else:
                    failed = True
            took = time.monotonic() - since
            if done == len(self.cases):
                return done + self._ends(report)
            if failed or any(codes) or None not in codes:
                failed_case, outcome = self._failure(took)
                if done and failed_case == self.cases[done - 1].name:  # on another rank than the first
                    report(self.cases[done - 1], outcome)
                    return done
                report(self.cases[done], outcome)
                return done + 1 if begun else self._all_failed(report, done)
            if took > limits.case:
                words = f"no end within {limits.case:.0f} s; the processes were ended"
                report(self.cases[done], Outcome("failed", {}, took, words, self._output()))
                return done + 1
            if time.monotonic() >= until:
                _not_reached(self.cases[done:], limits, report)
                return len(self.cases)
        return done

    def _ends(self, report: Report) -> int:
        """Report processes that do not end, or not well, after the last case."""
        codes = self._codes()
        if any(codes):
            words = f"after the last case, the processes ended with {_named(codes)}"
            report(self.cases[-1], Outcome("failed", {}, 0.0, words, self._output()))
        return 0

    def _failure(self, took: float) -> tuple[str, Outcome]:
        """Return the first error of all ranks with its case, or their exit codes."""
        codes = self._codes()
        problems = [(note["at"], number, note) for number, note in self._problems()]
        _, number, note = min(problems, default=(0.0, 0, {}), key=lambda problem: problem[0])
        words = f"rank {number}: {note['problem']}" if note else f"the processes ended with {_named(codes)}"
        if len(self.ranks) == 1:
            words = words.removeprefix("rank 0: ")
        return note.get("case", ""), Outcome("failed", {}, round(took, 2), words, self._output(number))

    def _problems(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, rank in enumerate(self.ranks):
            for line in rank.notes.read_text(encoding="utf-8").splitlines() if rank.notes.exists() else ():
                if "problem" in (note := json.loads(line)):
                    yield number, note

    def _all_failed(self, report: Report, done: int) -> int:
        """Report the rest of the cases after a process that ended before it began one."""
        for case in self.cases[done + 1 :]:
            report(case, Outcome("not reached", problem="the processes ended before their first case"))
        return len(self.cases)

    def _codes(self) -> list[int | None]:
        """Return the exit codes, after a while for the ranks that still run; None: it still does."""
        until = time.monotonic() + GRACE
        while time.monotonic() < until and any(rank.process.poll() is None for rank in self.ranks):
            time.sleep(0.05)
        return [rank.process.poll() if rank.process.poll() is not None else -signal.SIGKILL for rank in self.ranks]

    def _output(self, number: int = 0) -> list[str]:
        """Return the last lines of a rank."""
        return self.ranks[number].last_lines()

    def end(self) -> None:
        """End each process, and all that it has started, by its id."""
        for rank in self.ranks:
            for pid in [rank.process.pid, *_session(rank.process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            rank.process.wait()
        self._held.close()


def _session(leader: int) -> list[int]:
    """Return the processes of a session, which its leader has started, also in process groups of their own."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(place.name)) == leader:
                found.append(int(place.name))
    return found


def _named(codes: Sequence[int | None]) -> str:
    words = [signal.Signals(-code).name if code is not None and code < 0 else f"code {code}" for code in codes]
    return ", ".join(words)


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    place: dict[str, Any] = {}
    if size > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        place |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    fixed = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **fixed, **{name: str(value) for name, value in place.items()}}
