"""The files for a forge: workflows call targets that exist, for the Pythons of the metadata."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.architecture.rules import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_command_of_a_workflow_exists(path: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for command in commands:
        word, *arguments = command.split()
        assert word in ("make", "python") or (ROOT / word).is_file(), command
        assert word != "make" or arguments[0] in targets, command
    assert all("timeout-minutes" in job for job in jobs.values())


def test_the_pythons_are_those_of_the_metadata() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [name.rpartition(" ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["linux"]["strategy"]["matrix"]["python"] == versions


def test_the_oldest_torch_is_that_of_the_range() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = next(text.removeprefix("torch>=").partition(",")[0] for text in dependencies if "torch>=" in text[:7])
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["torch"]["strategy"]["matrix"]["torch"] == [f"torch=={oldest}.0", "torch"]


@pytest.mark.parametrize("name", ["CITATION.cff", ".github/dependabot.yml", ".github/ISSUE_TEMPLATE/bug.yml"])
def test_a_file_is_yaml(name: str) -> None:
    assert yaml.safe_load((ROOT / name).read_text())


def test_the_description_is_the_first_line_of_the_readme() -> None:
    description = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    assert (ROOT / "README.md").read_text().split("\n\n")[1] == f"**{description}**"
