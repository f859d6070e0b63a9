"""The page of a report: a single file that shows every text as it is and runs its own scripts only."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
import shutil
import subprocess

import pytest

pytest.importorskip("optuna")
pytest.importorskip("plotly")

from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.report import figures
from lightlib.experiment.report.page import MARK, write_report
from lightlib.experiment.report.tables import SORT
from tests.experiment.report.made import Made
from tests.experiment.work.project import Project
from tests.runs.pages import Tags

EVIL = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
LR = {"lr": {"type": "log", "minval": -4, "maxval": 0}}


def page_of(made, **kwargs):
    return write_report(made.folder, made.config, made.ledger, **kwargs).read_text(encoding="utf-8")


def headings(text):
    return re.findall("<h2>(.*?)</h2>", text)


def test_texts_of_users_are_only_text(tmp_path):
    evil = {"type": "categorical", "vals": [EVIL, "b"]}
    searcher = {"name": "random", "metric": EVIL, "max_trials": 3}
    made = Made(tmp_path, {**LR, EVIL: evil}, searcher, description=EVIL, labels=[EVIL])
    for trial in range(3):
        made.add(trial, "completed", {"lr": -1.0 - trial, EVIL: 0}, [(1, 1.0 + trial)], worker=EVIL)
    made.add(3, "failed", {"lr": -3.5, EVIL: 1}, worker="two")
    folder = made.folder.attempt(3, 0)
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text(f"2026-01-02T12:00:00.000Z 0 {EVIL}\n")
    tags = Tags(page_of(made))
    assert "img" not in tags.tags
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert not [value for name, value in tags.attributes if name in ("src", "href")]
    assert tags.texts.count(EVIL) == 4, "description, label, and the headings of metric and hyperparameter"
    escaped = html.escape(EVIL, quote=False)  # plotly reads a part of HTML
    assert figures.curves(made.facts)["layout"]["yaxis"]["title"] == escaped
    assert figures.gantt(made.facts)["layout"]["yaxis"]["ticktext"] == [escaped, "two"]
    assert f"2026-01-02T12:00:00.000Z 0 {EVIL}" in tags.texts


def test_the_policy_has_the_hashes_of_exactly_its_scripts(tmp_path):
    made = Made(tmp_path, LR)
    made.add(0, "completed", {"lr": -1.0}, [(1, 1.0), (2, 0.5)])
    tags = Tags(page_of(made))
    policy = next(value for name, value in tags.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*|unsafe-eval|script-src[^;]*unsafe", policy)
    digests = [hashlib.sha256(script.encode()).digest() for script in tags.scripts]
    assert re.findall(r"'sha256-(.*?)'", policy) == [base64.b64encode(one).decode() for one in digests]
    assert tags.scripts[-1] == SORT


@pytest.mark.parametrize("trials", [0, 1, 300])
def test_any_number_of_trials_gives_a_page(tmp_path, trials):
    made = Made(tmp_path, LR)
    for trial in range(trials):
        made.add(trial, "completed", {"lr": -4 + trial / 100}, [(1, 1.0 + trial % 7), (2, 0.5 + trial % 7)])
    text = page_of(made)
    assert text.count('<tr class="') == trials
    assert ("History" in headings(text)) == bool(trials)
    assert len(Tags(text).texts) > 5


def test_without_a_completed_trial_there_is_a_page(tmp_path):
    made = Made(tmp_path, LR)
    made.add(0, "failed", {"lr": -1.0})
    made.add(1, "completed", {"lr": -2.0}, [(1, math.inf)])
    made.add(2, "waiting", {"lr": -3.0})
    text = page_of(made)
    assert "No trial has reported val_loss yet." in text
    assert "History" not in headings(text)
    assert "there are 0." in text


@pytest.mark.parametrize("hyperparameters", [{"lr": 0.1}, {}])
def test_without_a_search_there_are_no_figures_of_hyperparameters(tmp_path, hyperparameters):
    made = Made(tmp_path, hyperparameters, {"name": "single", "metric": "val_loss"})
    made.add(0, "completed", {}, [(1, 0.5)])
    assert headings(page_of(made)) == ["Trials", "Curves", "History", "Attempts by worker"]


def test_trials_are_sorted_by_metric_and_those_without_are_last(tmp_path):
    made = Made(tmp_path, LR)
    for trial, value in enumerate((2.0, math.inf, 0.5, 1.0)):
        made.add(trial, "completed", {"lr": -1.0 - trial / 2}, [(1, value)])
    found = re.findall(r'<tr class="\w+"><td class="number" data-value="(\d)">', page_of(made))
    assert found == ["2", "3", "0", "1"]


@pytest.mark.parametrize("trials", [0, 1, 8])
def test_several_metrics_have_columns_and_a_front(tmp_path, trials):
    searcher = {"name": "random", "metric": ["loss", "speed"], "smaller_is_better": [True, False], "max_trials": 8}
    made = Made(tmp_path, LR, searcher)
    for trial in range(trials):  # 0 to 3 are a front, 4 to 7 have its losses with less speed
        made.add(trial, "completed", {"lr": -trial / 2}, [(1, trial % 4)], second=[(trial % 4) - (trial > 3)])
    text = page_of(made)
    assert "loss (less is better), speed (more is better)" in text
    assert re.findall(r'<button type="button">(\w+)</button>', text)[3:5] == (["loss", "speed"] if trials else [])
    assert text.count('<tr class="best">') == min(trials, 4)
    assert ("Front" in headings(text)) == bool(trials)
    assert ("<dd>trial 0, 1, 2, 3</dd>" in text) == (trials == 8)
    assert ("variance of loss over completed trials" in text) == (trials == 8)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the script")
@pytest.mark.parametrize(
    ("values", "once", "twice"),
    [(["10", "9", "", "-1.5"], "-1.5,9,10,", "10,9,-1.5,"), (["b", "", "a"], "a,b,", "b,a,")],
)
def test_a_click_on_a_heading_sorts(values, once, twice):
    program = f"""
    const attributes = {{}};
    let click;
    const head = {{ firstElementChild: {{ addEventListener: (_, act) => {{ click = act; }} }},
      getAttribute: (name) => attributes[name], removeAttribute: (name) => {{ delete attributes[name]; }},
      setAttribute: (name, value) => {{ attributes[name] = value; }} }};
    const rows = {values}.map((value) => ({{ cells: [{{ dataset: {{ value }} }}] }}));
    const body = {{ rows, append: (...all) => {{ body.rows = all; }} }};
    const document = {{ querySelectorAll: () => [{{ tHead: {{ rows: [{{ cells: [head] }}] }}, tBodies: [body] }}] }};
    {SORT}
    for (const _ of "12") {{
      click();
      console.log(attributes["aria-sort"] + ":" + body.rows.map((row) => row.cells[0].dataset.value).join(","));
    }}
    """
    printed = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True).stdout.split()
    assert printed == [f"ascending:{once}", f"descending:{twice}"]


def test_only_an_earlier_page_is_replaced(tmp_path):
    made = Made(tmp_path / "search", LR)
    page_of(made)
    assert MARK in page_of(made), "written again"
    foreign = tmp_path / "notes.html"
    foreign.write_text("mine")
    with pytest.raises(MisconfigurationException, match="was not written by `lightlib experiment report`"):
        page_of(made, target=foreign)
    assert foreign.read_text() == "mine"
    with pytest.raises(LightlibError, match="cannot be written"):
        page_of(made, target=foreign / "page.html")


def test_without_plotly_the_error_has_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "plotly", None)
    with pytest.raises(MisconfigurationException, match="needs the package plotly") as error:
        page_of(Made(tmp_path, LR))
    assert "pip install 'plotly>=6'" in str(error.value)


@pytest.mark.processes
def test_the_page_of_a_real_search(tmp_path):
    project = Project(tmp_path, "searcher: {name: random, metric: val_loss, max_trials: 2}")
    project.run()
    assert "Wrote experiments/search/report.html" in project.command("experiment", "report", "search")
    text = (project.experiment / "report.html").read_text(encoding="utf-8")
    best = min(project.trials(), key=lambda one: one.metric)
    assert f"trial {best.number}, val_loss {best.metric:.6g} after {best.step:,} batches" in text
    assert f"trials/{best.number:04d}/attempt-0/checkpoints/" in text
    for one in project.trials():
        values = [message["metrics"]["val_loss"] for message in project.messages(one.number, "validated")]
        assert ",".join(map(repr, values)) in text, "every digit of the curve"
    assert "Wrote page.html" in project.command("experiment", "report", "search", "-o", "page.html")
