"""Torchrun restarts ranks that were killed: they use no key of the attempt before, and resume."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch

from lightlib.launch.place import HeldPort
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


def restarted(setup: str, *kills: Kill) -> None:
    """Run the script that is killed; it must end well, with all kills done."""
    with contextlib.closing(HeldPort()) as held:
        options = [option.format(port=held.port) for option in SETUPS[setup]]
        options += ["--nproc-per-node=2", f"--max-restarts={len(kills)}", "--monitor-interval=0.05"]
        command = ["-m", "torch.distributed.run", *options, SCRIPTS / "restarted.py", as_argument(list(kills))]
        program = Program(*command, merged=True, starts=2 * (1 + len(kills)))
        text, _ = program.communicate()
        assert program.returncode == 0, text
        assert_all_end(program.pid, text)
    hits = [path.read_text() for path in sorted(Path().glob("killed*"))]
    assert hits == list(map(str, kills)), text


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
    restarted(setup, Kill(1, "batch", 4), Kill(0, "agreement", 4), Kill(0, "batch", 2), Kill(1, "group", 1))
    end = torch.load("end.pt")
    assert {name: value.tolist() for name, value in plain_loop().items()} == {n: v.tolist() for n, v in end.items()}
