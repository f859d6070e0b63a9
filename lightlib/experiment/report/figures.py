"""Figures of a report, as the plain data that plotly draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lightlib.experiment.report.axes import Axis
from lightlib.experiment.report.facts import Facts, Row, Span, is_drawn
from lightlib.experiment.report.pages import COLORS, as_text
from lightlib.experiment.report.parallel import lines, scale

Figure = dict[str, Any]  # "data" and "layout", as in plotly's JSON
BLUE, ORANGE, GREEN, PURPLE = COLORS[:4]
GREY, PALE = "#8a8a94", "#b9c3cc"
_OF_STATE = {"completed": BLUE, "stopped": PALE, "paused": PALE, "running": GREEN, "waiting": GREEN}
_OF_OUTCOME = {**_OF_STATE, "failed": PURPLE, "lost": PURPLE, "interrupted": GREEN}
_MOST_MARKERS = 60  # points of a line that has markers
_WIDE = 100.0  # the largest of positive values over the smallest, from which on an axis is logarithmic
_LOG: Figure = {"type": "log", "exponentformat": "power"}


def curves(facts: Facts) -> Figure | None:
    """Return the metric over batches, a line for each trial, the best one on top; None without a report."""
    best = facts.results.best
    number = -1 if best is None else best.number
    drawn = [row for row in facts.rows if any(is_drawn(value) for _, value in row.points)]
    if not drawn:
        return None
    drawn.sort(key=lambda line: (line.trial.number == number, line.trial.state == "completed"))
    groups = set[str]()
    traces = []
    for line in drawn:
        is_best = line.trial.number == number
        group = "best" if is_best else line.trial.state
        traces.append(
            {
                "type": "scatter",
                "x": [step for step, _ in line.points],
                "y": [value if is_drawn(value) else None for _, value in line.points],
                "mode": "lines+markers" if len(line.points) <= _MOST_MARKERS else "lines",
                "name": f"trial {line.trial.number}" if is_best else group,
                "legendgroup": group,
                "showlegend": group not in groups,
                "line": {
                    "color": ORANGE if is_best else _OF_STATE.get(group, PURPLE),
                    "width": 3 if is_best else 1.6 if group == "completed" else 0.9,
                },
                "marker": {"size": 5 if is_best else 3},
                "hovertemplate": f"trial {line.trial.number}, {line.trial.state}<br>%{{x:,}} {facts.steps}: %{{y:.6g}}"
                "<extra></extra>",
            }
        )
        groups.add(group)
    values = [value for line in drawn for _, value in line.points]
    x = {"title": facts.steps, "rangemode": "tozero"}
    return {"data": traces, "layout": _layout(xaxis=x, yaxis=_metric_axis(facts, values))}


def front(facts: Facts) -> Figure | None:
    """Return the trials by their first two metrics, with the front drawn; None for one metric."""
    if len(facts.results.metrics) == 1:
        return None
    names = facts.results.metrics[:2]
    points = [(row, [row.trial.metrics[name] for name in names]) for row in facts.rows if row.metric is not None]
    points = [(row, values) for row, values in points if all(map(is_drawn, values))]
    if not points:
        return None
    best = facts.results.front
    groups: dict[str, list[tuple[Row, list[float]]]] = {"the rest": [], "the front": []}
    for row, values in points:
        groups["the front" if row.trial in best else "the rest"].append((row, values))
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [values[0] for _, values in group],
            "y": [values[1] for _, values in group],
            "text": [_name(row) for row, _ in group],
            "marker": {"color": color, "size": size},
            "hovertemplate": "%{text}: %{x:.6g}, %{y:.6g}<extra></extra>",
        }
        for (name, group), color, size in zip(groups.items(), (BLUE, ORANGE), (7, 10), strict=True)
        if group
    ]
    axes = [_titled(name, [values[place] for _, values in points]) for place, name in enumerate(names)]
    return {"data": data, "layout": _layout(xaxis=axes[0], yaxis=axes[1])}


def history(facts: Facts) -> Figure | None:
    """Return the metric of each trial that has ended, in the order of their ends, and the best so far."""
    ended = [(row.ended, row) for row in facts.rows if row.ended is not None and _counts(row)]
    if not ended:
        return None
    rows = [row for _, row in sorted(ended, key=lambda pair: (pair[0], pair[1].trial.number))]
    places = list(range(1, len(rows) + 1))
    values = [_metric(row) for row in rows]
    best = min if facts.smaller_is_better else max
    dots = {
        "type": "scatter",
        "x": places,
        "y": values,
        "mode": "markers",
        "name": "a trial",
        "marker": {"color": [_OF_STATE.get(row.trial.state, PURPLE) for row in rows], "size": 7},
        "text": [_name(row) for row in rows],
        "hovertemplate": "%{text}: %{y:.6g}<extra></extra>",
    }
    line = {
        "type": "scatter",
        "x": places,
        "y": [best(values[:end]) for end in places],
        "mode": "lines",
        "name": "the best so far",
        "line": {"color": ORANGE, "width": 2, "shape": "hv"},
        "hovertemplate": "best so far: %{y:.6g}<extra></extra>",
    }
    x = {"title": "trials that have ended", "rangemode": "tozero"}
    return {"data": [dots, line], "layout": _layout(xaxis=x, yaxis=_metric_axis(facts, values))}


def parallel(facts: Facts) -> Figure | None:
    """Return parallel coordinates of the searched hyperparameters, coloured by the metric; None without either."""
    rows = [row for row in facts.rows if row.metric is not None]
    if not rows or not facts.axes:
        return None
    values = [_metric(row) for row in rows]
    axes = [*facts.axes, Axis("", facts.results.metric, is_log=_is_wide(values))]
    scales = [scale(axis, [row.at(axis) for row in rows]) for axis in facts.axes] + [scale(axes[-1], values)]
    names = [f"{_name(row)}: {_metric(row):.6g}" for row in rows]
    drawn = lines(axes, scales, names, smaller_is_better=facts.smaller_is_better)
    hidden = {"visible": False}
    x, y = {**hidden, "range": [-0.4, len(axes) - 0.6]}, {**hidden, "range": [-0.22, 1.18]}
    more = {"shapes": drawn["shapes"], "annotations": drawn["annotations"], "margin": dict.fromkeys("lrtb", 10)}
    return {"data": drawn["data"], "layout": _layout(height=420, showlegend=False, xaxis=x, yaxis=y, **more)}


def slices(facts: Facts) -> list[Figure]:
    """Return the metric over each searched hyperparameter, a dot for each trial with both."""
    best = facts.results.best
    rows = [row for row in facts.rows if row.metric is not None]
    y = _metric_axis(facts, [_metric(row) for row in rows])
    figures = []
    for axis in facts.axes:
        points = [(place, row) for row in rows if (place := row.at(axis)) is not None]
        if not points:
            continue
        dots = {
            "type": "scatter",
            "mode": "markers",
            "x": [place for place, _ in points],
            "y": [drawn.metric for _, drawn in points],
            "text": [_name(drawn) for _, drawn in points],
            "marker": {
                "color": [
                    ORANGE if drawn.trial == best else _OF_STATE.get(drawn.trial.state, PURPLE) for _, drawn in points
                ],
                "size": [10 if drawn.trial == best else 7 for _, drawn in points],
            },
            "hovertemplate": "%{text}: %{y:.6g} at %{x}<extra></extra>",
        }
        layout = _layout(height=300, xaxis=_axis(axis, [place for place, _ in points]), yaxis=y)
        figures.append({"data": [dots], "layout": layout})
    return figures


def _axis(axis: Axis, places: Sequence[float]) -> Figure:
    figure: Figure = {"title": as_text(axis.label), "automargin": True}
    if axis.categories:
        names = [as_text(text) for text in axis.categories]
        end = len(names) - 0.5
        return {**figure, "tickvals": list(range(len(names))), "ticktext": names, "range": [-0.5, end]}
    if axis.is_log and min(places) > 0:
        return {**figure, **_LOG, "nticks": 6}
    return figure


def importances(facts: Facts) -> Figure | None:
    """Return the importance of each hyperparameter as a bar; None without importances."""
    if isinstance(facts.importances, str):
        return None
    labels = {axis.key: as_text(axis.label) for axis in facts.axes}
    items = list(reversed(facts.importances.items()))
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [value for _, value in items],
        "y": [labels.get(key, as_text(key)) for key, _ in items],
        "text": [f"{value:.2f}" for _, value in items],
        "marker": {"color": BLUE},
        "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
    }
    y = {"type": "category", "automargin": True}
    return {"data": [bars], "layout": _layout(height=90 + 34 * len(items), yaxis=y, xaxis={"range": [0, 1]})}


def gantt(facts: Facts) -> Figure | None:
    """Return the attempts over time, in rows by worker; None if none has begun."""
    if not facts.spans:
        return None
    lanes = list(dict.fromkeys((span.worker, span.lane) for span in facts.spans))
    data = []
    for outcome in dict.fromkeys(span.outcome for span in facts.spans):
        spans = [span for span in facts.spans if span.outcome == outcome]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": outcome,
                "base": [span.began.isoformat() for span in spans],
                "x": [1000 * (span.ended - span.began).total_seconds() for span in spans],  # milliseconds
                "y": [lanes.index((span.worker, span.lane)) for span in spans],
                "text": [str(span.trial) for span in spans],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "marker": {"color": _OF_OUTCOME.get(outcome, GREY), "line": {"color": "white", "width": 1}},
                "customdata": [_times(span) for span in spans],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    y = {
        "tickvals": [number for number, (_, lane) in enumerate(lanes) if lane == 0],
        "ticktext": [as_text(worker) for worker, lane in lanes if lane == 0],
        "autorange": "reversed",
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }
    layout = _layout(height=130 + 28 * len(lanes), xaxis={"type": "date"}, yaxis=y, showlegend=True, barmode="overlay")
    return {"data": data, "layout": {**layout, "bargap": 0.15}}


def _times(span: Span) -> str:
    seconds = (span.ended - span.began).total_seconds()
    return f"trial {span.trial}, attempt {span.attempt}: {span.outcome}<br>{span.began:%H:%M:%S}, {seconds:,.1f} s"


# shared
def _counts(row: Row) -> bool:
    """Whether a trial may be the best one."""
    return row.trial.state in ("completed", "stopped", "paused") and row.metric is not None


def _metric(row: Row) -> float:
    assert row.metric is not None, "checked by the caller"
    return row.metric


def _name(row: Row) -> str:
    return f"trial {row.trial.number}, {row.trial.state}"


def _metric_axis(facts: Facts, values: Iterable[float]) -> Figure:
    return _titled(facts.results.metric, values)


def _titled(metric: str, values: Iterable[float]) -> Figure:
    return {"title": as_text(metric), "automargin": True, **(_LOG if _is_wide(values) else {})}


def _is_wide(values: Iterable[float]) -> bool:
    """Whether positive values are so far apart that the smaller ones are one line on a linear axis."""
    finite = [value for value in values if is_drawn(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > _WIDE


def _layout(**more: Any) -> Figure:
    return {
        "template": "plotly_white",
        "height": 400,
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
        **more,
    }
