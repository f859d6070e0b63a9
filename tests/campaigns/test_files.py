"""A sample of the file campaign: both formats, killed at every so many of their file operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.campaign_files import COMPILERS, compiler
from tests.campaigns.test_kill import campaign


@pytest.mark.skipif(compiler() is None, reason=f"no C compiler: none of {', '.join(COMPILERS)} is there")
@pytest.mark.parametrize("form", ["file", "directory"])
def test_a_run_killed_at_a_file_operation_ends_as_if_nothing_had_been(tmp_path: Path, form: str) -> None:
    name = f"one-workers0-accumulate1-fp32-sync-{form}-epochs1"
    ended = campaign("files", "--only", name, "--epochs", 1, "--every", 29, "--folder", tmp_path / "runs", "--jobs", 1)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ", 0 not equal" in ended.stdout
