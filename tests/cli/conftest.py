"""The command line of pytest is not that of the programs which these tests are."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def program(monkeypatch):
    """Let `sys.argv` be that of a program which was called without arguments."""
    monkeypatch.setattr(sys, "argv", ["main.py"])
