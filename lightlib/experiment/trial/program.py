"""The program of a trial: a `lightlib fit` that reports to its worker, or a function."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import torch

from lightlib.callbacks.callback import Callback
from lightlib.cli import LightningCLI
from lightlib.core.module.loading import load_first_weights
from lightlib.data.seed import isolate_rng
from lightlib.errors import CheckpointError, InvalidHP
from lightlib.experiment.current import messages_of, set_current
from lightlib.experiment.job import Job
from lightlib.experiment.messages import Messages
from lightlib.experiment.trial import checkpoints
from lightlib.experiment.trial.function import call
from lightlib.experiment.trial.records import RecordsCheck
from lightlib.experiment.trial.reporter import Reporter
from lightlib.experiment.trial.rung_stops import RungStops


class TrialCLI(LightningCLI):
    """LightningCLI that builds and runs the fit of a trial.

    Args:
        job: The attempt.
        messages: To its worker; None on ranks other than 0.
    """

    def __init__(self, job: Job, messages: Messages | None) -> None:
        self._job = job
        earlier = checkpoints.earlier_folders(job)
        self._finds = bool(earlier)
        fit_arguments = {"ckpt_path": "auto", **(job.fit or {})}
        callbacks: list[Callback] = [Reporter(messages, (job.metric, *job.more_metrics), job.reported, job.store)]
        if job.records_per_epoch is not None:
            callbacks.append(RecordsCheck(job.records_per_epoch, messages))
        if job.rungs:
            callbacks.append(RungStops(job, messages))
        super().__init__(
            args={"subcommand": "fit", "fit": fit_arguments},
            trainer_defaults={"callbacks": [*callbacks, *checkpoints.callbacks(job, earlier)]},
        )

    def before_fit(self) -> None:
        """Load the first weights of a new trial, and validate it before its first step, if the experiment has it so."""
        if self._finds:
            return
        if self._job.weights is not None:
            try:
                load_first_weights(self.model, self._job.weights)
            except CheckpointError as error:  # for example a width that is not that of the first weights
                reason, *_ = str(error).splitlines()
                raise InvalidHP(f"The first weights do not fit: {reason}") from error
        if self._job.initial_validation:
            with isolate_rng():  # the training that follows is the same as without it
                self.trainer.validate(self.model, datamodule=self.datamodule, verbose=False)


def run(job: Job) -> None:
    """Run the fit of an attempt, or its function, in this process.

    Raises:
        SystemExit: It was interrupted (143), and has saved a checkpoint.
        InvalidHP: By the user's code; the worker is informed.
    """
    os.chdir(job.folder)
    sys.path.insert(0, job.context)
    sys.argv = ["lightlib"]
    torch.set_num_threads(job.threads)
    if job.debug:
        logging.getLogger("lightlib").setLevel(logging.DEBUG)
    messages = messages_of(job)
    set_current(job, messages)
    try:
        if job.function:
            call(job.function)
        else:
            checkpoints.open_store()
            TrialCLI(job, messages)
    except InvalidHP as error:
        Messages(Path(job.folder)).send("invalid", text=str(error))  # from any rank
        raise
