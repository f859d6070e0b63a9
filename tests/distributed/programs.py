"""Run the scripts beside this file as a user would: by Python or torchrun, in a terminal of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightlib

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SHARED = "PYTEST_XDIST_WORKER" in os.environ  # other tests use the processors as well, and all takes longer
AT_MOST = 60.0 if SHARED else 15.0  # seconds from the failure to the end of all processes
HANGS_AFTER = 10 if SHARED else 3  # seconds without progress
PATIENCE = 200.0 if SHARED else 100.0
NOT_FOR_CHILDREN = {"PYTEST_CURRENT_TEST", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
VARIABLES = {name: value for name, value in os.environ.items() if name not in NOT_FOR_CHILDREN} | {
    "PYTHONPATH": str(Path(lightlib.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass
class Ended:
    """How a program ended.

    Attributes:
        code: Its exit code.
        text: What stood on the terminal.
        seconds: From the time that it left in the file `failed` to the end of all its processes.
    """

    code: int
    text: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.text.rstrip().splitlines()


def begin(*command: str, **options: Any) -> subprocess.Popen[str]:
    """Start Python with these arguments, the leader of a session, both streams in one pipe."""
    given = {"env": VARIABLES, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options}
    return subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.STDOUT, text=True, start_new_session=True, **given
    )


def end(process: subprocess.Popen[str], patience: float = PATIENCE) -> Ended:
    """Wait for a program; fail when it, or a process that it has started, does not come to an end."""
    try:
        text, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        raise AssertionError(f"no end within {patience:g} s:\n{text}") from None
    deadline = time.monotonic() + AT_MOST
    while (left := members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = time.time()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}\n{text}"
    failed = Path("failed")
    return Ended(process.returncode, text, ended - float(failed.read_text()) if failed.exists() else 0.0)


def run(script: str, *arguments: object, torchrun: bool = False) -> Ended:
    """Run a script of the folder to its end."""
    launcher = TORCHRUN if torchrun else ()
    return end(begin(*launcher, str(SCRIPTS / script), *map(str, arguments)))


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
