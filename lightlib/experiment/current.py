"""The trial that this process belongs to, for programs with a training loop of their own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightlib.errors import InvalidHP, MisconfigurationException
from lightlib.experiment.job import Job
from lightlib.experiment.messages import Messages
from lightlib.experiment.rungs import Rungs

JOB = "LIGHTLIB_TRIAL_JOB"  # a variable: the path of the job of a program


class CurrentTrial:
    """The trial of an experiment that this process runs.

    Outside of an experiment there is one that has no hyperparameters and prints what it reports.

    Args:
        job: The attempt; None outside of an experiment. In a command, SIGTERM sets `should_stop`, and an `InvalidHP`
            that ends the program ends the trial as invalid.
        messages: To the worker; None on ranks other than 0.

    Attributes:
        hparams: The hyperparameters by dotted key.
        checkpoint_dir: The folder for checkpoints of this attempt. For a command it begins as a copy of the folder of
            the attempt before; write a file under another name first, and rename it.
    """

    def __init__(self, job: Job | None, messages: Messages | None) -> None:
        self._job, self._messages, self._stopped, self._step = job, messages, False, 0
        self._rungs = Rungs(job, messages) if job is not None and job.rungs else None
        self.hparams: Mapping[str, Any] = dict(job.hparams) if job else {}
        self.checkpoint_dir = Path(job.folder if job else ".") / "checkpoints"
        if job is not None and job.command and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._stop)
            self._shown, sys.excepthook = sys.excepthook, self._send_invalid

    @property
    def is_of_experiment(self) -> bool:
        """Whether it is a trial of an experiment."""
        return self._job is not None

    @property
    def should_stop(self) -> bool:
        """Whether the program should save a checkpoint and end.

        The trial continues later or on another machine, or the search does not need more of it.
        """
        return self._stopped

    def report(self, step: int, **metrics: float) -> None:
        """Report the metrics of a validation.

        At a length at which the searcher compares trials, it waits for the decision, which may set `should_stop`. A
        program with several processes calls it in each of them, so that all have the same answer.

        Args:
            step: After how many steps of training, counted from the start of the trial, in the unit of the searcher's
                `max_length`.
            metrics: By name; those of the searcher must be among them.

        Raises:
            MisconfigurationException: They are not.
        """
        self._step = step
        if self._job is None:
            shown = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
            sys.stdout.write(f"step {step}: {shown}\n")
            return
        missing = [name for name in (self._job.metric, *self._job.more_metrics) if name not in metrics]
        if missing:
            error = {
                "what": f"The searcher's metric is {missing[0]!r}; reported were: {', '.join(metrics)}.",
                "expected": "a report of the metric of the searcher.",
                "fix": f"report({step}, {missing[0]}=…), or another searcher.metric.",
            }
            if self._messages is not None:
                self._messages.send("unlogged", error=error)
            raise MisconfigurationException(**error)
        if self._messages is not None:
            values = {name: float(value) for name, value in metrics.items()}
            self._messages.send("validated", step=step, epoch=None, metrics=values)
        length = metrics.get(self._job.unit or "", step)
        if self._rungs is not None and self._rungs.reached(length):
            decision = self._rungs.decision(length, float(metrics[self._job.metric]), lambda: self._stopped)
            self._rungs.pass_by(length)
            self._stopped |= decision in ("stop", "complete")

    def report_result(self, value: float | Mapping[str, float]) -> None:
        """Report the value that a function has returned, one step after its last report.

        Args:
            value: The metric of the searcher; several of them by name.
        """
        name = self._job.metric if self._job is not None else "value"
        self.report(self._step + 1, **(value if isinstance(value, Mapping) else {name: value}))

    def _send_invalid(self, kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        if self._job is not None and isinstance(error, InvalidHP):
            Messages(Path(self._job.folder)).send("invalid", text=str(error))  # from any rank
        self._shown(kind, error, traceback)

    def _stop(self, number: int, frame: Any) -> None:
        self._stopped = True


_known: list[CurrentTrial] = []


def current() -> CurrentTrial:
    """Return the trial that this process belongs to.

    Example:
        >>> trial = current()
        >>> lr = trial.hparams.get("lr", 0.1)
        >>> trial.report(100, val_loss=0.25)
        step 100: val_loss 0.25
    """
    if not _known:
        path = os.environ.get(JOB)
        job = Job.from_json(Path(path).read_text()) if path else None
        _known.append(CurrentTrial(job, messages_of(job) if job else None))
    return _known[0]


def is_trial() -> bool:
    """Whether this process belongs to a trial."""
    return JOB in os.environ or any(trial.is_of_experiment for trial in _known)


def messages_of(job: Job) -> Messages | None:
    """Return the messages of this process to its worker; None on ranks other than 0."""
    first = os.environ.get("RANK", "0") == "0" and os.environ.get("LOCAL_RANK", "0") == "0"
    return Messages(Path(job.folder)) if first else None


def set_current(job: Job, messages: Messages | None) -> None:
    """Make an attempt the one that `current` returns in this process."""
    _known[:] = [CurrentTrial(job, messages)]
