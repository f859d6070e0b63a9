"""Learning curves as a PNG, drawn by matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

from lightlib.command.plot.panels import Panel, Point, smoothed, thinned
from lightlib.errors import MisconfigurationException

__all__ = ["MARK", "MOST_PANELS", "check_matplotlib", "draw_picture"]

MARK = "lightlib plot"  # in the file's metadata, by which a picture of our own is known
MOST_PANELS = 60
_COLORS = ("#0072b2", "#d55e00", "#008a64", "#b5528a", "#8f6400", "#2b87b9", "#3d3d42", "#7a5cc0")  # as in page.css
_DASHES = ((0, (4, 2)), "solid", (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (2, 1)))
_GREY = "#62626a"
_PIXELS = 600  # across one panel


def check_matplotlib() -> None:
    """Raise unless matplotlib can be imported.

    Raises:
        MisconfigurationException: It cannot.
    """
    try:
        import matplotlib as mpl  # noqa: F401  # optional: matplotlib
    except ImportError as error:
        raise MisconfigurationException(
            f"A PNG needs the package 'matplotlib', which cannot be imported: {error}",
            expected="'matplotlib' installed in this environment.",
            fix="pip install lightlib[plot], or --format html, which needs no package.",
        ) from error


def draw_picture(title: str, runs: Sequence[str], panels: Sequence[Panel], x: str, smooth: float) -> bytes:
    """Return a PNG of the first `MOST_PANELS` panels. The user's settings of matplotlib are not used, nor changed."""
    import matplotlib as mpl  # optional: matplotlib
    from matplotlib.figure import Figure  # optional: matplotlib

    panels = panels[:MOST_PANELS]
    columns = min(3, max(1, math.ceil(math.sqrt(len(panels)))))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)  # a box is drawn in its place
        mpl.rcdefaults()
        # Names are text: a dollar in one begins no formula. Grey axes leave the curves in front.
        mpl.rcParams.update({"text.parse_math": False, "axes.edgecolor": "#b0b0b5", "axes.spines.top": False})
        mpl.rcParams.update({"axes.spines.right": False, "font.size": 9, "axes.titlesize": 11, "legend.fontsize": 8})
        figure = Figure(figsize=(max(7.0, 5.2 * columns), 3.3 * rows + 0.6), layout="constrained")
        figure.suptitle(_short(title, 40 * columns), fontsize=12)
        places = [line.points[end][0] for panel in panels for line in panel.lines for end in (0, -1)]
        margin = (max(places) - min(places)) * 0.03 or 0.5
        for number, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, number + 1)
            axes.set_xlim(min(places) - margin, max(places) + margin)  # the same in all
            _draw_panel(axes, panel, len(runs) > 1, smooth if panel.smooths else 0.0)
            axes.set_xlabel(x, loc="right", color=_GREY)
        if len(runs) > 1:
            _name_runs(figure, runs, columns)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=120, metadata={"Software": MARK})
    return content.getvalue()


def _draw_panel(axes: Any, panel: Panel, several: bool, smooth: float) -> None:
    from matplotlib.lines import Line2D  # optional: matplotlib

    axes.set_title(_short(panel.title, 50), loc="left")
    axes.grid(visible=True, color="#e4e4e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.ticklabel_format(axis="y", useOffset=False)
    named: dict[str, Any] = {}
    odd = None
    dashed = several and len({line.stage for line in panel.lines}) > 1
    for line in panel.lines:
        points = thinned(line.points, _PIXELS)
        color = _COLORS[(line.run if several else line.stage) % len(_COLORS)]
        style = {"color": color, "linestyle": _DASHES[min(line.stage, 4)] if dashed and not line.per_step else "solid"}
        draws = smooth > 0 and line.per_step
        marker = "o" if not line.per_step and len(points) <= 60 else None
        width = 0.9 if line.per_step else 1.8
        xs, ys = _with_gaps(points)
        axes.plot(xs, ys, **style, linewidth=width, alpha=0.3 if draws else 1, marker=marker, markersize=3.5)
        _draw_lonely(axes, xs, ys, color)
        if draws:
            means = smoothed(points, smooth)
            gaps = [math.nan if point.broken else mean for point, mean in zip(points, means, strict=True)]
            axes.plot([point.x for point in points], gaps, **style, linewidth=1.6)
        sample: dict[str, Any] = {
            **style,
            "color": _GREY if several else color,
            "linewidth": width,
            "marker": marker,
            "markersize": 3.5,
        }
        named.setdefault(line.name, Line2D([], [], **sample))
        places = [point.x for point in points if point.broken]
        if places:
            axes.plot(
                places, [0.012] * len(places), "^", color=color, markersize=5, transform=axes.get_xaxis_transform()
            )
            odd = Line2D([], [], color=_GREY, marker="^", markersize=5, linestyle="none")
    if odd is not None:
        named["not finite"] = odd
    if len(named) > 1 or next(iter(named), "") != panel.title:
        axes.legend(list(named.values()), [_short(name, 40) for name in named], framealpha=0.8)


def _with_gaps(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return what to draw: where several points share a column both extremes, and NaN where the line is broken."""
    xs, ys = [], []
    for point in points:
        if point.value is not None:
            for value in dict.fromkeys((point.low, point.high)):
                xs.append(point.x)
                ys.append(value)
        if point.broken:
            xs.append(point.x)
            ys.append(math.nan)
    return xs, ys


def _draw_lonely(axes: Any, xs: list[float], ys: list[float], color: str) -> None:
    """Draw points between two gaps, which no line goes through."""
    ends = [math.nan, *ys, math.nan]
    lonely = [i for i, y in enumerate(ys) if not math.isnan(y) and math.isnan(ends[i]) and math.isnan(ends[i + 2])]
    if lonely:
        axes.plot([xs[i] for i in lonely], [ys[i] for i in lonely], "o", color=color, markersize=3)


def _name_runs(figure: Any, runs: Sequence[str], columns: int) -> None:
    from matplotlib.lines import Line2D  # optional: matplotlib

    handles = [Line2D([], [], color=_COLORS[number % len(_COLORS)], linewidth=2) for number in range(len(runs))]
    figure.legend(
        handles, [_short(name, 40) for name in runs], loc="outside lower center", ncols=min(len(runs), 3 * columns)
    )


def _short(text: str, most: int) -> str:
    """Return a text that fits. Before an underscore comes a space: matplotlib leaves names with one out of legends."""
    text = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return f" {text}" if text.startswith("_") else text
