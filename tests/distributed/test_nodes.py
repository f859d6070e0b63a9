"""Two machines, which are network namespaces here: they train together, one is lost, one comes back."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.distributed.programs import SCRIPTS
from tests.processes.programs import HANGS_AFTER, environment

pytestmark = [pytest.mark.slow, pytest.mark.processes]
ADDRESSES = ("10.177.0.1", "10.177.0.2")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def machines():
    """Make two namespaces that are joined by a cable, and return their names."""
    if sys.platform != "linux" or shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need Linux, the command `ip`, and root")
    names = [f"ll{os.getpid()}n{i}" for i in (0, 1)]
    ends = [f"ll{os.getpid()}v{i}" for i in (0, 1)]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
            for name, link, address in zip(names, ends, ADDRESSES, strict=True):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", link, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Cluster:
    """The agents of torchrun on the two machines; all their processes end with the `with` block.

    They get only addresses: lightlib finds the network interface for gloo.
    """

    def __init__(self, names, steps, delay):
        self.names, self.arguments = names, (str(steps), str(delay))
        self.agents = {}
        self.variables = environment()
        del self.variables["GLOO_SOCKET_IFNAME"]
        self.variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torch 2.13 hangs when a machine comes back

    def start(self, node):
        conf = "last_call_timeout=4,keep_alive_interval=2,keep_alive_max_attempt=3"
        command = [
            "ip", "netns", "exec", self.names[node], sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2",
            "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.5", "--rdzv-backend=c10d", "--rdzv-id=1",
            f"--rdzv-endpoint={ADDRESSES[0]}:29400", f"--local-addr={ADDRESSES[node]}",
            f"--rdzv-conf={conf},is_host={str(node == 0).lower()}", str(SCRIPTS / "elastic.py"), *self.arguments,
        ]  # fmt: skip
        with Path(f"terminal-{node}").open("a") as terminal:
            self.agents[node] = subprocess.Popen(
                command, env=self.variables, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal
            )

    def processes(self, node):
        """Return the processes on a machine, by their command lines."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.names[node]], capture_output=True, text=True, timeout=HANGS_AFTER, check=True
        )
        found = {}
        for pid in map(int, done.stdout.split()):
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text()
        return found

    def ranks(self, node):
        """Return the processes that train on a machine."""
        return [pid for pid, line in self.processes(node).items() if "elastic.py" in line and "torch.distr" not in line]

    def kill(self, node):
        for pid in self.processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent = self.agents.pop(node, None)
        if agent is not None:
            agent.wait(timeout=HANGS_AFTER)

    def wait_until(self, what):
        """Wait until the notes of the ranks match a pattern."""
        deadline = time.monotonic() + HANGS_AFTER
        while not re.search(what, notes(), re.MULTILINE):
            assert time.monotonic() < deadline, self.told(f"not within {HANGS_AFTER:g} s: {what}")
            assert self.agents[0].poll() is None, self.told(f"ended before: {what}")
            time.sleep(0.02)

    def wait_for_the_end(self):
        for agent in self.agents.values():
            assert agent.wait(timeout=HANGS_AFTER) == 0, self.told("failed")

    def told(self, what):
        terminals = [f"--- machine {node}\n{Path(f'terminal-{node}').read_text()[-4000:]}" for node in self.agents]
        return "\n".join([what, notes(), *terminals])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for node in (0, 1):
            self.kill(node)


def notes():
    return Path("notes").read_text() if Path("notes").exists() else ""


def begun():
    """Return at which steps, with how many processes, the ranks have begun: one entry for each rank."""
    found = re.findall(r"^begins (\d+) world (\d) rank (\d)", notes(), re.MULTILINE)
    return [(int(step), int(world), int(rank)) for step, world, rank in found]


def test_two_machines_train_and_agree_on_the_weights(machines):
    with Cluster(machines, steps=30, delay=0.01) as cluster:
        cluster.start(0)
        cluster.start(1)
        cluster.wait_for_the_end()
        assert "GLOO_SOCKET_IFNAME" in Path("terminal-0").read_text()
        assert "there is no last checkpoint" in Path("terminal-0").read_text()
    assert sorted(begun()) == [(0, 2, 0), (0, 2, 1)]
    one, other = torch.load("end-0.pt"), torch.load("end-1.pt")
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_machine_is_lost_and_comes_back(machines):
    with Cluster(machines, steps=-1, delay=0.05) as cluster:
        cluster.start(0)
        cluster.start(1)
        cluster.wait_until(r"^step 12 world 2 rank 0")
        cluster.kill(1)
        cluster.wait_until(r"^begins \d+ world 1")
        (_, world, rank), alone = begun()[0], begun()[2]
        assert (world, rank) == (2, 0) or begun()[1][1:] == (2, 0)
        assert alone[1:] == (1, 0)
        last = max(map(int, re.findall(r"^step (\d+) world 2 rank 0", notes(), re.MULTILINE)))
        assert last - 10 < alone[0] <= last, notes()  # at the last checkpoint, and not at step 0
        assert alone[0] % 5 == 0
        cluster.wait_until(rf"^step {alone[0] + 12} world 1")

        cluster.start(1)
        cluster.wait_until(r"^begins [1-9]\d* world 2 rank 1")
        cluster.wait_until(r"^begins [1-9]\d* world 2 rank 0")
        together = begun()[3:]
        assert together[0][0] == together[1][0] >= alone[0] + 12  # where the SIGTERM of torchrun has stopped it
        assert "interrupted.ckpt" in Path("terminal-0").read_text()

        cluster.wait_until(rf"^step {together[0][0] + 5} world 2 rank 1")
        for pid in cluster.ranks(1):  # its first start and rank 0's second: they agree all the same
            os.kill(pid, signal.SIGTERM)
        cluster.wait_until(r"(?s)(^begins .*){7}")
        again = begun()[5:]
        assert again[0][0] == again[1][0] >= together[0][0] + 5
        cluster.wait_until(rf"^step {again[0][0] + 5} world 2 rank 0")
        Path("finish").touch()
        cluster.wait_for_the_end()
    one, other = torch.load("end-0.pt"), torch.load("end-1.pt")
    assert all(torch.equal(value, other[name]) for name, value in one.items())
