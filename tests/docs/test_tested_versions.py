"""README has a table of the versions that were tested, with the counts of docs/tested.json."""

from __future__ import annotations

import ast
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from scripts import tested_versions

ROW = {
    "torch": "2.6.0", "python": "3.11", "system": "Linux, CPU", "date": "2026-01-02",
    "fast": {"passed": 12345, "failed": 0, "skipped": 6}, "processes": {"passed": 9, "failed": 1, "skipped": 0},
}  # fmt: skip


def test_readme_has_the_table():
    assert tested_versions.main(["--check"]) == 0


def test_the_ends_of_the_range_of_torch_were_tested():
    (torch,) = (Requirement(line) for line in metadata.requires("lightlib") or () if line.startswith("torch<"))
    tested = sorted(Version(row["torch"]) for row in tested_versions.read())
    (oldest,) = (Version(one.version) for one in torch.specifier if one.operator == ">=")
    assert tested[0].release[:2] == oldest.release[:2]
    assert len({version.release[:2] for version in tested}) >= 2


def test_no_listed_test_failed():
    for row in tested_versions.read():
        assert row["fast"]["failed"] == 0
        assert row["processes"] == {"passed": len(tested_versions.PROCESSES), "failed": 0, "skipped": 0}


def test_a_row_has_its_counts():
    page = f"above\n{tested_versions.START}\nold\n{tested_versions.END}\nbelow\n"
    text = tested_versions.with_table(page, [ROW])
    assert "| 2.6.0 | 3.11 | Linux, CPU | 12,345 passed, 6 skipped | 9 passed, 1 failed | 2026-01-02 |" in text
    assert text.startswith("above\n")
    assert text.endswith("\nbelow\n")
    assert "old" not in text


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(SystemExit, match=r"README\.md needs a line"):
        tested_versions.with_table("text", [ROW])


@pytest.mark.parametrize("name", tested_versions.PROCESSES)
def test_the_tests_with_processes_exist(name):
    file, _, test = name.partition("::")
    tree = ast.parse((tested_versions.ROOT / file).read_text("utf-8"))
    assert test.partition("[")[0] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.processes
def test_a_run_of_pytest_is_counted(tmp_path):
    file = tmp_path / "test_few.py"
    file.write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert False\ndef test_c(): pytest.skip()\n"
        "@pytest.fixture\ndef broken(): raise ValueError\ndef test_d(broken): pass\n"
    )
    found = tested_versions.counts(["-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)])
    assert found == {"passed": 1, "failed": 2, "skipped": 1}
    assert sys.modules.get("test_few") is None
