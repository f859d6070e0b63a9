"""The page of a report: header, tables and figures as one self-contained HTML file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lightlib import optional
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.report import figures, tables
from lightlib.experiment.report.facts import Facts, facts_of
from lightlib.experiment.report.pages import as_text, page, refuse_foreign, write
from lightlib.experiment.work.folder import ExperimentFolder

MARK = '<meta name="generator" content="lightlib experiment report">'  # identifies our own pages
NAME = "report.html"
_FIX = "-o FILE for another path, or move that file away."
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c1c22; max-width: 1280px; margin: 0 auto; padding: 16px }
h1 { font-size: 26px; margin: 8px 0 } h2 { font-size: 19px; margin: 32px 0 8px }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 12px 0 }
dt { color: #62626a } dd { margin: 0; overflow-wrap: anywhere }
.wide { overflow-x: auto } .note { color: #62626a }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap }
th, td { padding: 4px 12px 4px 0; text-align: left; border-bottom: 1px solid #e4e4e8 }
td.number, th.number { text-align: right; padding: 4px 12px }
tr.best td { background: #fdf0e6; font-weight: 600 }
th button { font: inherit; font-weight: 600; border: 0; background: none; padding: 0; cursor: pointer; color: inherit }
th[aria-sort] button::after { content: " ▲" } th[aria-sort=descending] button::after { content: " ▼" }
.several { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: 8px }
.several > div { min-width: 0; overflow: hidden }
pre { background: #f5f5f7; padding: 10px; overflow-x: auto; font-size: 13px }
"""


def write_report(
    folder: ExperimentFolder,
    config: ExperimentConfig,
    ledger: Ledger,
    target: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the page of an experiment, and return its path.

    Args:
        folder: Of the experiment.
        config: It, with its seed.
        ledger: Of the experiment.
        target: The file; an earlier page is replaced. Default: ``report.html`` in the folder.

    Raises:
        MisconfigurationException: plotly cannot be imported, or `target` is a file of something else.
        LightlibError: The file cannot be written.
    """
    path = folder.path / NAME if target is None else Path(target)
    refuse_foreign(path, MARK, "lightlib experiment report", _FIX)
    optional.load("plotly", "`lightlib experiment report`")
    text = draw_page(facts_of(folder, config, ledger), folder)
    write(path, text.encode(errors="backslashreplace"), "-o FILE")
    return path


def draw_page(facts: Facts, folder: ExperimentFolder) -> str:
    """Return the page, which needs no network."""
    from plotly.offline import get_plotlyjs  # optional: plotly

    name = str(facts.config.masked()["name"])
    sections = "\n".join(_sections(facts))
    top = f"<h1>{as_text(name)}</h1>\n{tables.header(facts, folder.path)}"
    body = f"{top}\n<script>{get_plotlyjs()}</script>\n{sections}\n<script>{tables.SORT}</script>"
    return page(f"{name}: report", MARK, body, _STYLE)


def _sections(facts: Facts) -> Iterator[str]:
    metric = as_text(facts.results.metric)
    yield _section("Trials", tables.trials(facts) if facts.rows else _note("There is none yet."))
    front = _drawn(figures.front(facts), "front")
    if front:
        about = "In every metric no trial is as good as one of the front, and better in one."
        yield _section("Front", f"{front}{_note(about)}")
    yield _section("Curves", _drawn(figures.curves(facts), "curves") or _note(f"No trial has reported {metric} yet."))
    for title, name, figure in (
        ("History", "history", figures.history(facts)),
        ("Hyperparameters together", "parallel", figures.parallel(facts)),
    ):
        if figure is not None:
            note = _note("A darker line has a better metric.") if name == "parallel" else ""
            yield _section(title, f"{_drawn(figure, name)}{note}")
    slices = [_drawn(figure, f"slice-{number}") for number, figure in enumerate(figures.slices(facts))]
    if slices:
        yield _section("Hyperparameters one by one", f'<div class="several">{"".join(slices)}</div>')
    if facts.axes:
        missing = facts.importances if isinstance(facts.importances, str) else ""
        about = f"How much of the variance of {metric} over completed trials each one explains (fANOVA of Optuna)."
        drawn = _drawn(figures.importances(facts), "importances")
        yield _section("Importances of hyperparameters", _note(missing) if missing else f"{drawn}{_note(about)}")
    if facts.rungs:
        yield _section("Rungs", tables.rungs(facts))
    gantt = _drawn(figures.gantt(facts), "gantt")
    if gantt:
        yield _section("Attempts by worker", gantt)
    if facts.failed:
        yield _section("Failures", tables.failures(facts))


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>"


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def _drawn(figure: figures.Figure | None, name: str) -> str:
    """Return a figure as HTML with its own script; empty for None."""
    from plotly.graph_objects import Figure  # optional: plotly

    if figure is None:
        return ""
    config = {"displaylogo": False, "responsive": True, "displayModeBar": name == "curves"}
    drawn = Figure(figure).to_html(config, full_html=False, include_plotlyjs=False, div_id=name, validate=False)
    least = 110 * len(figure["layout"].get("shapes", ()))  # pixels, below which the axes overlap
    return f'<div class="wide"><div style="min-width: {least}px">{drawn}</div></div>' if least else str(drawn)
