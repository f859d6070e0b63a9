"""`lightlib experiment pause`, `resume`, `cancel`, `kill`, `continue` and `retry`."""

from __future__ import annotations

import argparse
import shlex

from lightlib.command.experiments.trial_names import folder_of, trial_or_all, worker_of
from lightlib.errors import MisconfigurationException
from lightlib.experiment.ledger.orders import Order, give_order, orders_of
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.results import Results


def pause(options: argparse.Namespace) -> int:
    """Let all trials save a checkpoint and give back their slots."""
    return _order(options, "pause", "paused: running trials save a checkpoint; `lightlib experiment resume` continues")


def resume(options: argparse.Namespace) -> int:
    """Let a paused experiment continue."""
    return _order(options, "run", "continues, with the workers that run; `lightlib experiment work` is another one")


def cancel(options: argparse.Namespace) -> int:
    """End an experiment or a trial after a checkpoint."""
    return _order(options, "cancel", "canceled: running trials save a checkpoint and end")


def kill(options: argparse.Namespace) -> int:
    """End an experiment or a trial at once."""
    return _order(options, "kill", "killed: running trials end at once")


def extend(options: argparse.Namespace) -> int:
    """Let an experiment have more trials."""
    folder = folder_of(options.experiment)
    folder.extend(options.max_trials)
    print(f"{options.experiment} has {options.max_trials} trials now. {worker_of(folder)}")
    return 0


def retry(options: argparse.Namespace) -> int:
    """Let a trial that has failed or was canceled run again, from its newest checkpoint."""
    where, trial = trial_or_all(options.experiment)
    if trial is None:
        raise MisconfigurationException(
            f"{options.experiment!r} is no trial.",
            expected="EXPERIMENT/TRIAL, with the number of the trial.",
            fix=f"lightlib experiment retry {shlex.quote(where)}/0",
        )
    folder = folder_of(where)
    with open_ledger(folder, folder.config) as ledger:
        state = _state_of(Results(folder, folder.config, ledger), where, trial)
        if orders_of(ledger).is_over:
            print(f"{where} is canceled: no trial of it runs again.")
            return 0
        if state not in ("errored", "canceled"):
            print(f"{options.experiment} is {state}; only a trial that has failed or was canceled is tried again.")
            return 0
        give_order(ledger, "run", trial)
        ledger.add(ledger.snapshot().last(trial).successor("retried"))
    print(f"{options.experiment} is tried again. {worker_of(folder)}")
    return 0


def _state_of(results: Results, where: str, trial: int) -> str:
    """Return the state of a trial."""
    states = {result.number: result.state for result in results.trials}
    if trial not in states:
        raise MisconfigurationException(
            f"There is no trial {trial} in {where!r}, which has {len(states)}.",
            expected="the number of a trial that has been created.",
            fix=f"lightlib experiment trials {shlex.quote(where)} lists them.",
        )
    return states[trial]


def _order(options: argparse.Namespace, order: Order, done: str) -> int:
    name = options.experiment
    where, trial = trial_or_all(name) if order in ("cancel", "kill") else (name, None)
    folder = folder_of(where)
    with open_ledger(folder, folder.config) as ledger:
        results = Results(folder, folder.config, ledger)
        state = results.state if trial is None else _state_of(results, where, trial)
        if state not in ("running", "waiting", "paused"):
            print(f"{name} is {state}; there is nothing to {'resume' if order == 'run' else order}.")
            return 0
        if order == "run" and orders_of(ledger).experiment == "run":
            print(f"{name} is not paused.")
            return 0
        give_order(ledger, order, trial)
    print(f"{name} {'is ' if order != 'run' else ''}{done}.")
    return 0
