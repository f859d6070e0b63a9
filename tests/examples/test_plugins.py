"""The example packages are found by their entry points, and pass their own tests."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from lightlib import registry
from tests.processes import programs, warm

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins"
OURS = ("lightlib-branches", "lightlib-jsonl-logger", "lightlib-pretend")
GROUP = re.compile(r'^\[project\.entry-points\."(lightlib\.\w+)"\]\n((?:.+\n)*)', re.MULTILINE)
POINT = re.compile(r'^(\w+) = "(.+)"$', re.MULTILINE)


def points(package: str) -> list[tuple[str, str, str]]:
    """Return group, name and value of each entry point that a package declares."""
    text = (PLUGINS / package / "pyproject.toml").read_text(encoding="utf-8")
    return [(group, *point) for group, lines in GROUP.findall(text) for point in POINT.findall(lines)]


def install(package: str, folder: Path) -> Path:
    """Copy a package into `folder`, with the metadata that pip would write, and return its copy."""
    copy = folder / package
    shutil.copytree(PLUGINS / package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = copy / f"{package.replace('-', '_')}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    declared = "".join(f"[{group}]\n{name} = {value}\n" for group, name, value in points(package))
    (metadata / "entry_points.txt").write_text(declared)
    return copy


@pytest.mark.parametrize("package", [name for name in OURS if name != "lightlib-branches"])
def test_its_names_are_found(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(package, tmp_path)))
    declared = points(package)
    assert declared
    try:
        for group, name, value in declared:
            kind = registry.get(group.removeprefix("lightlib."), name)
            assert f"{kind.__module__}:{kind.__qualname__}" == value
    finally:
        sys.modules.pop(package.replace("-", "_"), None)


@pytest.mark.processes
@pytest.mark.parametrize("package", OURS)
def test_it_passes_its_own_tests(package: str, tmp_path: Path) -> None:
    copy = install(package, tmp_path)
    variables = programs.environment(PYTHONPATH=f"{warm.ROOT}{os.pathsep}{copy}")
    done = programs.run("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", env=variables, cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("package", OURS)
def test_it_is_a_package_of_its_own(package: str) -> None:
    """Nothing in lightlib names it, and it states how to install and test it."""
    module = package.replace("-", "_")
    lightlib = Path(registry.__file__).parent
    assert not [path for path in lightlib.rglob("*.py") if module in path.read_text(encoding="utf-8")]
    assert (PLUGINS / package / module / "__init__.py").is_file()
    assert "pip install -e ." in (PLUGINS / package / "README.md").read_text(encoding="utf-8")
