"""`lightlib experiment run` and `work`: run trials until there are none left."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightlib.command.experiments.names import folder_of, near
from lightlib.errors import MisconfigurationException, closest, nearest
from lightlib.experiment.file import ExperimentConfig, read
from lightlib.experiment.ledger.orders import orders_of
from lightlib.experiment.ledger.snapshot import ENDED
from lightlib.experiment.work.checkpoints import collect
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.open import check, open_worker
from lightlib.experiment.work.results import Results, Trial, described
from lightlib.experiment.work.slots import Slots
from lightlib.experiment.work.worker import Worker

_FAILED, _CANCELED = 1, 3  # exit codes


def run(options: argparse.Namespace) -> int:
    """Begin or continue an experiment, and work on it until it has ended."""
    path = Path(options.file)
    if not path.is_file():
        beside = [str(one) for one in path.parent.glob("*.y*ml")]
        raise MisconfigurationException(
            f"There is no file {options.file!r}.{nearest(options.file, beside)}",
            expected=f"an experiment file, seen from {Path.cwd()}.",
            fix=f"lightlib experiment run {shlex.quote(closest(options.file, beside) or 'search.yaml')}",
        )
    config, slots = read(path, options.config), Slots.of_machine(options.slots)
    folder = ExperimentFolder.of(config, options.root)
    context = Path(options.context) if options.context else path.parent
    check(config, context, slots)
    words = [word for one in options.config for word in ("--config", one)]
    more = [options.context] if options.context else []
    again = shlex.join(["lightlib", "experiment", "run", options.file, *more, *words])
    return _until_done(folder, folder.begin(config, context), slots, again)


def work(options: argparse.Namespace) -> int:
    """Work on an experiment that has begun."""
    folder, slots = folder_of(options.experiment), Slots.of_machine(options.slots)
    check(folder.config, folder.context, slots)
    return _until_done(folder, folder.config, slots, shlex.join(["lightlib", "experiment", "work", options.experiment]))


def _until_done(folder: ExperimentFolder, config: ExperimentConfig, slots: Slots, again: str) -> int:
    _print(f"{config.name}: {config.searcher.name}, {slots.total} {slots.kind} slots, in {near(folder.path)}")
    with open_worker(folder, config, slots, _print) as (worker, ledger), _stopping(worker) as received:
        worker.run()
        results, orders = Results(folder, config, ledger), orders_of(ledger)
        _print(_summary(results))
        if results.state in ENDED:
            ended = [one.number for one in results.trials if one.state in ENDED]
            collect(folder, config, ended, at_end=True)
    if orders.is_over:
        _print(f"The experiment was canceled{f': {orders.text}' if orders.text else '.'}")
        return _CANCELED
    if received:
        _print(f"To continue: {again}")
        return 128 + received[0]
    return 0 if results.best is not None else _FAILED


@contextmanager
def _stopping(worker: Worker) -> Iterator[list[int]]:
    """Let Ctrl-C and SIGTERM stop a worker; yields the signals that have arrived."""
    received: list[int] = []

    def stop(number: int, _: Any) -> None:
        received.append(number)
        if len(received) > 2:
            os._exit(128 + received[0])
        worker.stop()
        if len(received) == 1:
            _print("\nStopping: trials save a checkpoint after their present step. Ctrl-C again ends them at once.")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(results: Results) -> str:
    counts = ", ".join(f"{number} {state}" for state, number in sorted(results.states.items())) or "no trials"
    best = results.best
    if best is None:
        return f"{counts}; no trial has completed"
    if len(results.metrics) > 1:
        return "\n".join([counts, *(f"best: {_on_front(one)}" for one in results.front)])
    lines = [counts, f"best: trial {best.number}, {results.metric} {best.metric:.6g} after {best.step:,} batches"]
    lines += [f"  {key}: {value}" for key, value in best.hparams.items()]
    checkpoint = results.checkpoint(best)
    if checkpoint is not None:
        lines.append(f"  checkpoint: {near(checkpoint)}")
    return "\n".join(lines)


def _on_front(trial: Trial) -> str:
    values = ", ".join(f"{name} {value:.6g}" for name, value in trial.metrics.items())
    return f"trial {trial.number}, {values} after {trial.step:,} batches with {described(trial.hparams)}"


def _print(text: str) -> None:
    print(text, flush=True)
