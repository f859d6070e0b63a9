"""Pytest plugin that records the seconds of each test and of collection, for scripts/test_times.py."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = "LIGHTLIB_TEST_TIMES"  # names the folder for the notes; without it nothing is noted
_begun = time.time()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _note(name: str, kind: str, wall: float, cpu: float) -> None:
    folder = os.environ.get(FOLDER)
    if folder:
        with Path(folder, f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps({"name": name, "kind": kind, "wall": wall, "cpu": cpu}) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Record the time until collection ends: pytest, torch, lightlib and all test files are imported."""
    if session.items:  # only the workers collect
        _note("collection", "collection", time.time() - _begun, _cpu())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the time of a test, with its fixtures."""
    wall, cpu = time.time(), _cpu()
    try:
        return (yield)
    finally:
        kind = "processes" if item.get_closest_marker("processes") else "in process"
        _note(item.nodeid, kind, time.time() - wall, _cpu() - cpu)
