"""plot: the learning curves of runs in a notebook, drawn as `lightlib plot` draws them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lightlib import optional, report
from lightlib.command.plot import picture
from lightlib.command.plot.panels import AXES, chosen, make_panels, summary
from lightlib.command.plot.plot import not_finite, read_runs, title_of
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, shown

__all__ = ["Curves", "plot"]


class Curves:
    """A picture of learning curves; the last value of a notebook's cell is shown.

    Attributes:
        png: The picture.
        notes: Defects of the logs, and how each was handled.

    Args:
        png, notes: The same.
    """

    def __init__(self, png: bytes, notes: Sequence[str] = ()) -> None:
        self.png, self.notes = png, list(notes)

    def _repr_png_(self) -> bytes:
        """Return the picture to IPython."""
        return self.png

    def __repr__(self) -> str:
        return f"<Curves: a PNG of {len(self.png)} bytes; .save('curves.png') writes it>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file.

        Raises:
            FileExistsError: There is one.
        """
        with open(path, "xb") as file:
            file.write(self.png)


def plot(
    *runs: str | os.PathLike[str], metrics: str | Sequence[str] = (), smooth: float = 0.0, x: str = "step"
) -> Curves:
    r"""Draw the learning curves of runs; as the last line of a notebook's cell it shows the picture.

    Args:
        runs: Folders of runs, such as `trainer.log_dir`, folders of several, files ``metrics.csv``, event files of
            TensorBoard, or URLs of them.
        metrics: Names or patterns, such as ``"val_*"``. Default: all.
        smooth: From 0 to below 1: the share that values of earlier steps have in a running mean. Default: 0.
        x: ``"step"`` (default), ``"epoch"`` or ``"time"``.

    Raises:
        ArgumentTypeError: `runs` or `smooth` has another type.
        MisconfigurationException: There is no run, `smooth` is out of range, the logs have no numbers, or matplotlib is
            not installed.
        UnknownNameError: `x`, or no metric has one of the names.

    Example:
        >>> import tempfile, pathlib
        >>> folder = tempfile.mkdtemp()
        >>> _ = pathlib.Path(folder, "metrics.csv").write_text("epoch,step,loss\n0,0,3.0\n0,1,2.0\n")
        >>> plot(folder, smooth=0.5).png[1:4]
        b'PNG'
    """
    paths = [_path(run) for run in runs]
    if not paths:
        raise MisconfigurationException(
            "plot() got no run.", expected="the folder of at least one run.", fix="lightlib.plot(trainer.log_dir)"
        )
    if isinstance(smooth, bool) or not isinstance(smooth, (int, float)):
        raise ArgumentTypeError(f"plot(smooth={shown(smooth)}).", expected="a number.", fix="plot(…, smooth=0.6)")
    if not 0 <= smooth < 1:
        raise MisconfigurationException(
            f"plot(smooth={smooth}).", expected="a number from 0 to below 1.", fix="plot(…, smooth=0.6)"
        )
    if x not in AXES:
        raise UnknownNameError("axis", x, AXES, fix='plot(…, x="epoch")')
    optional.load("matplotlib", "lightlib.plot")
    read = read_runs(paths)
    names = chosen(read, [metrics] if isinstance(metrics, str) else metrics, "metrics=")
    panels, label = make_panels(read, names, x)
    notes = [note for run in read for note in run.notes] + not_finite(summary(read, names))
    for note in notes:
        report.warn(note)
    content = picture.draw_picture(title_of(read), [run.name for run in read], panels, label, smooth)
    return Curves(content, notes)


def _path(argument: object) -> str:
    if not isinstance(argument, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"plot() got {shown(argument)}.",
            expected="the folder of a run, as a string or a path.",
            fix="lightlib.plot(trainer.log_dir)",
        )
    return os.fspath(argument)
