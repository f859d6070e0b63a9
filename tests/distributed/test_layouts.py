"""Saved under any layout and continued under any other, a training ends as if it had not changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.layouts import LAYOUTS, cases


def expect_right(folder: Path, saved: list[str], loaded: list[str], kinds: tuple[str, ...]) -> None:
    found = cases(folder, saved, loaded, kinds)
    assert len(found) == len(saved) * len(loaded) * len(kinds)
    assert [case for case in found if not case.right] == []


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # warnings that sums over the epoch start again
def test_some_layouts_read_some_others(tmp_path: Path):
    expect_right(tmp_path, ["fsdp 2", "pipeline 2"], ["single", "tensor 2"], ("directory",))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # warnings that sums over the epoch start again
def test_shards_are_read_by_another_number_of_processes(tmp_path: Path):
    expect_right(tmp_path, ["fsdp 2", "fsdp offload 2"], ["fsdp 4", "fsdp offload 2"], ("directory",))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_every_layout_reads_every_other(kind: str, tmp_path: Path):
    expect_right(tmp_path, list(LAYOUTS), list(LAYOUTS), (kind,))
