"""Any module of the package can be the first one that a program imports."""

from __future__ import annotations

import pytest

from tests.processes import programs

FIRST = (
    "cli",
    "conventions",
    "core.run.loop",
    "errors",
    "lazy",
    "optional",
    "paths",
    "registry",
    "report",
    "translations",
)


@pytest.mark.processes
@pytest.mark.parametrize("module", FIRST)
def test_a_module_is_imported_first_and_asks_no_other_package(module: str) -> None:
    program = f"import sys, lightlib.{module}; print([name for name in sys.modules if name.startswith('lightlib_')])"
    done = programs.interpreter("-c", program)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
