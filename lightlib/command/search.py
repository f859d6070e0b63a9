"""`lightlib search preview`: the plan of a search, from its experiment file; runs nothing."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path
from typing import Any

from lightlib.errors import MisconfigurationException, closest, nearest
from lightlib.experiment.experiment_plan import plan_of

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
        beside = [str(neighbor) for neighbor in Path(options.file).parent.glob("*.y*ml")]
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
