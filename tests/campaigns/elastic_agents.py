"""Runs under torchrun with two agents, of which one is killed like a machine, and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightlib.launch.environment.environment import HeldPort
from tests.campaigns.elastic_program import HOLD, NOTES, Elastic
from tests.processes.programs import Program, environment
from tests.processes.warm import ROOT

PATIENCE = 240.0  # seconds for any one event; only a run that hangs takes so long
CONF = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=8"
STARTS = 12  # interpreters that an agent may start as forks


@dataclass
class Ended:
    """How a run with agents that come and go ended.

    Attributes:
        kills: Each kill, and the phase that it hit.
        starts: How often the number of processes changed.
        problems: Failures.
    """

    kills: list[tuple[str, str]] = field(default_factory=list)
    starts: int = 0
    problems: list[str] = field(default_factory=list)


class Agents:
    """Two agents of torchrun on this machine; `end` ends all their processes.

    Args:
        how: What they run.
        where: The folder of the run.
    """

    def __init__(self, how: Elastic, where: Path) -> None:
        most, least = how.sizes
        self.how, self.where, self.processes = how, where, (least, most - least)
        self.held = HeldPort()
        self.programs: dict[int, Program] = {}

    def start(self, number: int) -> None:
        """Start an agent; the first one hosts the rendezvous."""
        conf = f"{CONF},is_host={str(number == 0).lower()}"
        words = ["torch.distributed.run", "--nnodes=1:2", f"--nproc-per-node={self.processes[number]}"]
        words += ["--max-restarts=9", "--monitor-interval=0.1", "--rdzv-backend=c10d", "--rdzv-id=1"]
        words += [f"--rdzv-endpoint=localhost:{self.held.port}", f"--rdzv-conf={conf}", "--local-addr=127.0.0.1"]
        words += ["-m", "tests.campaigns.elastic_program"]
        env = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", TQDM_DISABLE="1")
        program = Program("-m", *words, self.where, self.how.name, cwd=ROOT, merged=True, starts=STARTS, env=env)
        self.programs[number] = program
        _drained(program, self.where.with_name(f"{self.where.name}.rank{number}.txt"))

    def kill(self, number: int) -> None:
        """Kill an agent and its ranks, as the end of a machine does."""
        program = self.programs.pop(number)
        for pid in (*descendants(program.pid), program.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.wait(PATIENCE)

    def end(self) -> None:
        """Kill the agents that still run."""
        for number in list(self.programs):
            self.kill(number)
        self.held.close()

    def wait_until(self, what: str, test: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the notes of the ranks pass a test."""
        deadline = time.monotonic() + PATIENCE
        while not test(notes(self.where)):
            if time.monotonic() > deadline or self.programs[0].poll() is not None:
                raise TimeoutError(f"never: {what}")
            time.sleep(0.01)


def _drained(program: Program, path: Path) -> None:
    """Write the output of a program into a file, in a thread of this process."""

    def copy() -> None:
        with path.open("a") as file, contextlib.suppress(ValueError, OSError):
            for line in program.stdout:
                file.write(line)
                file.flush()

    threading.Thread(target=copy, daemon=True).start()


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield from descendants(child)
                yield child


def notes(where: Path) -> list[dict[str, Any]]:
    """Return the notes of the ranks, without a line that is being written."""
    path = where / NOTES
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def one_case(how: Elastic, rng: random.Random, where: Path) -> Ended:
    """Kill the second agent at a random step, let it come back at a later one, and wait for the end."""
    most, least = how.sizes
    first, pause = rng.randint(0, how.steps // 3), rng.uniform(0.0, 0.3)
    back = rng.randint(first, how.steps // 2)
    ended = Ended()
    where.mkdir(parents=True)
    (where / HOLD).write_text(f"{most} {least} {back}")
    with contextlib.ExitStack() as stack:
        agents = Agents(how, where)
        stack.callback(agents.end)
        agents.start(0)
        agents.start(1)
        try:
            agents.wait_until(f"step {first} of {most}", lambda found: _has(found, most, first))
            time.sleep(pause)
            agents.kill(1)
            phase = "validate" if "validation" in notes(where)[-1] else "train"
            ended.kills.append((f"SIGKILL to one agent of two after step {first}", phase))
            ended.starts += 1
            agents.wait_until(f"step {back} of {least}", lambda found: _has(found, least, back))
            agents.start(1)
            ended.starts += 1
            for program in agents.programs.values():
                if code := program.wait(PATIENCE):
                    ended.problems.append(f"an agent ended with exit code {code}")
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            ended.problems.append(str(error))
    return ended


def _has(found: list[dict[str, Any]], world: int, step: int) -> bool:
    """Whether so many processes have begun a step."""
    return any(note.get("world") == world and note["step"] >= step for note in found)
