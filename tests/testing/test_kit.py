"""The checks need assertions: an interpreter without them is refused, for no plugin would fail."""

from __future__ import annotations

import pytest

from tests.processes import programs

PROGRAM = """
from lightlib.callbacks import Callback
from lightlib.testing import check_callback
check_callback(Callback)
"""


@pytest.mark.processes
def test_without_assertions_nothing_passes():
    done = programs.interpreter("-O", "-c", PROGRAM)
    assert done.returncode == 1
    assert "A callback cannot be checked: Python was started with -O or PYTHONOPTIMIZE" in done.stderr
