"""Loops with strategies of Fabric's kind, compared with Lightning 2.6.6 (recorded.json)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.recorded_programs import differences, recorded, run

HERE = Path(__file__).parent
RECORDED = recorded(HERE)


@pytest.mark.processes
@pytest.mark.parametrize("case", sorted(RECORDED))
def test_a_program_makes_lightnings_calls_and_gets_its_numbers(case):
    assert not differences(RECORDED[case], run(HERE, case))
