"""Learning curves as one HTML page which needs nothing else: no network, no package, no other file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from lightlib.command.plot.panels import Line, Panel, Point, Row, thinned

__all__ = ["MARK", "draw_page"]

MARK = '<meta name="generator" content="lightlib plot">'  # by which a page of our own is known
_COLUMNS = 1000  # about as many as there are pixels: with more points than these, each column shows its extremes
_MOST_POINTS = 2000


def draw_page(
    title: str,
    runs: Sequence[str],
    panels: Sequence[Panel],
    rows: Sequence[Row],
    notes: Sequence[str],
    x: str,
    smooth: float,
) -> str:
    """Return the page. What comes from logs is escaped, and no script but our own may run in it."""
    script, style = _file("page.js"), _file("page.css")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    drawn = {"x": x, "smooth": smooth, "runs": list(runs), "panels": [_panel(panel) for panel in panels]}
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{MARK}
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'sha256-{allowed}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>
{style}</style>
</head>
<body>
<h1>{_text(title)}</h1>
<header>
<fieldset id="runs"><legend>Runs</legend></fieldset>
<label><input type="checkbox" id="log"> Logarithmic</label>
<label>Smoothing <input type="range" id="smooth" min="0" max="0.99" step="0.01" value="{smooth:g}">
<output id="weight" for="smooth">{smooth:.2f}</output></label>
</header>
<noscript><p>The curves are drawn by this page's own script. Without it there are only these numbers.</p></noscript>
<main id="panels"></main>
{_table(rows)}
{_notes(notes)}
<script type="application/json" id="data">{_json(drawn)}</script>
<script>{script}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _text(value: object) -> str:
    return html.escape(str(value))


def _json(value: object) -> str:
    """Return JSON that cannot end the element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # all but ASCII is escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _panel(panel: Panel) -> dict[str, Any]:
    return {"title": panel.title, "smooths": panel.smooths, "lines": [_line(line) for line in panel.lines]}


def _line(line: Line) -> dict[str, Any]:
    points = thinned(line.points, _COLUMNS if len(line.points) > _MOST_POINTS else _MOST_POINTS)
    drawn: dict[str, Any] = {
        "run": line.run,
        "name": line.name,
        "stage": line.stage,
        "perStep": line.per_step,
        "x": [_number(point.x) for point in points],
        "y": [_number(point.value) for point in points],
        "broken": [number for number, point in enumerate(points) if point.broken],
        "odd": [_number(point.x) for point in points if point.broken],
    }
    if len(points) < len(line.points):
        drawn["low"] = [_number(_end(point, point.low)) for point in points]
        drawn["high"] = [_number(_end(point, point.high)) for point in points]
        drawn["count"] = [point.count for point in points]
    return drawn


def _end(point: Point, value: float) -> float | None:
    return None if point.value is None else value


def _number(value: float | None) -> float | int | None:
    """Return a number as short as it can be told apart on a screen; a whole one in full."""
    if value is None or not math.isfinite(value):
        return None
    short = float(value) if float(value).is_integer() else float(f"{value:.9g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        best = ("-", "-") if row.best is None else (f"{row.best:.6g}", f"{row.step}")
        cells = [f'<td class="text">{_text(row.run)}</td><td class="text">{_text(row.name)}</td>']
        cells += [f"<td>{one}</td>" for one in (f"{row.last:.6g}", *best)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head = '<th class="text">run</th><th class="text">metric</th><th>last</th><th>best</th><th>at step</th>'
    return (
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return '<ul class="notes">\n' + "\n".join(f"<li>{_text(note)}</li>" for note in notes) + "\n</ul>"
