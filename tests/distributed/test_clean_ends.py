"""A run of several processes that ends well writes no trace of torch's to stderr."""

from __future__ import annotations

import sys

import pytest

from lightlib.launch.environment.environment import HeldPort
from tests.distributed.programs import SCRIPTS
from tests.processes.programs import Program, environment

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.processes,
]
LATE = SCRIPTS / "late.py"


def assert_clean(program: Program) -> None:
    out, err = program.communicate()
    assert program.returncode == 0, out + err
    assert "TCPStore" not in err
    assert "frame #" not in err


@pytest.mark.parametrize(("method", "calls"), [("fork", "trainers"), ("fork", "fabric"), ("spawn", "trainers")])
def test_of_started_processes(method, calls):
    assert_clean(Program(LATE, method, calls))


@pytest.mark.parametrize("calls", ["trainers", "fabric"])
def test_of_processes_that_something_else_has_started(calls):
    held = HeldPort()
    given = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.port)}
    started = [
        Program(LATE, "variables", calls, env=environment(**given, RANK=str(rank), LOCAL_RANK=str(rank)))
        for rank in range(2)
    ]
    for program in started:
        assert_clean(program)
    held.close()
