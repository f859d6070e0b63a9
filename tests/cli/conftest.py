"""Replaces the command line of pytest by that of a program."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def program(monkeypatch):
    """Set `sys.argv` to that of a program without arguments."""
    monkeypatch.setattr(sys, "argv", ["main.py"])
