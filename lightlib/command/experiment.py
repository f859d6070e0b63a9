"""`lightlib experiment`: run the trials of an experiment file, and look at them."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from lightlib import optional

EPILOG = """The same `run` starts an experiment, and continues one that was stopped or killed.

examples
  lightlib experiment run search.yaml
  lightlib experiment run search.yaml --slots 2 --config searcher.max_concurrent_trials=2
  lightlib experiment work experiments/search
  lightlib experiment trials experiments/search
  lightlib experiment logs experiments/search/3
"""


_HERE = "lightlib.command.experiments"
_ONE, _PART, _ANY = "EXPERIMENT", "EXPERIMENT[/TRIAL]", "[EXPERIMENT …]"
_ACTIONS = {  # by name: module and function, imported on use, because they need Optuna; first argument; help
    "run": ("running:run", "FILE", "run the trials of a file until all are done"),
    "create": ("running:create", "FILE", "begin an experiment that workers run"),
    "work": ("working:work", _ANY, "run trials of experiments that have begun"),
    "list": ("looking:experiments", "", "the experiments that there are"),
    "describe": ("looking:describe", _ONE, "the settings and the state of an experiment"),
    "trials": ("looking:trials", _ONE, "the trials of an experiment"),
    "watch": ("watching:watch", _ONE, "the state of an experiment while it runs"),
    "open": ("watching:dashboard", _ONE, "optuna-dashboard on this machine, until Ctrl-C"),
    "logs": ("logs:logs", "EXPERIMENT/TRIAL[/ATTEMPT]", "the output of a trial, over its attempts"),
    "best": ("looking:best", _ONE, "the best trial and its checkpoint"),
    "report": ("report:report", _ONE, "one page with the trials and their curves, for a browser"),
    "checkpoints": ("looking:checkpoints", _PART, "the checkpoints of an experiment or a trial"),
    "pause": ("ordering:pause", _ONE, "let its trials save a checkpoint and give back their slots"),
    "resume": ("ordering:resume", _ONE, "let a paused experiment continue"),
    "cancel": ("ordering:cancel", _PART, "end an experiment or a trial after a checkpoint"),
    "kill": ("ordering:kill", _PART, "end an experiment or a trial at once"),
    "continue": ("ordering:extend", _ONE, "let an experiment have more trials"),
    "retry": ("ordering:retry", "EXPERIMENT/TRIAL", "let a trial that has failed run again"),
    "fork": ("forking:fork", "EXPERIMENT[/TRIAL]|CHECKPOINT", "begin an experiment from another one"),
}
INSTEAD = {  # commands of Determined that lightlib does not have
    "archive": "mv experiments/NAME archive/NAME, because an experiment is its folder",
    "move": "mv experiments/NAME experiments/WORKSPACE/PROJECT/NAME, because an experiment is its folder",
    "delete": "rm -r experiments/NAME, because an experiment is its folder",
    "label": "change `labels:` in its file, and run it again",
    "set-gc": "change `checkpoint_storage:` in its file, and run it again",
    "download": "lightlib experiment best EXPERIMENT --copy FILE",
}


def add_commands(commands: Any) -> None:
    """Add the commands of `lightlib experiment`."""
    parsers = {}
    for name, (_, first, about) in _ACTIONS.items():
        parser = parsers[name] = commands.add_parser(name, help=about, allow_abbrev=False)
        parser.set_defaults(action=name)
        if first == "FILE":
            parser.add_argument("file", metavar=first, help="the experiment file")
        elif first == _ANY:
            parser.add_argument("experiments", metavar=_ONE, nargs="*", help="its folder; default: those of --pool")
        elif first:
            parser.add_argument("experiment", metavar=first, help="its folder, and the number of a trial")
    for name in ("run", "create"):
        context = "the folder of your code (default: the file's)"
        parsers[name].add_argument("context", metavar="CONTEXT", nargs="?", help=context)
        storage = "a database for the ledger of many workers (default: the experiment's folder)"
        parsers[name].add_argument("--storage", metavar="URL", help=storage)
    run_on = "the engine of the workers (default: this process)"
    parsers["run"].add_argument("--on", choices=("local", "slurm", "kubernetes", "ray"), default="local", help=run_on)
    workers = "how many a cluster starts (default: %(default)s)"
    parsers["run"].add_argument("--workers", metavar="N", type=int, default=1, help=workers)
    address = "of a Ray cluster (default: this machine alone)"
    parsers["run"].add_argument("--address", metavar="HOST:PORT", help=address)
    pool = "only experiments with this resource_pool, or with none"
    parsers["work"].add_argument("--pool", metavar="NAME", help=pool)
    for name in ("run", "create", "work", "list"):
        root = "of all experiments (default: %(default)s)"
        parsers[name].add_argument("--root", metavar="FOLDER", default="experiments", help=root)
    for name in ("run", "create", "fork"):
        value = "a value in place of the file's (repeatable)"
        parsers[name].add_argument("--config", metavar="KEY=VALUE", action="append", default=[], help=value)
    for name in ("run", "work"):
        slots = "auto, how many (2), or which (0,1,3); default: %(default)s"
        parsers[name].add_argument("--slots", default="auto", help=slots)
        patience = "how long a database may not answer (default: %(default)s)"
        parsers[name].add_argument("--storage-patience", metavar="S", type=float, default=600.0, help=patience)
        until = "end as after Ctrl-C: after 90m, 2h30m or 1d, at 18:30, or at 2026-11-29T08:00; exit code 124"
        parsers[name].add_argument("--until", metavar="TIME", help=until)
    for name in ("list", "describe", "trials", "best", "checkpoints", "logs"):
        parsers[name].add_argument("--json", action="store_true", help="for programs")
    parsers["list"].add_argument("--label", help="only those with this label")
    parsers["fork"].add_argument("--name", help="of the new experiment (default: the old one with a number)")
    parsers["continue"].add_argument("--max-trials", metavar="N", type=int, required=True, help="as many in all")
    best = parsers["best"]
    best.add_argument("--by", metavar="METRIC", help="another metric of the validations; less is better")
    best.add_argument("--largest", action="store_true", help="more of the metric of --by is better")
    best.add_argument("--copy", metavar="FILE", help="copy the checkpoint")
    page = "the page (default: report.html in its folder)"
    parsers["report"].add_argument("-o", "--output", metavar="FILE", help=page)
    logs = parsers["logs"]
    logs.add_argument("--rank", type=int, help="of this process only")
    logs.add_argument("--grep", metavar="PATTERN", help="only lines in which this regular expression is found")
    logs.add_argument("--follow", action="store_true", help="wait for more until the trial has ended")
    dashboard = parsers["open"]
    dashboard.add_argument("--host", default="127.0.0.1", help="to listen on (default: %(default)s)")
    dashboard.add_argument("--port", type=int, default=8080, help="default: %(default)s")
    dashboard.add_argument(
        "--allow-remote", action="store_true", help="a host that other machines reach: there is no login"
    )


def run(options: argparse.Namespace) -> int:
    """Run one of the commands; return its exit status."""
    optuna = optional.load("optuna", "`lightlib experiment`")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    module, _, name = _ACTIONS[options.action][0].partition(":")
    action: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(f"{_HERE}.{module}"), name)
    return action(options)
