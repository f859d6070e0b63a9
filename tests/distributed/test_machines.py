"""One program for each of two machines, or for each process, by NODE_RANK and without RANK."""

from __future__ import annotations

import json
import re

import pytest

from lightlib.launch.environment.environment import HeldPort
from tests.distributed.programs import SCRIPTS
from tests.processes.programs import Program, environment

pytestmark = pytest.mark.processes


def results(kind, api, devices, places, **given):
    """Return the lines of the ranks, in their order; `places` has the variables of each program."""
    held = HeldPort()
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.port), **given}
    command = (SCRIPTS / "machine.py", kind, api, devices)
    started = [Program(*command, env=environment(**rendezvous, **place), starts=devices - 1) for place in places]
    texts = [program.communicate() for program in started]
    held.close()
    assert [program.returncode for program in started] == [0] * len(places), texts
    return sorted(json.loads(found) for out, _ in texts for found in re.findall(r"RESULT (.*)", out))


@pytest.mark.parametrize(("kind", "api"), [("trainer", "native"), ("trainer", "compat"), ("fabric", "native")])
def test_one_program_for_each_machine(kind, api):
    found = results(kind, api, 1, [{"NODE_RANK": "0"}, {"NODE_RANK": "1"}], WORLD_SIZE="2")
    last = 1 - 0.5 * (1 + 2) / 2 if kind == "trainer" else 1.0  # the mean gradient of both, or the sum of the ranks
    assert found == [[0, 0, 0, 2, last], [1, 0, 1, 2, last]]


@pytest.mark.parametrize("kind", ["trainer", "fabric"])
def test_two_processes_on_each_of_two_machines(kind):
    found = results(kind, "native", 2, [{"NODE_RANK": "0"}, {"NODE_RANK": "1"}])
    last = 1 - 0.5 * (1 + 2 + 3 + 4) / 4 if kind == "trainer" else 6.0
    assert found == [[rank, rank % 2, rank // 2, 4, last] for rank in range(4)]


@pytest.mark.parametrize(("kind", "api"), [("trainer", "native"), ("fabric", "compat")])
def test_one_program_for_each_process(kind, api):
    places = [{"NODE_RANK": str(node), "LOCAL_RANK": str(local)} for node in range(2) for local in range(2)]
    found = results(kind, api, 2, places, WORLD_SIZE="4")
    last = 1 - 0.5 * (1 + 2 + 3 + 4) / 4 if kind == "trainer" else 6.0
    assert found == [[rank, rank % 2, rank // 2, 4, last] for rank in range(4)]
