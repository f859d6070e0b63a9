"""A sample of the file campaign: both formats, killed at every so many of their file operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.campaign_files import COMPILERS, compiler
from tests.campaigns.test_kill import campaign


@pytest.mark.processes
@pytest.mark.skipif(compiler() is None, reason=f"no C compiler: none of {', '.join(COMPILERS)} is there")
def test_a_run_killed_at_a_file_operation_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    names = [f"one-workers0-accumulate1-fp32-sync-{form}-epochs1" for form in ("file", "directory")]
    ended = campaign("files", "--only", *names, "--epochs", 1, "--every", 67, "--folder", tmp_path / "runs")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ", 0 not equal" in ended.stdout
