"""Replaces the command line of pytest by that of a program, as in tests/cli."""

from __future__ import annotations

from tests.cli.conftest import program

__all__ = ["program"]
