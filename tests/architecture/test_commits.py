"""The rule for the subjects of commits: accepted and refused examples."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import commit_subjects
from scripts.commit_subjects import new_subjects, problems


@pytest.mark.parametrize(
    "subject", ["core: refuse negative steps", "data, core: load a batch at once", "callbacks/progress: draw less"]
)
def test_a_good_subject_passes(subject: str) -> None:
    assert not list(problems(subject))


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("core: " + "x" * 67, "has 73 characters, at most 72"),
        ("Refuse negative steps", "`area: `"),
        ("Core: refuse negative steps", "in lower case"),
        ("core: refuse negative steps.", "without a full stop"),
        ("core: refused negative steps", "imperative"),
        ("core: adds a step", "imperative"),
    ],
)
def test_a_bad_subject_is_refused(subject: str, why: str) -> None:
    assert any(why in problem for problem in problems(subject))


@pytest.mark.processes
def test_only_commits_after_the_rule_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "An old subject.")
    monkeypatch.setattr(commit_subjects, "BEFORE_THE_RULE", git("rev-parse", "HEAD"))
    git("commit", "--quiet", "--allow-empty", "--message", "core: new")

    assert new_subjects(tmp_path) == ["core: new"]

    monkeypatch.setattr(commit_subjects, "BEFORE_THE_RULE", "f" * 40)
    assert new_subjects(tmp_path) == []
