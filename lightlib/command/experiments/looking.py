"""`lightlib experiment list`, `describe`, `trials`, `best`, `checkpoints`: they change nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lightlib.checkpoint.storage import filesystem
from lightlib.command.experiments.trial_names import folder_of, near, trial_or_all
from lightlib.errors import MisconfigurationException, closest, nearest
from lightlib.experiment.machine.usage import Usage, usage_of
from lightlib.experiment.store import Store
from lightlib.experiment.work.checkpoints import checkpoints_of, messages_of
from lightlib.experiment.work.folder import FILE, ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.results import Results, Trial, described

_FAILED = 1  # exit code


def results_of(folder: ExperimentFolder) -> Results:
    """Return the results of an experiment at this moment."""
    with open_ledger(folder, folder.config) as ledger:
        return Results(folder, folder.config, ledger)


def experiments(options: argparse.Namespace) -> int:
    """Print the experiments below a folder."""
    rows = [("experiment", "state", "searcher", "trials", "metric", "best", "labels")]
    entries = []
    for path in sorted(file.parent for file in Path(options.root).glob(f"**/{FILE}")):
        folder = ExperimentFolder(path)
        config, results = folder.config, results_of(folder)
        if options.label is not None and options.label not in config.labels:
            continue
        best = results.best
        entries.append(
            {
                "path": str(path),
                "name": config.name,
                "state": results.state,
                "searcher": config.searcher.name or config.searcher.class_path,
                "trials": dict(results.states),
                "metric": results.metric,
                "best": None if best is None else as_plain(best),
                "labels": [*config.labels],
            }
        )
        value = "" if best is None else ", ".join(f"{metric:.6g}" for metric in best.metrics.values())
        names = (
            str(near(path)),
            results.state,
            config.searcher.name or str(config.searcher.class_path),
            str(len(results.trials)),
        )
        rows.append((*names, ", ".join(results.metrics), value, ", ".join(config.labels)))
    if options.json:
        print(json.dumps(entries))
    elif len(rows) == 1:
        print(f"There is no experiment below {options.root!r}. `lightlib experiment run FILE` begins one.")
    else:
        _print_table(rows, right=(3, 5))
    return 0


def describe(options: argparse.Namespace) -> int:
    """Print the settings and the state of an experiment."""
    folder = folder_of(options.experiment)
    config, results = folder.config, results_of(folder)
    best = results.best
    facts = {
        "name": config.name,
        "description": config.description,
        "labels": [*config.labels],
        "folder": str(near(folder.path)),
        "state": results.state,
        "trials": dict(results.states),
        "searcher": config.searcher.plain(),
        "seed": config.reproducibility.experiment_seed,
        "slots per trial": config.resources.slots_per_trial,
        "best": None if best is None else as_plain(best),
        "front": [trial.number for trial in results.front] if len(results.metrics) > 1 else [],
    }
    if options.json:
        print(json.dumps(facts))
        return 0
    for name, value in facts.items():
        if value not in (None, "", [], {}):
            print(f"{name + ':':<17}{_text(value)}")
    return 0


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(entry)}" for key, entry in value.items() if entry not in (None, [], {}, ()))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def trials(options: argparse.Namespace) -> int:
    """Print the trials of an experiment."""
    folder = folder_of(options.experiment)
    results, profiled = results_of(folder), folder.config.profiling.enabled
    used = {trial.number: usage_of(folder.attempts(trial.number)) for trial in results.trials if profiled}
    if options.json:
        usage = {number: {"usage": measured._asdict()} for number, measured in used.items()}
        print(json.dumps([{**as_plain(trial), **usage.get(trial.number, {})} for trial in results.trials]))
        return 0
    heads = ("peak MB", "CPU %") if profiled else ()
    rows = [("trial", "state", "attempts", *results.metrics, "batches", *heads, "hyperparameters")]
    for result in results.trials:
        values = [f"{result.metrics[name]:.6g}" if result.metrics else "" for name in results.metrics]
        step = "" if result.step is None else f"{result.step:,}"
        more = _of_usage(used[result.number]) if profiled else ()
        rows.append(
            (str(result.number), result.state, str(result.attempts), *values, step, *more, described(result.hparams))
        )
    _print_table(rows, right=(0, *range(2, 4 + len(results.metrics) + len(heads))))
    return 0


def _of_usage(usage: Usage) -> tuple[str, str]:
    memory, cpu = usage.peak_memory_bytes, usage.mean_cpu_percent
    return "" if memory is None else f"{memory / 1e6:,.0f}", "" if cpu is None else f"{cpu:.0f}"


def best(options: argparse.Namespace) -> int:
    """Print the best trial and its checkpoint, which may be copied; with several metrics, the trials of the front."""
    folder = folder_of(options.experiment)
    results = results_of(folder)
    if len(results.metrics) > 1 and options.by is None:
        return _front(results, options)
    best_trial = results.best if options.by is None else _best_by(folder, results, options)
    if best_trial is None:
        print("no trial has completed")
        return _FAILED
    checkpoint = results.checkpoint(best_trial)
    if options.copy is not None:
        _copy(checkpoint, Path(options.copy), best_trial)
    if options.json:
        print(json.dumps({**as_plain(best_trial), "checkpoint": checkpoint and str(checkpoint)}))
        return 0
    metric = options.by or results.metric
    print(f"trial {best_trial.number}, {metric} {best_trial.metric:.6g} after {best_trial.step:,} batches")
    for key, value in best_trial.hparams.items():
        print(f"  {key}: {value}")
    if checkpoint is not None:
        print(f"  checkpoint: {near(checkpoint)}")
    return 0


def _front(results: Results, options: argparse.Namespace) -> int:
    """Print the non-dominated trials."""
    pairs = [(trial, results.checkpoint(trial)) for trial in results.front]
    if options.copy is not None:
        raise MisconfigurationException(
            f"--copy: {len(pairs)} trials are best, each by other metrics.",
            expected="one metric by which the trial is chosen.",
            fix=f"--by {shlex.quote(results.metric)}",
        )
    if options.json:
        print(json.dumps([{**as_plain(trial), "checkpoint": path and str(path)} for trial, path in pairs]))
    elif pairs:
        rows = [("trial", *results.metrics, "batches", "hyperparameters", "checkpoint")]
        for trial, path in pairs:
            values = (f"{value:.6g}" for value in trial.metrics.values())
            where = "" if path is None else str(near(path))
            rows.append((str(trial.number), *values, f"{trial.step:,}", described(trial.hparams), where))
        _print_table(rows, right=range(len(results.metrics) + 2))
    else:
        print("no trial has completed")
    return 0 if pairs else _FAILED


def _best_by(folder: ExperimentFolder, results: Results, options: argparse.Namespace) -> Trial | None:
    """Return the best trial by another metric of its validations."""
    sign = -1.0 if options.largest else 1.0
    candidates, names = [], set[str]()
    for trial in results.trials:
        for message in messages_of(folder, trial.number, "validated"):
            step, metrics = message["step"], message["metrics"]
            names.update(metrics)
            value = metrics.get(options.by)
            if value is not None and math.isfinite(value):
                chosen = dataclasses.replace(trial, metric=value, step=step, metrics={options.by: value})
                candidates.append((sign * value, trial.number, step, chosen))
    if not candidates and names:
        raise MisconfigurationException(
            f"No trial has validated {options.by!r}.{nearest(options.by, sorted(names))}",
            expected=f"one of {', '.join(sorted(names))}.",
            fix=f"--by {shlex.quote(closest(options.by, sorted(names)) or results.metric)}",
        )
    return min(candidates)[-1] if candidates else None


def _copy(checkpoint: Path | str | None, target: Path, trial: Trial) -> None:
    if checkpoint is None:
        raise MisconfigurationException(
            f"Trial {trial.number} has no checkpoint.",
            expected="a checkpoint of its best validation, or its last one.",
            fix="lightlib experiment checkpoints lists those that there are.",
        )
    if target.exists():
        raise MisconfigurationException(
            f"--copy {str(target)!r}: this file exists.",
            expected="a path that does not exist.",
            fix="another path, or delete the file.",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    filesystem.copy(checkpoint, target)


def checkpoints(options: argparse.Namespace) -> int:
    """Print the checkpoints that there are."""
    where, trial = trial_or_all(options.experiment)
    folder = folder_of(where)
    results = results_of(folder)
    numbers = [result.number for result in results.trials if trial in (None, result.number)]
    store = Store(folder.path, folder.config)
    saved = [checkpoint for number in numbers for checkpoint in checkpoints_of(folder, store, number, results.metric)]
    if options.json:
        print(
            json.dumps(
                [
                    {**dataclasses.asdict(checkpoint), "path": str(checkpoint.path), "bytes": checkpoint.bytes}
                    for checkpoint in saved
                ]
            )
        )
        return 0
    rows = [("trial", "batches", results.metric, "MB", "checkpoint")]
    for checkpoint in saved:
        value = "" if checkpoint.metric is None else f"{checkpoint.metric:.6g}"
        rows.append(
            (
                str(checkpoint.trial),
                f"{checkpoint.step:,}",
                value,
                f"{checkpoint.bytes / 1e6:,.1f}",
                str(near(checkpoint.path)),
            )
        )
    _print_table(rows, right=(0, 1, 2, 3))
    return 0


def as_plain(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON has it, in which no number is infinite."""
    metrics = {name: value if math.isfinite(value) else None for name, value in trial.metrics.items()}
    metric = trial.metric if trial.metric is None or math.isfinite(trial.metric) else None
    return {**dataclasses.asdict(trial), "metric": metric, "metrics": metrics}


def _print_table(rows: Sequence[tuple[str, ...]], right: Collection[int]) -> None:
    """Print rows with aligned columns; the numbers of those that are aligned at the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            text.rjust(width) if at in right else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
