"""The end of an experiment on the command line: its results, its page, and logs that are removed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from lightlib import optional
from lightlib.command.experiments.trial_names import near
from lightlib.errors import LightlibError
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.orders import orders_of
from lightlib.experiment.ledger.snapshot import ENDED
from lightlib.experiment.report.page import write_report
from lightlib.experiment.work.checkpoints import collect
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.results import Results, Trial, counted, described
from lightlib.experiment.work.retention import remove_old_logs

FAILED, CANCELED = 1, 3  # exit codes


def conclude(folder: ExperimentFolder, config: ExperimentConfig, ledger: Ledger) -> int:
    """Print the results of an experiment, and if it has ended delete checkpoints and write its page; return a code."""
    results, orders = Results(folder, config, ledger), orders_of(ledger)
    printed(_summary(folder, results))
    if results.state in ENDED:
        ended = [trial.number for trial in results.trials if trial.state in ENDED]
        try:
            collect(folder, config, ended, at_end=True)
        except LightlibError as error:  # the same command deletes them
            printed(str(error))
        _write_page(folder, config, ledger)
        remove_logs(folder, config, ledger)
    if orders.is_over:
        printed(f"The experiment was ended: {orders.text}" if orders.text else "The experiment was canceled.")
        return CANCELED
    return 0 if results.best is not None else FAILED


def remove_logs(folder: ExperimentFolder, config: ExperimentConfig, ledger: Ledger) -> None:
    """Remove the logs that are older than the experiment keeps them."""
    days = config.retention_policy.log_retention_days
    if days < 0:
        return
    try:
        now = datetime.now()  # noqa: DTZ005  as the times of the ledger
        removed = remove_old_logs(folder, Results(folder, config, ledger), days, now)
    except OSError as error:  # the next worker tries again
        printed(f"Old logs were not removed: {error}")
        return
    if removed:
        printed(f"The logs of trial {_first(removed)} were removed, after retention_policy.log_retention_days: {days}.")


def _write_page(folder: ExperimentFolder, config: ExperimentConfig, ledger: Ledger) -> None:
    if not optional.is_installed("plotly"):
        printed(f"There is no page about it: {optional.install('plotly')}, and run `lightlib experiment report`.")
        return
    try:
        printed(f"page: {near(write_report(folder, config, ledger))}")
    except (LightlibError, OSError) as error:  # the results are safe, whatever is wrong with the page
        printed(str(error))


def _summary(folder: ExperimentFolder, results: Results) -> str:
    lines = [counted(results)]
    failed = [trial.number for trial in results.trials if trial.state == "errored"]
    if failed:
        words = shlex.join(["lightlib", "experiment", "logs", f"{near(folder.path)}/{failed[0]}"])
        lines.append(f"failed: trial {_first(failed)}; see {words}")
    stopped = [trial.number for trial in results.trials if trial.state == "stopped"]
    paused = [number for number in stopped if results.snapshot.state_of(number) == "paused"]
    if paused:  # they are shown as stopped once the search has ended
        lines.append(f"paused at the end: trial {_first(paused)}; the search continues none of them")
    best = results.best
    if best is None:
        return "\n".join([*lines, "no trial has completed"])
    if len(results.metrics) > 1:
        return "\n".join([*lines, *(f"best: {_on_front(trial)}" for trial in results.front)])
    lines.append(f"best: trial {best.number}, {results.metric} {best.metric:.6g} after {best.step:,} batches")
    lines += [f"  {key}: {value}" for key, value in best.hparams.items()]
    try:
        checkpoint = results.checkpoint(best)
    except LightlibError as error:
        checkpoint = str(error)
    if checkpoint is not None:
        lines.append(f"  checkpoint: {near(checkpoint)}")
    return "\n".join(lines)


def _first(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:10]))}{' …' * (len(numbers) > 10)}"


def _on_front(trial: Trial) -> str:
    values = ", ".join(f"{name} {value:.6g}" for name, value in trial.metrics.items())
    return f"trial {trial.number}, {values} after {trial.step:,} batches with {described(trial.hparams)}"


def printed(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)
