"""Tables of a report as HTML: the facts of the experiment, its trials, its rungs and its failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lightlib.experiment.report.axes import Axis
from lightlib.experiment.report.facts import Facts, Row, is_drawn
from lightlib.experiment.report.pages import as_text
from lightlib.experiment.searchers.scores import score

# Sorts a table by the column of a heading that is clicked, the second time the other way; empty cells are last.
SORT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [row.cells[column].dataset.value, row]);
    const numeric = rows.every(([value]) => !isNaN(value));
    rows.sort(([a], [b]) =>
      a === "" || b === "" ? (a === "") - (b === "") : sign * (numeric ? a - b : a.localeCompare(b)));
    body.append(...rows.map(([, row]) => row));
  }));
}
"""
_LONGEST = 60  # characters of a value


def header(facts: Facts, folder: Path) -> str:
    """Return the settings of the experiment, its state and its best trial.

    Args:
        facts: About it.
        folder: Of the experiment; paths in it are shown from there.
    """
    config, results, best = facts.config, facts.results, facts.results.best
    masked, searched = config.masked(), {axis.key for axis in facts.axes}
    first = facts.rows[0].trial.hparams if facts.rows else {}
    facts_shown: dict[str, Any] = {
        "description": masked.get("description"),
        "labels": ", ".join(map(str, masked.get("labels") or ())),
        "state": results.state,
        "trials": ", ".join(f"{count} {state}" for state, count in sorted(results.states.items())),
        "searcher": config.searcher.name or config.searcher.class_path,
        "metric": ", ".join(
            f"{name} ({'less' if smaller else 'more'} is better)"
            for name, smaller in zip(results.metrics, config.searcher.directions, strict=True)
        ),
        "seed": config.reproducibility.experiment_seed,
        "constants": _listed({key: value for key, value in first.items() if key not in searched}),
    }
    if best is not None and best.metric is not None and best.step is not None:
        values = ", ".join(f"{name} {value:.6g}" for name, value in best.metrics.items())
        facts_shown["best"] = f"trial {best.number}, {values} after {best.step:,} {facts.steps}"
        facts_shown["its hyperparameters"] = _listed(
            {key: best.hparams[key] for key in best.hparams if key in searched}
        )
        facts_shown["its checkpoint"] = facts.checkpoint and _below(facts.checkpoint, folder)
        if len(results.metrics) > 1:
            facts_shown["the front"] = f"trial {', '.join(str(trial.number) for trial in results.front)}"
    facts_shown["as of"] = f"{facts.made:%Y-%m-%d %H:%M:%S}"
    rows = [f"<dt>{key}</dt><dd>{as_text(value)}</dd>" for key, value in facts_shown.items() if value not in ("", None)]
    return f"<dl>{''.join(rows)}</dl>"


class _Column(NamedTuple):
    """A column of trials: its heading, the text of a trial's cell, and the number by which it is sorted."""

    head: str
    text: Callable[[Row], str]
    number: Callable[[Row], float | None] | None = None


def trials(facts: Facts) -> str:
    """Return the trials, the one with the best metric first, and those without one last."""
    smaller, results = facts.smaller_is_better, facts.results
    best = results.front if len(results.metrics) > 1 else [results.best]
    rows = sorted(facts.rows, key=lambda row: (row.metric is None, score(row.metric or 0.0, smaller)))
    metric, *more = map(_of_metric, results.metrics)
    columns = [*_before(facts), metric, *more, *_after(facts)]
    order = "ascending" if smaller else "descending"
    heads = [
        f'<th class="{_kind(column)}"{f" aria-sort={order}" if column is metric else ""}>'
        f'<button type="button">{as_text(column.head)}</button></th>'
        for column in columns
    ]
    body = []
    for row in rows:
        cells = "".join(_cell(column, row) for column in columns)
        body.append(f'<tr class="{"best" if row.trial in best else row.trial.state}">{cells}</tr>')
    return _table("sortable", heads, body)


def _before(facts: Facts) -> list[_Column]:
    columns = [
        _Column("trial", lambda row: str(row.trial.number), lambda row: row.trial.number),
        _Column("state", lambda row: row.trial.state),
        _Column("attempts", lambda row: str(row.trial.attempts), lambda row: row.trial.attempts),
    ]
    if facts.rungs:
        columns.append(_Column("rungs", _rungs_of, lambda row: row.rungs and row.rungs[0]))
    return columns


def _rungs_of(row: Row) -> str:
    return f"{row.rungs[0]} of {row.rungs[1]}" if row.rungs else ""


def _after(facts: Facts) -> list[_Column]:
    return [
        _Column(
            facts.steps,
            lambda row: "" if row.trial.step is None else f"{row.trial.step:,}",
            lambda row: row.trial.step,
        ),
        _Column("duration", lambda row: _duration(row.seconds), lambda row: row.seconds),
        *(_of_axis(axis) for axis in facts.axes),
    ]


def _of_metric(name: str) -> _Column:
    def number(row: Row) -> float | None:
        value = row.trial.metrics.get(name)
        return value if value is not None and is_drawn(value) else None

    return _Column(name, lambda row: _number(row.trial.metrics.get(name)), number)


def _of_axis(axis: Axis) -> _Column:
    def text(row: Row) -> str:
        return _short(row.trial.hparams.get(axis.key, ""))

    return _Column(axis.label, text) if axis.categories else _Column(axis.label, text, lambda row: row.at(axis))


def _cell(column: _Column, row: Row) -> str:
    text = column.text(row)
    number = None if column.number is None else column.number(row)
    value = text if column.number is None else "" if number is None else repr(number)
    return f'<td class="{_kind(column)}" data-value="{_quoted(value)}">{as_text(text)}</td>'


def _kind(column: _Column) -> str:
    return "text" if column.number is None else "number"


def rungs(facts: Facts) -> str:
    """Return how many trials of each bracket have reached each of its rungs."""
    length = facts.config.searcher.max_length
    unit = length.unit if length is not None else facts.config.searcher.time_metric
    names = ("bracket", f"rung ({unit})", "trials that reached it", "of")
    lines = [(rung.bracket + 1, f"{rung.length:,}", rung.reached, rung.trials) for rung in facts.rungs]
    heads = [f'<th class="number">{as_text(name)}</th>' for name in names]
    body = ["".join(f'<td class="number">{as_text(cell)}</td>' for cell in line) for line in lines]
    return _table("plain", heads, (f"<tr>{cells}</tr>" for cells in body))


def failures(facts: Facts) -> str:
    """Return the attempts that failed, with the last lines of their logs."""
    parts = []
    for number, failure in enumerate(facts.failures):
        text = "\n".join(map(as_text, failure.lines)) or "(no output)"
        title = f"trial {failure.trial}, attempt {failure.attempt}: {failure.outcome}"
        is_open = " open" if number == 0 else ""
        parts.append(f"<details{is_open}><summary>{title}</summary><pre>{text}</pre></details>")
    left = facts.failed - len(facts.failures)
    return "\n".join([*parts, f'<p class="note">… and {left} earlier ones.</p>'] if left else parts)


def _table(kind: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    head, body = "".join(heads), "\n".join(rows)
    table = f'<table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _quoted(value: str) -> str:
    """Return text for an attribute in double quotes."""
    return as_text(value).replace('"', "&quot;")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {_short(value)}" for key, value in values.items())


def _below(path: Path | str, folder: Path) -> str:
    return str(path.relative_to(folder)) if isinstance(path, Path) and path.is_relative_to(folder) else str(path)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
