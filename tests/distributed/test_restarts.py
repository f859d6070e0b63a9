"""Torchrun restarts killed ranks: they use no key of the previous attempt, and resume."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch

from lightlib.launch.environment.environment import HeldPort
from tests.campaigns.torchrun_program import Kill, as_argument
from tests.distributed.programs import SCRIPTS, assert_all_end
from tests.processes.programs import Program

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.processes,
]
SETUPS = {
    "static": ["--master-addr=127.0.0.1", "--master-port={port}"],
    "standalone": ["--standalone"],
    "c10d": ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}", "--rdzv-id=1"],
}


def started(kills: list[Kill], ranks: int, restarts: int, *options: str) -> Program:
    """Start one of torchrun's agents, with so many ranks of the script that is killed."""
    command = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    command += ["--monitor-interval=0.05", *options, SCRIPTS / "restarted.py", as_argument(kills)]
    return Program(*command, merged=True, starts=ranks * (1 + restarts))


def assert_all_end_well(agents: list[Program], kills: list[Kill]) -> None:
    """Check that all agents end well, all kills hit, and the weights equal those of a run without kills."""
    texts = [agent.communicate()[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * len(agents), "\n".join(texts)
    for agent, text in zip(agents, texts, strict=True):
        assert_all_end(agent.pid, text)
    hits = [path.read_text() for path in sorted(Path().glob("killed*"))]
    assert hits == list(map(str, kills)), "\n".join(texts)
    end = {name: value.tolist() for name, value in torch.load("end.pt").items()}
    assert end == {name: value.tolist() for name, value in plain_loop().items()}


def plain_loop() -> dict[str, torch.Tensor]:
    """Train as two processes do, which read every other sample each, and take the mean of their gradients."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    for first in range(0, 24, 4):
        optimizer.zero_grad()
        for rank in (0, 1):
            part = x[first + rank : first + 4 : 2]
            (0.5 * (layer(part) - part.sum(1, keepdim=True)).square().mean()).backward()
        optimizer.step()
    return {f"layer.{name}": value for name, value in layer.state_dict().items()}


@pytest.mark.parametrize("setup", SETUPS)
def test_a_killed_rank_is_restarted_and_the_run_ends_like_one_that_was_not_killed(setup):
    kills = [Kill(1, "batch", 4), Kill(0, "agreement", 4), Kill(0, "batch", 2), Kill(1, "group", 1)]
    with contextlib.closing(HeldPort()) as held:
        options = [option.format(port=held.port) for option in SETUPS[setup]]
        agent = started(kills, 2, len(kills), *options)
        assert_all_end_well([agent], kills)


def test_agents_that_restart_their_own_ranks_only():
    """The other machine gets no notice: its rank stays, in a broken attempt or the next agreement."""
    kills = [Kill(1, "group", 1), Kill(0, "agreement", 4), Kill(0, "group", 1), Kill(0, "batch", 3)]
    with contextlib.closing(HeldPort()) as held:
        options = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={held.port}"]
        agents = [started(kills, 1, 1 + len(kills), *options, f"--node-rank={node}") for node in (0, 1)]
        assert_all_end_well(agents, kills)
