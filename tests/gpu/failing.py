"""A part of `make gpu` for tests: its cases pass, fail, crash and hang."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from tests.gpu.case import Case, DiffersError, Figures, Part
from tests.gpu.device import Device

SECONDS = int(os.environ.get("SLEEPS", "3571"))  # another number finds it among the processes
SLEEP = f"sleep {SECONDS}"
NAMES = ("passes", "differs", "crashes", "one rank fails", "passes, too", "hangs")


def cases(device: Device, precisions: Sequence[str]) -> list[Case]:
    return [Case(name, devices=2, ranks=2) for name in NAMES]


def run(name: str, device: Device) -> Figures:
    rank = int(os.environ["RANK"])
    if name == "differs":
        raise DiffersError("0.5 is not 0.25")
    if name == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "one rank fails" and rank == 1:
        raise RuntimeError("out of memory")
    if name in ("one rank fails", "hangs"):
        subprocess.run(SLEEP.split(), check=False, preexec_fn=os.setpgrp)
    return {"rank": rank}


PART = Part("cases that fail", cases, run)
EARLY = Part("ends before its first case", cases, run, prepare=lambda names, device: os._exit(3))
