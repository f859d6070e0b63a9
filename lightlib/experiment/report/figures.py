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
    drawn.sort(key=lambda one: (one.trial.number == number, one.trial.state == "completed"))
    groups = set[str]()
    traces = []
    for one in drawn:
        is_best = one.trial.number == number
        group = "best" if is_best else one.trial.state
        traces.append(
            {
                "type": "scatter",
                "x": [step for step, _ in one.points],
                "y": [value if is_drawn(value) else None for _, value in one.points],
                "mode": "lines+markers" if len(one.points) <= _MOST_MARKERS else "lines",
                "name": f"trial {one.trial.number}" if is_best else group,
                "legendgroup": group,
                "showlegend": group not in groups,
                "line": {
                    "color": ORANGE if is_best else _OF_STATE.get(group, PURPLE),
                    "width": 3 if is_best else 1.6 if group == "completed" else 0.9,
                },
                "marker": {"size": 5 if is_best else 3},
                "hovertemplate": f"trial {one.trial.number}, {one.trial.state}<br>%{{x:,}} {facts.steps}: %{{y:.6g}}"
                "<extra></extra>",
            }
        )
        groups.add(group)
    values = [value for one in drawn for _, value in one.points]
    x = {"title": facts.steps, "rangemode": "tozero"}
    return {"data": traces, "layout": _layout(xaxis=x, yaxis=_metric_axis(facts, values))}


def front(facts: Facts) -> Figure | None:
    """Return the trials by their first two metrics, with the front drawn; None for one metric."""
    if len(facts.results.metrics) == 1:
        return None
    names = facts.results.metrics[:2]
    found = [(one, [one.trial.metrics[name] for name in names]) for one in facts.rows if one.metric is not None]
    found = [(one, values) for one, values in found if all(map(is_drawn, values))]
    if not found:
        return None
    best = facts.results.front
    groups: dict[str, list[tuple[Row, list[float]]]] = {"the rest": [], "the front": []}
    for row, values in found:
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
    axes = [_titled(name, [values[place] for _, values in found]) for place, name in enumerate(names)]
    return {"data": data, "layout": _layout(xaxis=axes[0], yaxis=axes[1])}


def history(facts: Facts) -> Figure | None:
    """Return the metric of each trial that has ended, in the order of their ends, and the best so far."""
    ended = [(one.ended, one) for one in facts.rows if one.ended is not None and _counts(one)]
    if not ended:
        return None
    rows = [row for _, row in sorted(ended, key=lambda pair: (pair[0], pair[1].trial.number))]
    places = list(range(1, len(rows) + 1))
    values = [_known(one) for one in rows]
    best = min if facts.smaller_is_better else max
    dots = {
        "type": "scatter",
        "x": places,
        "y": values,
        "mode": "markers",
        "name": "a trial",
        "marker": {"color": [_OF_STATE.get(one.trial.state, PURPLE) for one in rows], "size": 7},
        "text": [_name(one) for one in rows],
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
    values = [_known(row) for row in rows]
    axes = [*facts.axes, Axis("", facts.results.metric, is_log=_is_wide(values))]
    scales = [scale(axis, [row.at(axis) for row in rows]) for axis in facts.axes] + [scale(axes[-1], values)]
    names = [f"{_name(row)}: {_known(row):.6g}" for row in rows]
    drawn = lines(axes, scales, names, smaller_is_better=facts.smaller_is_better)
    hidden = {"visible": False}
    x, y = {**hidden, "range": [-0.4, len(axes) - 0.6]}, {**hidden, "range": [-0.22, 1.18]}
    more = {"shapes": drawn["shapes"], "annotations": drawn["annotations"], "margin": dict.fromkeys("lrtb", 10)}
    return {"data": drawn["data"], "layout": _layout(height=420, showlegend=False, xaxis=x, yaxis=y, **more)}


def slices(facts: Facts) -> list[Figure]:
    """Return the metric over each searched hyperparameter, a dot for each trial with both."""
    best = facts.results.best
    rows = [row for row in facts.rows if row.metric is not None]
    y = _metric_axis(facts, [_known(row) for row in rows])
    figures = []
    for axis in facts.axes:
        found = [(place, row) for row in rows if (place := row.at(axis)) is not None]
        if not found:
            continue
        dots = {
            "type": "scatter",
            "mode": "markers",
            "x": [place for place, _ in found],
            "y": [one.metric for _, one in found],
            "text": [_name(one) for _, one in found],
            "marker": {
                "color": [ORANGE if one.trial == best else _OF_STATE.get(one.trial.state, PURPLE) for _, one in found],
                "size": [10 if one.trial == best else 7 for _, one in found],
            },
            "hovertemplate": "%{text}: %{y:.6g} at %{x}<extra></extra>",
        }
        layout = _layout(height=300, xaxis=_axis(axis, [place for place, _ in found]), yaxis=y)
        figures.append({"data": [dots], "layout": layout})
    return figures


def _axis(axis: Axis, places: Sequence[float]) -> Figure:
    found: Figure = {"title": as_text(axis.label), "automargin": True}
    if axis.categories:
        names = [as_text(text) for text in axis.categories]
        end = len(names) - 0.5
        return {**found, "tickvals": list(range(len(names))), "ticktext": names, "range": [-0.5, end]}
    if axis.is_log and min(places) > 0:
        return {**found, **_LOG, "nticks": 6}
    return found


def importances(facts: Facts) -> Figure | None:
    """Return the importance of each hyperparameter as a bar; None without importances."""
    if isinstance(facts.importances, str):
        return None
    labels = {axis.key: as_text(axis.label) for axis in facts.axes}
    found = list(reversed(facts.importances.items()))
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [value for _, value in found],
        "y": [labels.get(key, as_text(key)) for key, _ in found],
        "text": [f"{value:.2f}" for _, value in found],
        "marker": {"color": BLUE},
        "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
    }
    y = {"type": "category", "automargin": True}
    return {"data": [bars], "layout": _layout(height=90 + 34 * len(found), yaxis=y, xaxis={"range": [0, 1]})}


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


def _times(one: Span) -> str:
    seconds = (one.ended - one.began).total_seconds()
    return f"trial {one.trial}, attempt {one.attempt}: {one.outcome}<br>{one.began:%H:%M:%S}, {seconds:,.1f} s"


# shared
def _counts(one: Row) -> bool:
    """Whether a trial may be the best one."""
    return one.trial.state in ("completed", "stopped", "paused") and one.metric is not None


def _known(one: Row) -> float:
    assert one.metric is not None, "checked by the caller"
    return one.metric


def _name(one: Row) -> str:
    return f"trial {one.trial.number}, {one.trial.state}"


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
