"""`lightlib plot`: draws the learning curves of a run or of an experiment's runs as PNG and HTML."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from lightlib.command.plot import page, picture
from lightlib.command.plot.curves import Run, find_runs, read_run
from lightlib.command.plot.panels import AXES, HEAD, Row, chosen, make_panels, summary
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.experiment.report.pages import refuse_foreign, write
from lightlib.loggers.log_files import is_url

FORMATS = {"png": "matplotlib", "html": "plotly"}  # by the package that draws it
_MARKS = {"png": picture.MARK, "html": page.MARK}
_MOST_ROWS = 40

EPILOG = """examples:
  lightlib plot lightning_logs/version_0
  lightlib plot lightning_logs --metrics loss,val_accuracy --smooth 0.6
  lightlib plot runs/a runs/b --x epoch --format html --output pictures

Several runs share one picture. Only the curves.png and curves.html of an earlier `lightlib plot` are replaced."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lightlib plot`."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a run's folder, a folder of runs, a metrics.csv or a TensorBoard event file",
    )
    parser.add_argument(
        "--output", metavar="DIR", help="where to write curves.png and curves.html (default: RUN; for several runs: .)"
    )
    parser.add_argument(
        "--metrics", type=_listed, default=[], metavar="A,B*", help="names or patterns of metrics (default: all)"
    )
    parser.add_argument(
        "--smooth",
        type=float,
        default=0.0,
        metavar="0..1",
        help="smooth values per step by a running mean (default: 0)",
    )
    parser.add_argument("--x", default="step", choices=AXES, help="the x-axis (default: step)")
    parser.add_argument(
        "--format",
        type=_listed,
        default=list(FORMATS),
        metavar=",".join(FORMATS),
        help="what to write (default: png,html)",
    )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def run(options: argparse.Namespace) -> int:
    """Draw the curves, and print the written paths and a summary."""
    _check(options)
    runs = read_runs(options.runs)
    names = chosen(runs, options.metrics)
    panels, x = make_panels(runs, names, options.x)
    rows = summary(runs, names)
    notes = [note for run in runs for note in run.notes] + not_finite(rows)
    if "png" in options.format and len(panels) > picture.MOST_PANELS:
        notes.append(f"The PNG has the first {picture.MOST_PANELS} of {len(panels)} panels; choose with --metrics.")
    paths = _targets(options.output, runs, options.format)

    run_names, title = [run.name for run in runs], title_of(runs)
    if "png" in paths:
        content = picture.draw_picture(title, run_names, panels, x, options.smooth)
        write(paths["png"], content, "--output DIR")
    if "html" in paths:
        text = page.draw_page(title, run_names, panels, rows, notes, x, options.smooth)
        write(paths["html"], text.encode(errors="backslashreplace"), "--output DIR")

    _print_table(rows, len(runs) > 1)
    for path in paths.values():
        print(f"Wrote {printable(path)}")
    for note in notes:
        print(f"Warning: {printable(note)}", file=sys.stderr)
    return 0


def title_of(runs: Sequence[Run]) -> str:
    """Return the title of a picture."""
    return f"Learning curves of {', '.join(run.name for run in runs) if len(runs) <= 3 else f'{len(runs)} runs'}"


# Options


def _check(options: argparse.Namespace) -> None:
    if not 0 <= options.smooth < 1:
        raise MisconfigurationException(
            f"--smooth is {options.smooth:g}.",
            expected="a number from 0 (no smoothing) to below 1.",
            fix="--smooth 0.6",
        )
    if not options.format:
        raise MisconfigurationException("--format is empty.", expected="png, html or both.", fix="--format png,html")
    for name in options.format:
        if name not in FORMATS:
            raise UnknownNameError("format", name, FORMATS, fix="--format png, --format html, or --format png,html.")
        try:
            importlib.import_module(FORMATS[name])
        except ImportError as error:
            raise MisconfigurationException(
                f"`--format {name}` needs the package {FORMATS[name]!r}, which cannot be imported: {error}",
                expected=f"{FORMATS[name]!r} installed in this environment.",
                fix="pip install matplotlib plotly",
            ) from error


def read_runs(given: Sequence[str]) -> list[Run]:
    """Return the runs in folders and files, with a name for each; print how many a folder of runs has."""
    paths: dict[str, str] = {}
    for path in given:
        folders = find_runs(path)
        if folders != [path] and len(folders) > 1:
            print(f"{len(folders)} runs in {printable(path)}: {printable(', '.join(_names(folders)))}")
        paths.update({folder if is_url(folder) else os.path.realpath(folder): folder for folder in folders})
    runs = [read_run(path, name) for path, name in zip(paths.values(), _names(list(paths.values())), strict=True)]
    with_curves = [run for run in runs if run.curves]
    if not with_curves:
        notes = "".join(f"\n  {note}" for run in runs for note in run.notes)
        raise MisconfigurationException(
            f"No number was logged in {', '.join(repr(run.path) for run in runs)}.{notes}",
            expected="logs with at least one metric.",
            fix="call self.log in the module; values per step are logged every Trainer(log_every_n_steps=50) steps.",
        )
    for run in runs:
        if not run.curves:
            with_curves[0].notes.append(f"{run.name}: no number was logged in {run.path!r}; it is not drawn.")
    return with_curves


def _names(paths: Sequence[str]) -> list[str]:
    """Return the shortest path endings that are unique. A log file is named by its folder."""
    full = [path if is_url(path) else os.path.abspath(path).replace(os.sep, "/") for path in paths]
    folders = [path.rpartition("/")[0] if path.endswith(".csv") or "tfevents" in path else path for path in full]
    split = [folder.rstrip("/").split("/") for folder in folders]
    for count in range(1, max(map(len, split), default=0) + 1):
        names = ["/".join(parts[-count:]) for parts in split]
        if len(set(names)) == len(names):
            return names
    return full


# Files


def _targets(output: str | None, runs: Sequence[Run], formats: Sequence[str]) -> dict[str, str]:
    """Return the path to write for each format, after checking that no foreign file would be replaced."""
    folder = output
    if folder is None:
        path = runs[0].path
        folder = "." if len(runs) > 1 or is_url(path) else path if os.path.isdir(path) else os.path.dirname(path)
    elif is_url(folder) or os.path.isfile(folder):
        raise MisconfigurationException(
            f"--output is {folder!r}.",
            expected="a local folder; it is created if needed.",
            fix="--output pictures",
        )
    targets = {name: os.path.join(folder, f"curves.{name}") for name in formats}
    for name, path in targets.items():
        refuse_foreign(path, _MARKS[name], "lightlib plot", "--output DIR for another folder, or move that file away.")
    return targets


# Output


def not_finite(rows: Sequence[Row]) -> list[str]:
    """Return a note for each metric with values that are not finite."""
    return [
        f"{row.run}: {row.name} is not finite (NaN or infinite) at {len(row.not_finite)} of {len(row.points)} steps, "
        f"first at step {row.not_finite[0]}; its line has gaps there."
        for row in rows
        if row.not_finite
    ]


def _print_table(rows: Sequence[Row], several: bool) -> None:
    texts = 2 if several else 1  # columns of text, before those of numbers
    table = [
        [printable(cell) for cell in line[2 - texts :]] for line in (HEAD, *(row.cells() for row in rows[:_MOST_ROWS]))
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = [f"{cell:{'<' if at < texts else '>'}{widths[at]}}" for at, cell in enumerate(line)]
        print("  ".join(cells).rstrip())
    if len(rows) > _MOST_ROWS:
        print(f"… and {len(rows) - _MOST_ROWS} more; --metrics chooses some.")


def printable(text: str) -> str:
    """Return a text from a log with control characters escaped, so that a terminal obeys none."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
