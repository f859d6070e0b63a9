"""Pytest plugin that ends a failed run with the commands that run each failed test alone."""

from __future__ import annotations

import shlex
from typing import Any

_MOST = 20


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print one command per failed test."""
    stats = terminalreporter.stats
    failed = list(dict.fromkeys(report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])))
    if failed:
        terminalreporter.section("to run one of these alone")
        for name in failed[:_MOST]:
            terminalreporter.write_line(f".venv/bin/python -m pytest -m '' {shlex.quote(name)}")
        if len(failed) > _MOST:
            terminalreporter.write_line(f"… and {len(failed) - _MOST} more")
