"""The repository holds only files that people wrote, none that a run, a test or a tool left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.architecture.rules import ROOT

LEFT_BY_RUNS = {".ckpt", ".pt", ".log", ".prof", ".pid", ".lock", ".pyc", ".tmp"}
# Folders of tests that the package lacks, with their subject; those below them follow.
OF_TESTS_ALONE = {
    "architecture": "the rules of the house", "benchmarks": "the folder benchmarks", "campaigns": "docs/campaigns.md",
    "compat/clients": "packages built on Lightning", "compat/fabric": "Lightning's Fabric",
    "compat/names": "names of Lightning", "compat/plugins/programs": "programs",
    "compat/programs": "programs for Lightning", "compatibility": "Lightning's API, from outside",
    "distributed": "runs in several processes", "docs": "the pages", "examples": "the folder examples",
    "gpu": "docs/gpu.md",
    "mistakes": "messages of common mistakes", "packaging": "the folder packaging", "plugins": "plugins of pytest",
    "processes": "ranks and programs for tests", "runs": "modules and data for tests", "typing": "types for users",
}  # fmt: skip
FOLDERS_OF_RUNS = {"checkpoints", "lightning_logs", "mlruns", "wandb", "__pycache__"}


@pytest.mark.processes
def test_git_holds_no_output_of_a_run() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git repository (a source archive)")
    # Stubs are folders with the names of Lightning's modules; a test in tests/typing knows every file of them.
    files = [Path(name) for name in listed.stdout.splitlines() if not name.startswith("lightlib-stubs/")]
    left = [str(path) for path in files if path.suffix in LEFT_BY_RUNS or FOLDERS_OF_RUNS & set(path.parts[:-1])]
    assert not left, f"these are outputs of a run: git rm {' '.join(left)}"


def folders(top: str) -> set[str]:
    """Return the folders below one that have Python files, by their paths."""
    return {path.parent.relative_to(ROOT / top).as_posix() for path in (ROOT / top).rglob("*.py")} - {"."}


def folders_of_packages() -> set[str]:
    """Return those of both packages: the tests of lightlib_lightning are in tests/compat."""
    return folders("lightlib") | {"compat", *(f"compat/{name}" for name in folders("lightlib_lightning"))}


def modules_of_packages() -> set[str]:
    """Return the paths of the modules of both packages, without extension: one may have a folder of tests."""
    ours, lightnings = (
        {path.relative_to(ROOT / top).with_suffix("").as_posix() for path in (ROOT / top).rglob("*.py")}
        for top in ("lightlib", "lightlib_lightning")
    )
    return ours | {f"compat/{name}" for name in lightnings}


def test_folders_of_tests_follow_those_of_the_package() -> None:
    ours, tests = folders_of_packages() | modules_of_packages(), folders("tests")
    alone = {name for name in tests - ours if not any(f"{name}/".startswith(f"{one}/") for one in OF_TESTS_ALONE)}
    assert not alone, (
        f"tests/{{{', '.join(sorted(alone))}}}: the package has no such folder; see CONTRIBUTING.md, Tests"
    )
    assert {name for name in OF_TESTS_ALONE if not (ROOT / "tests" / name).is_dir()} == set()


def test_each_folder_of_the_package_has_a_folder_of_tests_or_is_tested_in_the_one_above() -> None:
    tests = folders("tests")
    for name in folders_of_packages():
        above = [name[:end] for end in range(len(name), 0, -1) if end == len(name) or name[end] == "/"]
        assert tests & {*above, name}, f"{name} has no folder of tests"
