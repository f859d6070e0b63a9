"""The first file of docs/experiments.md is read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tests.experiment.given import read_text


def test_the_first_file_of_the_page_is_right():
    page = (Path(__file__).parents[4] / "docs/experiments.md").read_text("utf-8")
    assert read_text(page.split("```yaml\n")[1].partition("```")[0]).searcher.max_trials == 16
