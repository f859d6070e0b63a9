"""Tests of the glossary check (tests/architecture/words.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.words import ROOT, findings

PLACES = (
    "lightlib", "lightlib_lightning", "tests", "scripts", "examples", "benchmarks", "docs", "changes", "packaging",
    *(page.name for page in sorted(ROOT.glob("*.md"))),
)  # fmt: skip

PYTHON = '''"""{first}

{more}
"""

def f(value):
    # {comment}
    return "{message}" + value
'''


def words_in(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text, encoding="utf-8")
    return [(finding.line, finding.word) for finding in findings([path], path.parent)]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, []),
        ({"more": "Begins anew."}, [(3, "anew")]),
        ({"comment": "the whole batch"}, [(7, "whole")]),
        ({"message": "the run goes on"}, [(8, "goes on")]),
        ({"first": "What a run needs."}, [(1, "What")]),
        ({"more": "What a run needs."}, []),  # only a first line must not begin so
        ({"comment": "a whole number of steps, and `the whole` in code"}, []),
    ],
)
def test_words_are_found_in_docstrings_comments_and_messages(
    tmp_path: Path, texts: dict[str, str], expected: list[tuple[int, str]]
) -> None:
    plain = {"first": "A file.", "more": "More.", "comment": "a comment", "message": "a message"}
    assert words_in(tmp_path / "file.py", PYTHON.format(**{**plain, **texts})) == expected


def test_names_and_single_words_are_not_prose(tmp_path: Path) -> None:
    assert words_in(tmp_path / "file.py", 'whole = tell(mode="anew")\n') == []


def test_names_of_functions_and_classes_of_the_packages_follow_the_glossary(tmp_path: Path) -> None:
    (tmp_path / "lightlib").mkdir()
    text = 'def _say_all(whole):\n    """Log all."""\n\nclass TellRank:\n    def tell(self): ...\n'
    (tmp_path / "lightlib/file.py").write_text(text, encoding="utf-8")
    found = [(finding.line, finding.word) for finding in findings([tmp_path], tmp_path)]
    assert sorted(found) == [(1, "say"), (4, "Tell")]


def test_code_in_a_page_is_not_prose(tmp_path: Path) -> None:
    assert words_in(tmp_path / "page.md", "Use `whole`.\n\n```python\nmend(whole)\n```\n\nMend it.\n") == [(7, "Mend")]


def test_a_finding_names_the_place_and_the_replacement(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("It is said.\n", encoding="utf-8")
    (finding,) = findings([tmp_path], tmp_path)
    assert str(finding) == "page.md:1: “said” → log, warn, report, print, state: It is said."


@pytest.mark.parametrize("place", PLACES)
def test_the_prose_of_the_project_follows_the_glossary(place: str) -> None:
    examples = Path(__file__).relative_to(ROOT).as_posix()  # the texts above use these words on purpose
    found = [str(finding) for finding in findings([ROOT / place]) if finding.file != examples]
    assert not found, "words of the glossary (CONTRIBUTING.md, Plain English):\n" + "\n".join(found)
