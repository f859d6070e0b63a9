"""Runs the scripts of the folder by Python or torchrun, and checks that all of their processes end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.processes.programs import GRACE, HANGS_AFTER, Program

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
# Printed when a rank was ended by a launcher that ran out of patience, and not because of another rank.
_FORCED = (" s after rank 0 had ended, and stopped", "forcefully exiting via")


@dataclass
class Ended:
    """How a program ended.

    Attributes:
        code: Its exit code.
        text: What stood on the terminal.
    """

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.rstrip().splitlines()


def run(script: str, *arguments: object, torchrun: bool = False, env: Mapping[str, str] | None = None) -> Ended:
    """Run a script on two ranks; fail if it or a process that it has started does not end by itself.

    Args:
        script: Its name.
        arguments: What follows it on the command line.
        torchrun: Whether torchrun starts it; else it starts the second rank itself.
        env: Its variables. Default: `tests.processes.programs.environment()`.
    """
    command = [*(TORCHRUN if torchrun else ()), str(SCRIPTS / script), *map(str, arguments)]
    program = Program(*command, env=env, merged=True, starts=2 if torchrun else 1)
    try:
        text, _ = program.communicate()
    except subprocess.TimeoutExpired:
        kill(program.pid)
        text, _ = program.communicate(GRACE)
        raise AssertionError(f"no end within {HANGS_AFTER:g} s:\n{text}") from None
    ended = Ended(program.wait(), text)
    assert_all_end(program.pid, text)
    assert not any(words in text for words in _FORCED), text
    return ended


def assert_all_end(session: int, text: str) -> None:
    """Wait until no process of a session lives; fail, and kill them, when some do not end."""
    deadline = time.monotonic() + HANGS_AFTER
    while (left := members(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    kill(*left)
    assert not left, f"left behind: {left}\n{text}"


def kill(*pids: int) -> None:
    """Kill these processes and the groups that they lead."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def members(session: int) -> list[int]:
    """Return the processes of a session that live."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended in the meantime
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(folder.name))
    return found
