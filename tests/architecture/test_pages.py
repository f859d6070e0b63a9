"""The form of the pages: Markdown without words of reStructuredText, headings, and tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.rules import ROOT

FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*\n?", re.DOTALL | re.MULTILINE)
FOLDERS = ("benchmarks", "changes", "docs", "examples", "lightlib", "lightlib_lightning", "packaging", "tests")
MAX_LINES_OF_MAP = 250
TOPS = (ROOT, ROOT / "lightlib")


def pages() -> list[Path]:
    """Return all pages of the repository, the notes of changes among them."""
    found = [*ROOT.glob("*.md"), *(path for top in FOLDERS for path in (ROOT / top).rglob("*.md"))]
    return sorted(path for path in found if ".venv" not in path.parts)


def problems(text: str) -> list[str]:
    """Return the mistakes in the form of a page."""
    found = [f"an open block of code: {line}" for line in unclosed(text)]
    text = FENCE.sub("\n", text)
    lines = text.split("\n")
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if re.match(r"#{1,6} ", line) and ((before.strip() and "<!--" not in before) or after.strip()):
            found.append(f"a heading without empty lines around it: {line}")
        if re.search(r"(?<!`)``(?!`)[^`]+``(?!`)", line):
            found.append(f"two backticks where Markdown has one: {line}")
        if re.search(r":(class|func|meth|mod|attr|ref|doc):`", line):
            found.append(f"a role of reStructuredText: {line}")
        if re.match(r"\|", line) and before.strip() and not re.match(r"\||<!--", before):
            found.append(f"a table without an empty line before it: {line}")
    return found


def unclosed(text: str) -> list[str]:
    """Return the last fence of a page if their number is odd."""
    fences: list[str] = re.findall(r"^ *```.*$", text, re.MULTILINE)
    return fences[-1:] if len(fences) % 2 else []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("# A\n\nText.\n\n## B\n\nMore.\n", 0),
        ("Text.\n## B\n\nMore.\n", 1),
        ("## B\nMore.\n", 1),
        ("Write ``Trainer()``.\n", 1),
        ("Write `Trainer()`, or `` `a` ``.\n", 0),
        ("```python\n# comment\nx = ``\n```\n", 0),
        ("See :class:`Trainer`.\n", 1),
        ("A table:\n| a |\n|---|\n", 1),
        ("```python\nx = 1\n", 1),
    ],
)
def test_what_is_wrong_is_found(text: str, number: int) -> None:
    assert len(problems(text)) == number


def linked(page: Path) -> set[str]:
    """Return the paths that a page links to, from the root of the repository."""
    places = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    return {(page.parent / place).resolve().relative_to(ROOT).as_posix() for place in places}


def test_the_start_page_leads_to_every_page() -> None:
    index = ROOT / "docs/index.md"
    assert "docs/index.md" in linked(ROOT / "README.md")
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md")]
    found = {path.relative_to(ROOT).as_posix() for path in files}
    assert sorted(found - linked(index) - {"docs/index.md"}) == []


def test_the_page_of_examples_leads_to_every_one() -> None:
    page = ROOT / "examples/README.md"
    found = {path.relative_to(ROOT).as_posix() for path in page.parent.iterdir() if path.name[0] not in "._"}
    assert sorted(found - linked(page) - {"examples/README.md"}) == []


class TestTheMapOfTheCode:
    """A newcomer finds a folder in docs/architecture.md within a minute."""

    text = (ROOT / "docs/architecture.md").read_text("utf-8")

    def test_it_is_short(self) -> None:
        lines = len(self.text.splitlines())
        assert lines <= MAX_LINES_OF_MAP, (
            f"docs/architecture.md has {lines} lines, and at most {MAX_LINES_OF_MAP} are allowed: "
            "move details of one folder to the docstring of the file that has them"
        )

    def test_the_picture_is_first(self) -> None:
        assert re.findall(r"^## (.*)", self.text, re.MULTILINE)[0] == "The picture"

    def test_its_paths_exist(self) -> None:
        picture, rest = self.text.partition("## The picture")[2].split("## Where is what")
        paths = set(re.findall(r"(?:\w+/)+(?:\w+\.py)?", picture))
        paths |= set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", rest))
        assert "callbacks/checkpoint/" in paths
        assert sorted(path for path in paths if not any((top / path).exists() for top in TOPS)) == []

    def test_each_folder_of_the_package_has_its_place(self) -> None:
        rooms = self.text.partition("## Where is what")[2].partition("\n\nWhen")[0]
        folders = {path.parent.name for path in (ROOT / "lightlib").glob("*/__init__.py")}
        assert sorted(name for name in folders if f"`{name}/" not in rooms) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_markdown(page: Path) -> None:
    assert problems(page.read_text("utf-8")) == []


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    assert len(re.findall(r"(?<!!)\[[^\]]*\]\((?!#)[^)]*\)", text.replace("\n", " "))) <= 12  # links to other pages
