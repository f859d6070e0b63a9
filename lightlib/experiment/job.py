"""Job: all that the process of an attempt needs, as plain values."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHECKPOINT_STORAGE = "LIGHTLIB_CHECKPOINT_STORAGE"  # a variable of trials: the keys of the store of their checkpoints
STORAGE = "LIGHTLIB_STORAGE"  # a variable of workers: their database, perhaps with its password
PASSWORDS = (STORAGE, "PGPASSWORD")  # variables that trials do not inherit
FUNCTION = "lightlib.experiment.trial.function"  # the module that calls a function as a trial
CHECKPOINTS = "checkpoints"  # the folder of an attempt's checkpoints, unless they are in a store
JOB_FILE = "job.json"  # in the folder of an attempt that is a program
_TUPLES = ("command", "container", "earlier", "rungs", "more_metrics")


@dataclass(frozen=True)
class Job:
    """One attempt of a trial, as its process gets it.

    Attributes:
        trial: The number of the trial.
        attempt: The number of the attempt within the trial.
        folder: The folder of the attempt, which is the process's working directory.
        context: The copy of the user's code, which is first in ``sys.path``.
        hparams: The hyperparameters by dotted key.
        metric: The metric by which trials are compared.
        smaller_is_better: Whether less of it is better.
        more_metrics: The metrics after the first, of a search with several.
        fit: The contents of a `lightlib fit` file; None for a program of the user's own.
        command: The command line of that program.
        container: The command line of the container in which it runs; empty without one.
        variables: Of the environment, in addition to the worker's.
        threads: That one process of the trial computes with.
        store: The folder or URL of its checkpoints in the store of the experiment; None if they are in `folder`.
        earlier: The folders of the trial's earlier attempts, and their folders or URLs in the store.
        weights: The checkpoint with the first weights; None if the module initialises them.
        best: The best value of the metric in the experiment so far.
        reported: Whether an earlier attempt reported the metric.
        rungs: The lengths at which the trial is compared, in total since its start; the last is its end. Empty for a
            search without rungs.
        unit: Of `rungs`: ``"steps"`` or ``"epochs"`` of a fit, or the metric of a program that measures its length.
        rung: The rung that the trial trains to: those below it are passed.
        checkpoint_policy: ``"best"``, ``"all"`` or ``"none"``: the validations that are followed by a checkpoint.
        save_trial_best: How many of the trial's best checkpoints are kept.
        min_checkpoint_period: ``{"steps": n}`` or ``{"epochs": n}`` of a fit; None for no period.
        records_per_epoch: The records that the training dataset should have; None for any number.
        initial_validation: Whether a new trial validates before its first step.
        debug: Whether the log level is DEBUG.
        preload: Whether its process may be forked from one that has imported torch and lightlib.
    """

    trial: int
    attempt: int
    folder: str
    context: str
    hparams: Mapping[str, Any]
    metric: str
    smaller_is_better: bool = True
    fit: Mapping[str, Any] | None = None
    command: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    store: str | None = None
    earlier: tuple[str, ...] = ()
    weights: str | None = None
    more_metrics: tuple[str, ...] = ()
    best: float | None = None
    reported: bool = False
    rungs: tuple[float, ...] = ()
    unit: str | None = None
    rung: int = 0
    checkpoint_policy: str = "best"
    save_trial_best: int = 1
    min_checkpoint_period: Mapping[str, int] | None = None
    records_per_epoch: int | None = None
    initial_validation: bool = False
    debug: bool = False
    preload: bool = True

    @property
    def checkpoints(self) -> str:
        """The folder or URL of its checkpoints."""
        return self.store or os.path.join(self.folder, CHECKPOINTS)

    @property
    def function(self) -> str:
        """The function that the command calls, ``"module:name"``; empty for another command."""
        return self.command[3] if self.command[1:3] == ("-m", FUNCTION) else ""

    def as_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that `as_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, **{name: tuple(values[name]) for name in _TUPLES}})
