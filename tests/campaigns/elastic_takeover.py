"""Measures the time from a kill to the next optimizer step: torchrun's restart, and a spare agent."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torch.distributed import TCPStore

from lightlib.launch.environment.environment import HeldPort
from tests.campaigns.elastic_agents import descendants
from tests.campaigns.takeover_program import PROCESSES, STEPS
from tests.processes.programs import environment
from tests.processes.warm import ROOT

PATIENCE = 120.0  # seconds for any one event; only what hangs takes so long
READY = 15.0  # seconds for a spare to import all and wait
WAYS = ("restart", "spare", "warm restart", "warm spare")
CONF = "keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=1"


class Agents:
    """Agents on this machine; a spare has no ranks until the first agent ends.

    Args:
        way: One of `WAYS`.
        folder: Of the run.
        endpoint: Of the rendezvous.
    """

    def __init__(self, way: str, folder: Path, endpoint: str) -> None:
        self.way, self.folder, self.endpoint = way, folder, endpoint
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start an agent; a second one waits until the first has ended."""
        if self.way.startswith("warm"):
            words = ["tests.campaigns.takeover_program", str(self.folder), self.endpoint]
        else:
            words = ["torch.distributed.run", "--nnodes=1:1", f"--nproc-per-node={PROCESSES}", "--max-restarts=9"]
            words += ["--monitor-interval=0.1", "--rdzv-backend=c10d", "--rdzv-id=takeover", "--local-addr=127.0.0.1"]
            words += [f"--rdzv-endpoint={self.endpoint}", f"--rdzv-conf={CONF},is_host=false"]
            words += ["-m", "tests.campaigns.takeover_program", str(self.folder)]
        env = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with (self.folder / "terminal").open("a") as terminal:
            process = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=ROOT, env=env, stdout=terminal, stderr=terminal
            )
        self.processes.append(process)

    def wait_until(self, test: Callable[[], bool]) -> None:
        """Wait until there are such steps."""
        deadline = time.monotonic() + PATIENCE
        while not test():
            if time.monotonic() > deadline or all(process.poll() is not None for process in self.processes):
                raise TimeoutError(f"{self.way}:\n{(self.folder / 'terminal').read_text()[-4000:]}")
            time.sleep(0.005)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill an agent and all its processes."""
        for pid in (*descendants(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def steps(folder: Path) -> list[tuple[float, int, int]]:
    """Return the time, the process and the rank of each optimizer step so far."""
    path = folder / STEPS
    lines = [line.split() for line in path.read_text().split("\n")[:-1]] if path.exists() else []
    return [(float(at), int(pid), int(rank)) for at, _, rank, pid in lines]


def seconds(way: str, folder: Path) -> float:
    """Kill a rank, or an agent with its ranks; return the seconds until the next optimizer step."""
    folder.mkdir(parents=True)
    with contextlib.closing(HeldPort()) as held:
        # The store is no agent's: it outlives the first one.
        store = TCPStore("127.0.0.1", held.port, is_master=True, wait_for_workers=False)
        agents = Agents(way, folder, f"127.0.0.1:{held.port}")
        try:
            agents.start()
            agents.wait_until(lambda: len(steps(folder)) > 40)
            if way.endswith("spare"):
                agents.start()
                time.sleep(READY)
            return _seconds_after_a_kill(agents, folder)
        finally:
            for process in agents.processes:
                agents.kill(process)
            del store


def _seconds_after_a_kill(agents: Agents, folder: Path) -> float:
    before = {pid for _, pid, _ in steps(folder)}
    killed = time.time()
    if agents.way.endswith("spare"):
        agents.kill(agents.processes.pop(0))
    else:
        os.kill(next(pid for _, pid, rank in steps(folder) if rank == 1), signal.SIGKILL)
    agents.wait_until(lambda: any(pid not in before for _, pid, _ in steps(folder)))
    return min(at for at, pid, _ in steps(folder) if pid not in before) - killed


def measured(times: int, folder: Path) -> Iterator[str]:
    """Return a line for each way, with the seconds of so many kills."""
    for way in WAYS:
        found = sorted(seconds(way, folder / f"{way.replace(' ', '-')}-{i}") for i in range(times))
        each = ", ".join(f"{value:.1f}" for value in found)
        yield f"{way:14} median {statistics.median(found):.1f} s ({each}); load {os.getloadavg()[0]:.0f}"
