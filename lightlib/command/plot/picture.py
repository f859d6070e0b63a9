"""Learning curves as a PNG, drawn by matplotlib."""

from __future__ import annotations

import io
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightlib.command.plot.panels import Line, Panels, traces
from lightlib.experiment.report.pages import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARK = "lightlib plot"  # in the file's metadata, identifies our own pictures
MOST_PANELS = 60
_STYLES = ("dashed", "solid", "dotted", "dashdot", (0, (6, 2, 1, 2, 1, 2)))
_GREY = "#62626a"
_SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar sign in a name starts no formula
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e8",
    "font.size": 9,
    "legend.fontsize": 8,
}


def draw_picture(title: str, runs: Sequence[str], panels: Panels, x: str, smooth: float) -> bytes:
    """Return a PNG of the first `MOST_PANELS` panels. The user's matplotlib settings are neither used nor changed."""
    import matplotlib as mpl  # optional: matplotlib
    from matplotlib.figure import Figure  # optional: matplotlib
    from matplotlib.lines import Line2D  # optional: matplotlib

    count = min(len(panels), MOST_PANELS)
    columns = min(3, math.ceil(math.sqrt(count)))
    rows = math.ceil(count / columns)
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)  # a box is drawn instead
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(max(7.0, 5.2 * columns), 3.3 * rows + 0.6), layout="constrained")
        figure.suptitle(_fitted(title, 40 * columns))
        first: Axes | None = None
        for number, (name, lines) in enumerate(itertools.islice(panels.items(), count), 1):
            axes = figure.add_subplot(rows, columns, number, sharex=first)
            first = first or axes
            _draw_panel(axes, name, lines, len(runs) > 1, smooth)
            axes.set_xlabel(x, loc="right")
        if len(runs) > 1:
            handles = [Line2D([], [], color=COLORS[number % len(COLORS)], linewidth=2) for number in range(len(runs))]
            names = [_fitted(name, 40) for name in runs]
            figure.legend(handles, names, loc="outside lower center", ncols=min(len(runs), 3 * columns))
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=120, metadata={"Software": MARK})
    return content.getvalue()


def _draw_panel(axes: Axes, title: str, lines: Sequence[Line], several_runs: bool, smooth: float) -> None:
    from matplotlib.lines import Line2D  # optional: matplotlib

    axes.set_title(_fitted(title, 50), loc="left")
    axes.ticklabel_format(axis="y", useOffset=False)
    legend: dict[str, Line2D] = {}
    for trace in traces(title, lines, several_runs, smooth):
        style: dict[str, Any] = {
            "color": trace.color,
            "linestyle": _STYLES[trace.dash] if trace.line else "none",
            "linewidth": trace.width,
            "alpha": trace.opacity,
            "marker": ("o" if trace.line else "^") if trace.markers else None,
            "markersize": 3.5 if trace.line else 5,
        }
        axes.plot(trace.x, trace.y, **style)
        sample = {**style, "alpha": 1, "color": _GREY if several_runs else trace.color}
        legend.setdefault(trace.label, Line2D([], [], **sample))
    if list(legend) != [title]:
        axes.legend(list(legend.values()), [_fitted(name, 40) for name in legend], framealpha=0.8, handlelength=3)


def _fitted(text: str, most: int) -> str:
    """Return `text` without control characters, cut to `most` characters.

    A space precedes a leading underscore: matplotlib leaves such names out of legends.
    """
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return f" {text}" if text.startswith("_") else text
