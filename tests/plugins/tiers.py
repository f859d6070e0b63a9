"""Pytest plugin of the tiers: a test that starts a process or opens a port must be marked `processes`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestItem, DoctestModule

_TESTS = Path(__file__).parents[1]
_EVENTS = {"os.fork", "os.forkpty", "os.posix_spawn", "socket.bind", "subprocess.Popen"}
# Doctests cannot carry a mark; these start processes.
_DOCTESTS = {
    "lightlib.launch.environment.environment.HeldPort", "lightlib.launch.start.spawn.launch_function",
    "lightlib.launch.start.subprocess.SubprocessLauncher",
}  # fmt: skip
# Programs started once per process, by the first test that needs them: by jsonargparse, and by `platform`.
_ONCE_PER_PROCESS = ("print(json.dumps(sys.path))", "'uname', '-p'")
_seen: list[str] = []
# Those of a wider scope than a function's that have started a process: their names, and where they are defined.
_fixtures: set[tuple[str, str]] = set()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[None]:
    """Collect doctests only in test files that have any: the search takes as long as collecting tests."""
    collectors = yield
    is_test = file_path.suffix == ".py" and file_path.is_relative_to(_TESTS)
    if is_test and ">>> " not in file_path.read_text(encoding="utf-8"):
        return [one for one in collectors if not isinstance(one, DoctestModule)]
    return collectors


def pytest_configure() -> None:
    """Record every process and port from now on."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _EVENTS or event not in _EVENTS:  # when Python ends it is None
        return
    if event == "subprocess.Popen" and any(one in str(arguments[1]) for one in _ONCE_PER_PROCESS):
        return
    if not _while_importing():
        _seen.append(event)


def _while_importing() -> bool:
    """Whether a module is being imported: the first test that imports it does this work for all."""
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the doctests, and put tests with processes first, so that only short ones remain at the end."""
    for item in items:
        if isinstance(item, DoctestItem) and item.name in _DOCTESTS:
            item.add_marker(pytest.mark.processes)
    items.sort(key=lambda item: item.get_closest_marker("processes") is None)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Remember fixtures that start processes for several tests."""
    before = len(_seen)
    try:
        return (yield)
    finally:
        if len(_seen) > before and fixturedef.scope != "function":
            _fixtures.add((fixturedef.argname, fixturedef.baseid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Begin to count for this test."""
    _seen.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the fast tier that has started a process or opened a port."""
    result = yield
    info = getattr(item, "_fixtureinfo", None)  # pytest has no public way to the fixtures of a test
    used = [] if info is None else [one for several in info.name2fixturedefs.values() for one in several]
    shared = [one.argname for one in used if (one.argname, one.baseid) in _fixtures]
    marked = any(item.get_closest_marker(name) for name in ("processes", "slow"))
    if (_seen or shared) and not marked:
        what = f"used the fixture {shared.pop()!r}, which starts processes" if shared else f"caused {_seen[0]!r}"
        pytest.fail(f"the test {what}, so it is none of `make test-fast`. Mark it: @pytest.mark.processes", False)
    return result
