"""The figures of the tree are within their limits, and lines are counted as they should be."""

from __future__ import annotations

from pathlib import Path

from scripts.figures import table, working_lines


def test_no_figure_is_beyond_its_limit() -> None:
    beyond = [f"{name}: {value:,}, at most {limit:,}" for name, value, limit in table() if value > limit]
    assert not beyond, (
        "the tree grew beyond a limit of scripts/figures.py; make it smaller, or raise the limit in the commit that "
        f"needs more, with the reason in its body: {'; '.join(beyond)}"
    )


def test_lines_that_do_something(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text('"""A file.\n\nMore.\n"""\n\nimport os  # why\n\n# a comment\n\n\ndef f(\n    a: int,\n) -> None:\n'
                    '    """Do it."""\n    print(\n        a,\n    )\n    "no docstring"\n')  # fmt: skip
    assert working_lines(file) == 8
