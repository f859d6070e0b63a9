"""`lightlib experiment`: run the trials of an experiment file, and look at them."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from lightlib.errors import MisconfigurationException

EPILOG = """The same `run` starts an experiment, and continues one that was stopped or killed.

examples
  lightlib experiment run search.yaml
  lightlib experiment run search.yaml --slots 2 --config searcher.max_concurrent_trials=2
  lightlib experiment work experiments/search
  lightlib experiment trials experiments/search
  lightlib experiment logs experiments/search/3
"""


_HERE = "lightlib.command.experiments"
_ACTIONS = {  # imported on use: they need Optuna
    "run": f"{_HERE}.running:run",
    "work": f"{_HERE}.running:work",
    "logs": f"{_HERE}.logs:logs",
    "list": f"{_HERE}.looking:experiments",
    **{name: f"{_HERE}.looking:{name}" for name in ("describe", "trials", "best", "checkpoints")},
    **{name: f"{_HERE}.ordering:{name}" for name in ("pause", "resume", "cancel", "kill", "retry")},
    "continue": f"{_HERE}.ordering:extend",
    "report": f"{_HERE}.report:report",
}


def add_commands(commands: Any) -> None:
    """Add the commands of `lightlib experiment`."""
    run = commands.add_parser("run", help="run the trials of a file until all are done", allow_abbrev=False)
    run.add_argument("file", metavar="FILE", help="the experiment file")
    run.add_argument("context", metavar="CONTEXT", nargs="?", help="the folder of your code (default: the file's)")
    run.add_argument(
        "--root", metavar="FOLDER", default="experiments", help="of all experiments (default: %(default)s)"
    )
    run.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[], help="a value in place of the file's (repeatable)"
    )
    work = commands.add_parser("work", help="run trials of an experiment that has begun", allow_abbrev=False)
    work.add_argument("experiment", metavar="EXPERIMENT", help="its folder")
    for one in (run, work):
        one.add_argument("--slots", default="auto", help="auto, how many (2), or which (0,1,3); default: %(default)s")
    listed = commands.add_parser("list", help="the experiments that there are", allow_abbrev=False)
    listed.add_argument("--root", metavar="FOLDER", default="experiments", help="of them (default: %(default)s)")
    listed.add_argument("--label", help="only those with this label")
    best = commands.add_parser("best", help="the best trial and its checkpoint", allow_abbrev=False)
    best.add_argument("--by", metavar="METRIC", help="another metric of the validations; less is better")
    best.add_argument("--largest", action="store_true", help="more of the metric of --by is better")
    best.add_argument("--copy", metavar="FILE", help="copy the checkpoint")
    for name, text, help_text in (
        ("describe", "EXPERIMENT", "the settings and the state of an experiment"),
        ("trials", "EXPERIMENT", "the trials of an experiment"),
        ("best", "EXPERIMENT", ""),
        ("checkpoints", "EXPERIMENT[/TRIAL]", "the checkpoints of an experiment or a trial"),
        ("report", "EXPERIMENT", "one page with the trials and their curves, for a browser"),
        ("pause", "EXPERIMENT", "let its trials save a checkpoint and give back their slots"),
        ("resume", "EXPERIMENT", "let a paused experiment continue"),
        ("cancel", "EXPERIMENT[/TRIAL]", "end an experiment or a trial after a checkpoint"),
        ("kill", "EXPERIMENT[/TRIAL]", "end an experiment or a trial at once"),
    ):
        known = commands.choices.get(name)
        one = known or commands.add_parser(name, help=help_text, allow_abbrev=False)
        one.add_argument("experiment", metavar=text, help="its folder")
    page = commands.choices["report"]
    page.add_argument("-o", "--output", metavar="FILE", help="the page (default: report.html in its folder)")
    more = commands.add_parser("continue", help="let an experiment have more trials", allow_abbrev=False)
    more.add_argument("experiment", metavar="EXPERIMENT", help="its folder")
    more.add_argument("--max-trials", metavar="N", type=int, required=True, help="as many in all")
    again = commands.add_parser("retry", help="let a trial that has failed run again", allow_abbrev=False)
    again.add_argument("trial", metavar="EXPERIMENT/TRIAL", help="the folder, and the number of the trial")
    for name in ("list", "describe", "trials", "best", "checkpoints"):
        commands.choices[name].add_argument("--json", action="store_true", help="for programs")
    logs = commands.add_parser("logs", help="the output of a trial, over its attempts", allow_abbrev=False)
    logs.add_argument("trial", metavar="EXPERIMENT/TRIAL[/ATTEMPT]", help="its folder, and the number of the trial")
    logs.add_argument("--rank", type=int, help="of this process only")
    logs.add_argument("--grep", metavar="PATTERN", help="only lines in which this regular expression is found")
    logs.add_argument("--follow", action="store_true", help="wait for more until the trial has ended")
    for name in _ACTIONS:
        commands.choices[name].set_defaults(action=name)


def run(options: argparse.Namespace) -> int:
    """Run one of the commands; return its exit status."""
    if importlib.util.find_spec("optuna") is None:
        raise MisconfigurationException(
            "Experiments need Optuna, which is not installed.",
            expected="the package optuna, version 4.3 or newer.",
            fix='pip install "optuna>=4.3"',
        )
    import optuna  # optional: optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    module, _, name = _ACTIONS[options.action].partition(":")
    action: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(module), name)
    return action(options)
