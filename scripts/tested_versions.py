"""Runs tests with the torch and the Python of an environment, and writes the table of README.md.

python scripts/tested_versions.py run       run the tests here, keep the counts in docs/tested.json, write the table
python scripts/tested_versions.py --check   fail if README has another table

For another torch, make an environment with it first: `make TORCH=torch==2.10.0 .venv/.test`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
DATA, PAGE = ROOT / "docs" / "tested.json", ROOT / "README.md"
START, END = "<!-- tested: written by scripts/tested_versions.py -->", "<!-- end of tested -->"
# Without the tests of pages and of the form of the code, which are the same with every torch.
FAST = ("-m", "not slow and not processes", "--ignore=tests/architecture", "--ignore=tests/docs")
# One test of each way in which lightlib uses several processes.
PROCESSES = (
    "tests/distributed/test_numbers.py::test_losses_are_weighted_over_processes_and_batches[ddp-2]",
    "tests/distributed/test_numbers.py::test_losses_are_weighted_over_processes_and_batches[fsdp-2]",
    "tests/distributed/test_numbers.py::test_losses_are_weighted_over_processes_and_batches[tensor-1]",
    "tests/distributed/test_numbers.py::test_losses_are_weighted_over_processes_and_batches[pipeline-1]",
    "tests/distributed/test_pipeline.py::test_all_schedules_train_an_unchanged_decoder_to_the_numbers_of_one_process",
    "tests/distributed/test_directories.py::test_parts_are_written_while_training_goes_on",
    "tests/distributed/test_evaluation.py::test_numbers_are_counted_by_hand[ddp-7]",
    "tests/distributed/test_several.py::test_all_verbs_again_and_a_second_trainer",
    "tests/distributed/test_user_state.py::test_each_process_gets_its_own_state_back[fsdp]",
    "tests/distributed/test_weight_averaging.py::test_a_resumed_run_ends_with_the_same_bits[ddp-file]",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", nargs="?", choices=["run"], help="run the tests in this environment")
    parser.add_argument("--check", action="store_true", help="fail if README has another table")
    options, pytest_options = parser.parse_known_args(arguments)
    if options.command == "run":
        row = run_here(pytest_options)
        rows = [other for other in read() if key(other) != key(row)]
        DATA.write_text(json.dumps(sorted([*rows, row], key=order), indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
        return int(row["fast"]["failed"] + row["processes"]["failed"] > 0)
    text = PAGE.read_text(encoding="utf-8")
    if text != with_table(text, read()):
        print("README.md has another table than docs/tested.json: run scripts/tested_versions.py run", file=sys.stderr)
        return 1
    return 0


def read() -> list[dict[str, Any]]:
    """Return the rows of docs/tested.json."""
    rows: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
    return rows


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the environment of a row: a later run in it replaces the row."""
    return row["torch"], row["python"], row["system"]


def order(row: dict[str, Any]) -> tuple[Version, Version, str]:
    """Return the key by which rows are sorted."""
    return Version(row["torch"]), Version(row["python"]), row["system"]


def run_here(options: Sequence[str]) -> dict[str, Any]:
    """Run the tests in this environment and return the row of the result.

    Args:
        options: Further arguments for pytest.
    """
    return {
        "torch": Version(metadata.version("torch")).public,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "system": f"{platform.system()}, CPU",
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "fast": counts([*FAST, *options]),
        "processes": counts(["-m", "", *options, *PROCESSES]),
    }


def counts(arguments: Sequence[str]) -> dict[str, int]:
    """Run pytest and return how many tests passed, failed and were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        subprocess.run(command, cwd=ROOT, check=False)
        suite = next(ElementTree.parse(report).iter("testsuite")).attrib  # noqa: S314  written by this run
    number = {name: int(suite[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    return {"passed": number["tests"] - failed - number["skipped"], "failed": failed, "skipped": number["skipped"]}


def with_table(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the text of README with the table of these rows between its two marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise SystemExit(f"README.md needs a line `{START}` and, after it, a line `{END}`.")
    lines = [
        "| torch | Python | on | tests without processes | tests with processes | run on |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        results = [result(row[kind]) for kind in ("fast", "processes")]
        lines.append(f"| {' | '.join([row['torch'], row['python'], row['system'], *results, row['date']])} |")
    return f"{before}{start}\n\n" + "\n".join(lines) + f"\n\n{end}{after}"


def result(number: dict[str, int]) -> str:
    """Return the counts of a run of tests as words."""
    words = [f"{number['passed']:,} passed"]
    return ", ".join(words + [f"{number[name]} {name}" for name in ("failed", "skipped") if number[name]])


if __name__ == "__main__":
    sys.exit(main())
