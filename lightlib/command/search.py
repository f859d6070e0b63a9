"""`lightlib search preview`: the plan of a search, from its experiment file; runs nothing."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib.errors import MisconfigurationException, closest, nearest
from lightlib.experiment.search.preview import Preview, preview
from lightlib.experiment.space import Space

if TYPE_CHECKING:
    from lightlib.experiment.file import ExperimentConfig

EPILOG = """examples
  lightlib search preview search.yaml
  lightlib search preview search.yaml --config searcher.max_trials=64 --seconds 0.5
  lightlib search preview search.yaml --json
"""


def add_commands(commands: Any) -> None:
    """Add the commands of `lightlib search`."""
    parser = commands.add_parser(
        "preview", help="brackets, trials of each length, and what they train in all; runs nothing", allow_abbrev=False
    )
    parser.add_argument("file", metavar="FILE", help="the experiment file")
    parser.add_argument(
        "--config",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a value in place of the file's, such as searcher.max_trials=64 (repeatable)",
    )
    parser.add_argument("--seconds", metavar="S", help="seconds that a trial takes for one unit: shows slot-hours")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(options: argparse.Namespace) -> int:
    """Print the plan of the search."""
    from lightlib.experiment.file import read  # optional: yaml

    if not Path(options.file).is_file():
        beside = [str(one) for one in Path(options.file).parent.glob("*.y*ml")]
        meant = closest(options.file, beside)
        raise MisconfigurationException(
            f"There is no file {options.file!r}.{nearest(options.file, beside)}",
            expected=f"an experiment file, seen from {Path.cwd()}.",
            fix=f"lightlib search preview {shlex.quote(meant or 'search.yaml')}",
        )
    seconds = None if options.seconds is None else _seconds(options.seconds)
    plan = plan_of(read(options.file, options.config), seconds)
    print(plan.as_json() if options.json else plan.as_text())
    return 0


def _seconds(text: str) -> float:
    """Return a time, greater than 0 and finite."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise MisconfigurationException(
            f"--seconds is {text!r}.", expected="the seconds of one unit, a number > 0.", fix="--seconds 0.5"
        )
    return seconds


def plan_of(config: ExperimentConfig, seconds: float | None = None) -> Preview:
    """Return the plan of an experiment's search.

    Args:
        config: The experiment. Without a length, each trial counts as one fit.
        seconds: That a trial takes for one unit. Default: unknown.

    Raises:
        MisconfigurationException: The space does not fit the searcher, or the searcher is the user's own.

    Example:
        >>> from lightlib.experiment.file import read
        >>> grid = {"lr": {"type": "log", "minval": -4, "maxval": -1, "count": 4}}
        >>> config = read({"name": "a", "fit": {"trainer": {}}, "hyperparameters": grid,
        ...                "searcher": {"name": "grid", "metric": "val_loss", "max_length": {"epochs": 3}}})
        >>> plan_of(config).trials, plan_of(config).units, plan_of(config).unit
        (4, 12, 'epochs')
    """
    searcher = config.searcher
    if searcher.name is None:
        raise MisconfigurationException(
            f"{config.where('searcher.class_path')}: the searcher {searcher.class_path} decides while it runs.",
            expected="a searcher of lightlib, whose plan is known before.",
            fix="start the experiment with a small max_length, and look at its trials.",
        )
    space = Space(config.hyperparameters, lambda key: config.where(f"hyperparameters.{key}"))
    stopping = searcher.stopping
    brackets = stopping or searcher
    length, unit = _length(config)
    return preview(
        searcher.name,
        max_length=length,
        unit=unit,
        max_trials=len(space.grid_numbers()) if searcher.name == "grid" else searcher.max_trials,
        mode=brackets.mode,  # type: ignore[arg-type]
        divisor=brackets.divisor,
        max_rungs=brackets.max_rungs,
        bracket_rungs=brackets.bracket_rungs,
        num_rungs=searcher.num_rungs,
        stop_once=brackets.stop_once,
        stopping=stopping is not None,
        max_concurrent_trials=searcher.max_concurrent_trials,
        seconds_per_unit=seconds,
        slots_per_trial=max(config.resources.slots_per_trial, 1),
    )


def _length(config: ExperimentConfig) -> tuple[int, str]:
    """Return the length of a full trial and its unit."""
    searcher = config.searcher
    timed = searcher.stopping if searcher.stopping and searcher.stopping.max_time else searcher
    if timed.max_time is not None:
        return int(timed.max_time), timed.time_metric or "units"
    if searcher.max_length is None:
        return 1, "fits"
    return int(searcher.max_length.amount), searcher.max_length.unit or "units"
