"""The gallery: each example has commands of its first lines, an output, code and a small picture."""

from __future__ import annotations

import ast
import re

import pytest

from scripts import pictures_of_the_gallery as gallery
from scripts import site_pages

PAGE = gallery.PAGE.read_text(encoding="utf-8")
SECTIONS = dict(zip(gallery.runs(PAGE), re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:], strict=False))
FIRST_PICTURE = re.compile(r"!\[[^]]+\]\(images/([^)]+)\)")


def test_the_script_runs_each_example_of_the_page():
    assert len(SECTIONS) >= 8
    assert list(SECTIONS) == list(gallery.PICTURES)
    assert PAGE.count("```bash") == len(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_commands_are_those_of_the_first_lines_of_the_example(name):
    files = re.findall(r"^\[[^]]+\]\(\.\./(examples/[^)]+)\)$", SECTIONS[name], flags=re.MULTILINE)
    assert all((gallery.ROOT / file).is_file() for file in files)
    programs = [(gallery.ROOT / file).read_text(encoding="utf-8") for file in files if file.endswith(".py")]
    first_lines = "".join(ast.get_docstring(ast.parse(program), clean=False) or "" for program in programs)
    commands = [line for line in gallery.runs(PAGE)[name]["commands"].splitlines() if not line.startswith("cd ")]
    assert {command for command in commands if f"    {command}\n" not in first_lines} == set()


@pytest.mark.parametrize("name", SECTIONS)
def test_an_output_is_there_and_has_no_colours(name):
    output = gallery.runs(PAGE)[name]["output"]
    assert output.strip()
    assert len(output.splitlines()) == int(gallery.runs(PAGE)[name]["lines"])
    assert "\x1b" not in output


@pytest.mark.parametrize("name", SECTIONS)
def test_a_picture_is_small(name):
    picture = gallery.PAGE.parent / "images" / FIRST_PICTURE.findall(SECTIONS[name])[0]
    content = picture.read_bytes()
    assert len(content) <= gallery.MOST_BYTES
    if picture.suffix == ".png":
        assert content.startswith(b"\x89PNG")
        assert int.from_bytes(content[16:20], "big") <= gallery.MOST_PIXELS
    else:
        assert re.findall(rb"/(?:tmp|home|root|Users)/|@font-face", content) == []


def test_each_picture_is_on_the_page():
    drawn = {f"gallery/{path.name}" for path in gallery.IMAGES.iterdir()}
    assert drawn - set(FIRST_PICTURE.findall(PAGE)) == set()


def test_a_new_output_replaces_only_that_of_its_example():
    old = gallery.runs(PAGE)
    printed = [*map(str, range(100)), "bash: line 2:  17 Killed    python x.py", "\x1b[1mlast\x1b[0m  "]
    page = gallery.with_output(PAGE, "gan", printed)
    new = gallery.runs(page)
    assert new["gan"]["output"].splitlines() == [*map(str, range(100)), "Killed", "last"][-int(old["gan"]["lines"]) :]
    assert page.replace(new["gan"]["output"], old["gan"]["output"]) == PAGE


def test_the_site_shows_the_code_folded():
    page = "See [a](../examples/a.py).\n\n[cli/b.yaml](../examples/cli/b.yaml)\n"
    assert site_pages.with_code(page) == (
        "See [a](../examples/a.py).\n\n<details>\n<summary>cli/b.yaml</summary>\n\n"
        "```{literalinclude} ../examples/cli/b.yaml\n:language: yaml\n```\n\n</details>\n"
    )
