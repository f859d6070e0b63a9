"""Learning curves as one self-contained HTML page, drawn by plotly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightlib.command.plot.panels import HEAD, Panels, Row, traces
from lightlib.experiment.report.pages import as_text, page

MARK = '<meta name="generator" content="lightlib plot">'  # identifies our own pages
_DASHES = ("dash", "solid", "dot", "dashdot", "longdashdot")
_HEIGHT = 360  # pixels of one row of panels


def draw_page(
    title: str,
    runs: Sequence[str],
    panels: Panels,
    rows: Sequence[Row],
    notes: Sequence[str],
    x: str,
    smooth: float,
) -> str:
    """Return a page that needs no network.

    Names from logs are escaped. A content security policy lists the hashes of plotly's scripts, so the browser runs no
    other script and loads nothing.
    """
    body = f"""{_figure(title, runs, panels, x, smooth)}
{_table(rows)}
{"".join(f"<p>{as_text(note)}</p>" for note in notes)}"""
    return page(title, MARK, body)


def _figure(title: str, runs: Sequence[str], panels: Panels, x: str, smooth: float) -> str:
    from plotly.graph_objects import Scatter  # optional: plotly
    from plotly.subplots import make_subplots  # optional: plotly

    columns = min(2, len(panels))
    count = math.ceil(len(panels) / columns)
    drawn: list[dict[str, str] | None] = [{}] * len(panels) + [None] * (count * columns - len(panels))
    specs = [drawn[row * columns : (row + 1) * columns] for row in range(count)]
    titles = [as_text(title) for title in panels]
    figure = make_subplots(count, columns, specs=specs, subplot_titles=titles, vertical_spacing=0.3 / count)
    for number, (name, lines) in enumerate(panels.items()):
        for trace in traces(name, lines, len(runs) > 1, smooth):
            run = as_text(runs[trace.run])
            group = {"legendgroup": run, "legendgrouptitle": {"text": run}} if len(runs) > 1 else {}
            scatter = Scatter(
                x=trace.x,
                y=[None if math.isnan(value) else value for value in trace.y],
                name=f"{run} · {as_text(trace.label)}" if group else as_text(trace.label),
                mode="+".join(["lines"] * trace.line + ["markers"] * trace.markers),
                line={"color": trace.color, "dash": _DASHES[trace.dash], "width": 1.4 * trace.width},
                marker={"color": trace.color, "size": 6, "symbol": "circle" if trace.line else "triangle-up"},
                opacity=trace.opacity,
                **group,
            )
            figure.add_trace(scatter, row=number // columns + 1, col=number % columns + 1)
    figure.update_xaxes(title=x, matches="x")
    figure.update_layout(title=as_text(title), height=_HEIGHT * count + 120, template="plotly_white", showlegend=True)
    figure.update_layout(hovermode="x unified", hoverlabel={"namelength": -1})
    axes = [f"{axis.plotly_name}.type" for axis in figure.select_yaxes()]
    buttons = [
        {"label": label, "method": "relayout", "args": [dict.fromkeys(axes, kind)]}
        for label, kind in (("Linear", "linear"), ("Logarithmic", "log"))
    ]
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 1, "y": 1 + 60 / (_HEIGHT * count)}
    figure.update_layout(updatemenus=[{**menu, "xanchor": "right", "yanchor": "bottom"}])
    text: str = figure.to_html(
        {"displaylogo": False}, full_html=False, include_plotlyjs=True, div_id="curves", validate=False
    )
    return text


def _table(rows: Sequence[Row]) -> str:
    lines = [HEAD, *(row.cells() for row in rows)]
    cells = "\n".join(f"<tr><td>{'</td><td>'.join(map(as_text, line))}</td></tr>" for line in lines)
    return f'<table cellpadding="4">\n{cells}\n</table>'
