"""The actions of `lightlib experiment`, with the options as argparse has read them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import optuna

from lightlib.errors import MisconfigurationException, closest, nearest
from lightlib.experiment.file import ExperimentConfig, read
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.work.folder import FILE, ROOT, ExperimentFolder
from lightlib.experiment.work.logs import as_text
from lightlib.experiment.work.logs import read as lines_of
from lightlib.experiment.work.open import check, open_ledger, open_worker
from lightlib.experiment.work.results import Results, Trial, described
from lightlib.experiment.work.slots import Slots
from lightlib.experiment.work.worker import STOPPED, Worker

_FAILED, _CANCELED = 1, 3  # exit codes
_PAUSE = 0.5  # seconds between two looks for the next attempt of a trial

optuna.logging.set_verbosity(optuna.logging.WARNING)


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
    folder, slots = _folder(options.experiment), Slots.of_machine(options.slots)
    check(folder.config, folder.context, slots)
    return _until_done(folder, folder.config, slots, shlex.join(["lightlib", "experiment", "work", options.experiment]))


def _until_done(folder: ExperimentFolder, config: ExperimentConfig, slots: Slots, again: str) -> int:
    _print(f"{config.name}: {config.searcher.name}, {slots.total} {slots.kind} slots, in {_near(folder.path)}")
    with open_worker(folder, config, slots, _print) as (worker, ledger), _stopping(worker) as received:
        worker.run()
        results, stopped = Results(folder, config, ledger), ledger.noted(STOPPED)
        _print(_summary(results))
    if stopped is not None:
        _print(f"The experiment was ended: {stopped['text']}")
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
    lines = [counts, f"best: trial {best.number}, {results.metric} {best.metric:.6g} after {best.step:,} batches"]
    lines += [f"  {key}: {value}" for key, value in best.hparams.items()]
    checkpoint = results.checkpoint(best)
    if checkpoint is not None:
        lines.append(f"  checkpoint: {_near(checkpoint)}")
    return "\n".join(lines)


def trials(options: argparse.Namespace) -> int:
    """Print the trials of an experiment."""
    folder = _folder(options.experiment)
    with open_ledger(folder, folder.config) as ledger:
        results = Results(folder, folder.config, ledger)
    if options.json:
        print(json.dumps([_plain(one) for one in results.trials]))
        return 0
    metric = folder.config.searcher.metrics[0]
    rows = [("trial", "state", "attempts", metric, "batches", "hyperparameters")]
    for one in results.trials:
        value = "" if one.metric is None else f"{one.metric:.6g}"
        step = "" if one.step is None else f"{one.step:,}"
        rows.append((str(one.number), one.state, str(one.attempts), value, step, described(one.hparams)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [
            text.ljust(width) if at == 1 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=False))
        ]
        print("  ".join([*cells, row[5]]))
    return 0


def _plain(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON has it, in which no number is infinite."""
    metric = trial.metric if trial.metric is None or math.isfinite(trial.metric) else None
    return {**dataclasses.asdict(trial), "metric": metric}


def logs(options: argparse.Namespace) -> int:
    """Print the output of a trial."""
    where, trial, attempt = _trial(options.trial)
    folder = _folder(where)
    found = folder.attempts(trial)
    if attempt is not None:
        found = [one for one in found if one.name == f"attempt-{attempt}"]
    if not found:
        raise MisconfigurationException(
            f"There is no output of {options.trial!r}.",
            expected="a trial and an attempt that have begun.",
            fix=f"lightlib experiment trials {shlex.quote(where)} lists the trials.",
        )
    try:
        pattern = re.compile(options.grep or "")
    except re.error as error:
        raise MisconfigurationException(
            f"--grep is {options.grep!r}: {error}.",
            expected="a regular expression.",
            fix=f"--grep {re.escape(options.grep)!r}",
        ) from None
    with open_ledger(folder, folder.config) as ledger:
        shown = 0
        while shown < len(found) or (options.follow and attempt is None and _continues(folder, ledger, trial)):
            found = found if shown < len(found) else folder.attempts(trial)
            if shown == len(found):
                time.sleep(_PAUSE)
                continue
            path = found[shown]
            print(f"== attempt {path.name.rpartition('-')[2]}")
            follow = partial(_is_running, ledger, trial, path) if options.follow else None
            for line in lines_of(path, follow):
                if options.rank in (None, line.rank) and pattern.search(line.text):
                    print(as_text(line), flush=True)
            shown += 1
    return 0


def _continues(folder: ExperimentFolder, ledger: Ledger, trial: int) -> bool:
    states = {one.number: one.state for one in Results(folder, folder.config, ledger).trials}
    return states[trial] in ("waiting", "running", "paused")


def _is_running(ledger: Ledger, trial: int, folder: Path) -> bool:
    """Whether the attempt with this folder runs."""
    chain = ledger.snapshot().chains[trial]
    return any(one.state == "running" and folder.name == f"attempt-{one.attempt}" for one in chain)


def _folder(text: str) -> ExperimentFolder:
    """Return the folder of an experiment that has begun."""
    for path in (Path(text), Path(ROOT) / text):
        if (path / FILE).is_file():
            return ExperimentFolder(path)
    folders = sorted(one.parent for one in Path(ROOT).glob(f"**/{FILE}"))
    known = [*map(str, folders), *(one.name for one in folders)]
    listed = f", one of {', '.join(map(str, folders))}" if folders else ""
    raise MisconfigurationException(
        f"There is no experiment {text!r}.{nearest(text, known)}",
        expected=f"the folder of an experiment{listed}.",
        fix=f"lightlib experiment trials {shlex.quote(closest(text, known) or 'experiments/NAME')}",
    )


def _trial(text: str) -> tuple[str, int, int | None]:
    """Return experiment, trial and attempt of ``EXPERIMENT/TRIAL[/ATTEMPT]``."""
    words = text.rstrip("/").split("/")
    numbers: list[int] = []
    while words and words[-1].isdecimal() and len(numbers) < 2:
        numbers.insert(0, int(words.pop()))
    if not numbers or not words:
        raise MisconfigurationException(
            f"{text!r} is no trial.",
            expected="EXPERIMENT/TRIAL, with the number of the trial.",
            fix=f"lightlib experiment logs {text}/0",
        )
    return "/".join(words), numbers[0], numbers[1] if len(numbers) > 1 else None


def _near(path: Path) -> Path:
    """Return a path as seen from here, if it is below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _print(text: str) -> None:
    print(text, flush=True)
