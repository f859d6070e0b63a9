"""The site: pages on shelves, a page and a docstring for each public name, no dead local link."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from lightlib import Trainer, seed_everything
from lightlib.index import INDEX, MODULE
from scripts import site_links, site_pages, site_reference

FILES = [*site_pages.DOCS.glob("*.md"), *site_pages.DOCS.glob("how-to/*.md")]
PAGES = {path.relative_to(site_pages.DOCS).with_suffix("").as_posix() for path in FILES}


def test_each_page_is_on_one_shelf():
    on_shelves = [page for shelf in site_pages.SHELVES.values() for page in shelf]
    assert sorted(on_shelves) == sorted(PAGES - {"index"})


def test_the_tables_of_the_start_page_are_current():
    index = site_pages.INDEX.read_text(encoding="utf-8")
    assert site_pages.with_tables(index) == index, "run `python scripts/site_pages.py --write`"


def test_a_start_page_without_a_shelf_is_refused():
    with pytest.raises(ValueError, match="no heading `## Start`"):
        site_pages.with_tables("# lightlib\n")


def test_the_side_bar_has_each_page_and_decision():
    index = site_pages.site_index(site_pages.INDEX.read_text(encoding="utf-8"), site_reference.OVERVIEWS)
    trees = "\n".join(re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)).splitlines()
    assert set(trees) >= (PAGES - {"index"}) | set(site_reference.OVERVIEWS)
    records = {path.stem for path in (site_pages.DOCS / "decisions").glob("*.md")}
    assert {name for name in records if f"`/decisions/{name}`" in site_reference.decisions_page()} == records
    assert all(site_pages.unsearched(f"decisions/{name}") for name in records)


def test_each_question_shares_a_word_with_the_heading_of_its_answer():
    answers = site_pages.INDEX.read_text(encoding="utf-8").partition("## Answers")[2].partition("## Guides")[0]
    rows = re.findall(r"^\| ([^|]+[?][^|]*) \| (.+) \|$", answers, re.MULTILINE)
    assert len(rows) > 20
    for question, links in rows:
        headings = [
            f"{site_pages.title(page)} {anchor.replace('-', ' ')}"
            for page, anchor in re.findall(r"\]\(([^)#]+)\.md(?:#([^)]+))?\)", links)
        ]
        assert stems(question) & stems(" ".join(headings)), f"the site's search goes by headings: {question} {headings}"


def stems(text: str) -> set[str]:
    """Return the first four letters of the longer words, near to the stems that the site's search compares."""
    return {word[:4] for word in re.findall(r"\w{4,}", text.lower())} - {"does", "what"}


def test_the_search_has_its_order_and_leaves_out_the_last_shelf():
    settings = (site_pages.DOCS / "conf.py").read_text(encoding="utf-8")
    folder, name = re.search(r'^html_search_scorer = str\(DOCS / "(.+)" / "(.+)"\)$', settings, re.MULTILINE).groups()
    assert "var Scorer = " in (site_pages.DOCS / folder / name).read_text(encoding="utf-8")
    assert all(site_pages.unsearched(page) for page in ("architecture", "tree", "parity", "campaigns", "gpu"))
    assert not any(site_pages.unsearched(page) for page in ("checkpoints", "how-to/export", "reference/api"))


def test_each_public_name_has_a_page():
    pages = dict(site_reference.all_pages())
    areas = site_reference.public_names()
    places = site_reference.home_of_each(areas)
    for package, rows in INDEX.items():
        for row in rows:
            if row.file != MODULE:
                home = places[package, row.name]
                assert f"{site_pages.GENERATED}/{home}" in pages
                assert f":doc:`{row.name} <{home}>`" in pages[f"{site_pages.GENERATED}/{package}"]
            else:
                assert f"{site_pages.GENERATED}/{package}.{row.name}" in pages


def test_an_object_with_two_names_has_one_page():
    places = site_reference.home_of_each(site_reference.public_names())
    assert places["lightlib", "Callback"] == places["lightlib.callbacks", "Callback"] == "lightlib.Callback"


def test_no_public_object_lacks_a_docstring(monkeypatch):
    assert site_reference.undocumented() == []
    monkeypatch.setattr(Trainer.fit, "__doc__", None)
    monkeypatch.setattr(seed_everything, "__doc__", "")
    assert set(site_reference.undocumented()) == {"lightlib.Trainer.fit", "lightlib.seed_everything"}


def test_the_reference_has_each_argument_hook_key_and_command():
    pages = dict(site_reference.all_pages())
    arguments = set(Trainer.__init__.__wrapped__.__kwdefaults__)
    assert {name for name in arguments if f"   * - ``{name}``\n" not in pages["reference/trainer-arguments"]} == set()
    assert "* - ``on_train_batch_end``" in pages["reference/hooks"]
    assert "* - ``trainer.max_epochs``" in pages["reference/yaml-keys"]
    assert "\nlightlib checkpoint inspect\n---" in pages["reference/command-line"]


def test_the_texts_for_language_models_have_each_page():
    short = site_pages.llms(site_reference.OVERVIEWS)
    assert {page for page in PAGES - {"index"} if f"(_sources/{page}.md.txt)" not in short} == set()
    full = site_pages.llms_full(site_reference.overview_as_text())
    assert "# Quickstart" in full
    assert "## lightlib.Trainer\n" in full
    assert "# Architecture" not in full


def test_dead_links_are_found(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.html").write_text(
        '<a id="top" href="b/c.html#here">1</a><a href="#top">2</a><a href="b/c.html#gone">3</a><a href="d.html">4</a>'
        '<img src="e.png"><a href="https://example.org/x">5</a><a href="f.txt#x">6</a>'
    )
    (tmp_path / "b" / "c.html").write_text('<p id="here"><a href="../a.html#top">1</a><a href="#none">2</a>')
    (tmp_path / "f.txt").write_text("")
    assert site_links.dead_links(tmp_path) == [
        "a.html: b/c.html#gone", "a.html: d.html", "a.html: e.png", "b/c.html: #none"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("furo") is None, reason="needs the extra docs")
def test_the_site_builds_without_a_warning_and_a_dead_link(tmp_path):
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", site_pages.DOCS, tmp_path]
    done = subprocess.run(build, cwd=site_pages.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert site_links.dead_links(tmp_path) == []
    search = (tmp_path / "searchindex.js").read_text(encoding="utf-8")
    assert "reference/lightlib.Trainer" in search
    assert (tmp_path / "search.html").read_text(encoding="utf-8").count('name="q"') == 2  # one in the side bar
    assert "function rankOfName" in (tmp_path / "_static" / "language_data.js").read_text(encoding="utf-8")
