"""The figures in pages: each is computed here, a rule, or next to the date of its measurement."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable

import pytest

import lightlib
from lightlib.core.run.hooks import HOOKS
from lightlib.loggers import Logger
from tests.architecture import rules
from tests.architecture.rules import ROOT

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NUMBER = rf"\d[\d,]*|{'|'.join(WORDS[2:])}"
THINGS = (
    "tests|files|names|hooks|programs|callbacks|loggers|members|records|pages|kills|events|features|lines|folders|"
    "strategies|modules|examples|configurations|rows|seams|rules|digits"
)
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b|\bat [0-9a-f]{7}\b")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
STATUSES = json.loads((ROOT / "lightlib_lightning/statuses.json").read_text("utf-8"))


def text_of(page: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def lines_of_code(page: str, after: str) -> int:
    """Return the number of lines, without empty ones, of the first block of code after some words."""
    block = re.search(
        r"^```\w+\n(.*?)^```", (ROOT / page).read_text("utf-8").partition(after)[2], re.DOTALL | re.MULTILINE
    )
    assert block is not None
    return len([line for line in block[1].splitlines() if line.strip()])


def hooks_that_lightning_lacks() -> list[str]:
    theirs = {*STATUSES["Callback"], *STATUSES["Module methods"], *STATUSES["DataModule"]}
    return [name for name in HOOKS if name not in theirs]


def programs_of_hooks() -> int:
    return len(importlib.import_module("tests.compat.hook_programs").PROGRAMS)


def programs_that_are_as_lightning() -> int:
    return programs_of_hooks() - len(importlib.import_module("tests.compat.order.test_hook_order").OTHER_PLACE)


def configurations_of_the_kill_campaign() -> int:
    return len(importlib.import_module("tests.campaigns.campaign_kill").ALL)


def seams() -> int:
    table = text_of("docs/architecture.md").partition("| seam |")[2].partition("\n\n")[0]
    return len(table.splitlines()) - 2


# Each figure, by its page and text, with the number that it must be. A callable is called by the test.
FIGURES: dict[tuple[str, str], int | Callable[[], int]] = {
    ("README.md", "at most 300 lines"): rules.MAX_LINES_OF["lightlib/core/run/loop.py"],
    ("README.md", "18 lines of code"): lambda: lines_of_code("README.md", "18 lines of code"),
    ("CONTRIBUTING.md", "at most 600 lines"): rules.MAX_FILE_LINES,
    ("CONTRIBUTING.md", "functions at most 60"): rules.MAX_FUNCTION_LINES,
    ("CONTRIBUTING.md", "at most 300."): rules.MAX_LINES_OF["lightlib/core/run/loop.py"],
    ("CONTRIBUTING.md", "may have 900"): rules.MAX_LINES_OF["lightlib/core/trainer.py"],
    ("CONTRIBUTING.md", "more than 400 lines"): 400,  # advice without a test
    ("CONTRIBUTING.md", "fewer than 20 files"): rules.MAX_FILES + 1,
    ("CONTRIBUTING.md", "at most 100 characters"): rules.MAX_PURPOSE,
    ("CONTRIBUTING.md", "needs four members"): lambda: len(Logger.__abstractmethods__),
    ("docs/architecture.md", "at\n   most 300 lines"): rules.MAX_LINES_OF["lightlib/core/run/loop.py"],
    ("docs/architecture.md", "behind five seams"): seams,
    ("docs/callbacks.md", "and two callbacks with"): 2,  # a pair
    ("docs/campaigns.md", "It runs in 155 configurations"): configurations_of_the_kill_campaign,
    ("docs/compat.md", "in 36 programs"): programs_of_hooks,
    ("docs/compat.md", "In 35 of them"): programs_that_are_as_lightning,
    ("docs/differences.md", "six more hooks"): lambda: len(hooks_that_lightning_lacks()),
    ("docs/lifecycle.md", "Six hooks exist only in lightlib"): lambda: len(hooks_that_lightning_lacks()),
    ("docs/migrating.md", "a project with two files"): 2,  # the page shows both
    ("docs/testing.md", "in five lines"): lambda: lines_of_code("docs/testing.md", "in five lines"),
}  # fmt: skip
# Figures that are compared with the source of a measurement below.
MEASURED = {("README.md", "431 kills")}


@pytest.mark.parametrize(("page", "text"), FIGURES)
def test_a_figure_is_right(page: str, text: str) -> None:
    number = FIGURES[page, text]
    (stated,) = re.findall(rf"\b({NUMBER})\b", text, re.IGNORECASE)
    stated = WORDS.index(stated.lower()) if stated.lower() in WORDS else int(stated.replace(",", ""))
    assert text in text_of(page), f"{page} does not have {text!r}; correct FIGURES"
    assert stated == (number() if callable(number) else number), f"{page}: {text!r}"


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES if page.name != "parity.md"])
def test_every_figure_of_a_page_is_tested_or_dated(page: str) -> None:
    text = text_of(page)
    known = [one for of, one in {*FIGURES, *MEASURED} if of == page]
    for found in re.finditer(rf"\b(?:{NUMBER}) (?:\w+ )?(?:{THINGS})\b", text, re.IGNORECASE):
        paragraph = text[text.rfind("\n\n", 0, found.start()) : text.find("\n\n", found.end())]
        line = text[text.rfind("\n", 0, found.start()) : text.find("\n", found.end())]
        above = text[: found.start()].rpartition("\n\n")[0].rpartition("\n\n")[2]  # of a table
        dated = DATE.search(line if line.startswith("\n|") else paragraph) or (
            line.startswith("\n|") and DATE.search(above)
        )
        assert dated or any(found[0] in one for one in known), (
            f"{page}: {found[0]!r} is not tested. Add it to FIGURES of this file with a function that computes it, "
            "write the date of its measurement next to it, or leave the number out."
        )


def test_kills_of_the_readme_are_those_of_the_campaign() -> None:
    ((equal, kills),) = re.findall(r"(\d+) of (\d+) kills", text_of("README.md"))
    row = re.search(
        r"^\| 20[-\d]+: kill, \d+ conf.* \| (\d+) \| all \| 0 \| 0 \|$", text_of("docs/campaigns.md"), re.MULTILINE
    )
    assert row is not None
    assert equal == kills == row[1]


def measured(what: str, name: str) -> float:
    """Return the median of a row of benchmarks/RESULTS.md."""
    results = (ROOT / "benchmarks/RESULTS.md").read_text("utf-8")
    row = re.search(rf"^\| {re.escape(what)} \| {re.escape(name)} \| (-?[\d.]+)", results, re.MULTILINE)
    assert row is not None, (what, name)
    return float(row[1])


def test_times_of_the_readme_are_those_of_the_benchmarks() -> None:
    text = " ".join(text_of("README.md").split())
    off, realistic = "µs per step over plain: everything off", "µs per step over plain: realistic"
    ours, lightning, theirs = (measured(off, name) for name in ("lightlib", "Lightning", "transformers' Trainer"))
    fast = f"a step costs {ours:.0f} µs on top of a plain PyTorch loop; Lightning costs {lightning:.0f} µs and the"
    assert fast in text
    assert f"Trainer of transformers {theirs:.0f} µs" in text
    logged, slow = (measured(realistic, name) for name in ("lightlib", "Lightning"))
    assert f"it is {logged:.0f} µs; Lightning {round(slow, -1):,.0f} µs" in text
    assert f"takes {measured('s of import over torch', 'lightlib'):.2f} s longer" in text
    assert f"API, 1/{lightning / ours:.0f} of its overhead" in text
    assert f"at 1/{lightning / ours:.0f} of its overhead" in text_of("docs/index.md")


def test_versions_of_the_readme_are_the_pinned_ones() -> None:
    text = text_of("README.md")
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    assert re.findall(r"torch ([\d.]+\d) on Python", text) == re.findall(r"^torch==([\d.]+)$", pins, re.MULTILINE)
    declared = re.search(
        r'^requires-python = ">=([\d.]+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    assert declared is not None
    assert set(re.findall(r"Python ([\d.]+)(?: or newer| to)", text)) == {declared[1]}


def test_additions_to_lightning_are_complete() -> None:
    page = text_of("docs/differences.md").partition("\n## Additions\n")[2]
    arguments = set(inspect.signature(lightlib.Trainer.__init__).parameters) - {*STATUSES["Trainer arguments"], "self"}
    for name in arguments:
        assert f"Trainer({name}=" in page, name
    for name in hooks_that_lightning_lacks():
        assert f"`{name}`" in page, name


def test_records_are_numbered_without_gaps_but_for_those_that_the_first_one_names() -> None:
    numbers = {int(path.name[:4]) for path in (ROOT / "docs/decisions").glob("*.md")}
    first = (ROOT / "docs/decisions/0001-record-decisions.md").read_text("utf-8")
    missing = {int(number) for number in re.findall(r"the number (\d+) was never used", first)}
    assert numbers == set(range(1, max(numbers) + 1)) - missing
    for path in (ROOT / "docs/decisions").glob("*.md"):
        assert path.read_text("utf-8").startswith(f"# {int(path.name[:4])}. "), path.name
