"""The pictures of the command line: there, without traces of a machine, and up to date."""

from __future__ import annotations

import os
import re

import pytest

from scripts import screenshots

PICTURES = {name: screenshots.IMAGES / f"cli-{name}.svg" for name in screenshots.PICTURES}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_loads_nothing_and_tells_nothing_of_a_machine(name):
    drawn = PICTURES[name].read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"\s<)]+", drawn)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"/(?:tmp|home|root|Users|var)/", drawn) == []


def test_every_picture_is_one_of_the_table():
    assert {path.name for path in screenshots.IMAGES.glob("cli-*.svg")} == {path.name for path in PICTURES.values()}


@pytest.mark.processes
def test_the_folder_is_shown_as_project_and_the_colours_are_kept():
    picture = screenshots.Picture(
        "python3 -c print('\\033[1m'+__import__('os').getcwd(),__import__('os').get_terminal_size().columns)",
        files={"a.yaml": "b: 1\n"},
        show=("a.yaml",),
    )
    lines = screenshots.shown(picture)
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in (*lines[:3], lines[-1])] == [
        "$ cat a.yaml",
        "b: 1",
        "",
        "~/project 100",
    ]
    assert lines[-1].startswith("\x1b[1m")


@pytest.mark.processes
def test_a_picture_that_is_out_of_date_is_told(tmp_path, monkeypatch, capfd):
    assert screenshots.main(["--check", "--only", "help"]) == 0
    monkeypatch.setattr(screenshots, "IMAGES", tmp_path)
    assert screenshots.main(["--check", "--only", "help"]) == 1
    assert capfd.readouterr().err == ("Out of date in docs/images: run `python scripts/screenshots.py --only help`\n")


@pytest.mark.processes
def test_what_an_older_shell_sets_does_not_show(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("LIGHTLIB_MAX_EPOCHS", "7")
    shown = "\n".join(screenshots.shown(screenshots.Picture("env")))
    assert "NO_COLOR" not in shown
    assert "LIGHTLIB" not in shown
    assert os.environ["NO_COLOR"] == "1"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_pictures_are_up_to_date():
    assert screenshots.main(["--check"]) == 0
