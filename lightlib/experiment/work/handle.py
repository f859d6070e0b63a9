"""Experiment: an experiment from Python; its trials are run by workers in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightlib.errors import LightlibError, MisconfigurationException, nearest
from lightlib.experiment.file import read
from lightlib.experiment.ledger.orders import Order, give_order, orders_of
from lightlib.experiment.ledger.snapshot import ENDED
from lightlib.experiment.machine.slots import Slots
from lightlib.experiment.work import weights
from lightlib.experiment.work.checkpoints import messages_of
from lightlib.experiment.work.database import Database
from lightlib.experiment.work.folder import ROOT, ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.open import check
from lightlib.experiment.work.results import Results, Trial

if TYPE_CHECKING:
    from optuna import Study  # optional: optuna

T = TypeVar("T")


class Experiment:
    """An experiment that has begun. Each attribute and method reads its present state.

    Args:
        folder: Of the experiment, or its name below ``experiments``.
        worker: The process that works on it. Default: none of this program.

    Raises:
        MisconfigurationException: There is none.

    Example:
        >>> from lightlib import experiment
        >>> experiment.open("experiments/mnist").best  # doctest: +SKIP
        Trial(number=8, state='completed', attempts=1, hparams={'lr': 0.036}, metric=0.56, step=128, ...)
    """

    def __init__(self, folder: str | os.PathLike[str], worker: subprocess.Popen[bytes] | None = None) -> None:
        experiment_folder = ExperimentFolder.named(folder)
        if experiment_folder is None:
            raise MisconfigurationException(
                f"There is no experiment in {str(folder)!r}.{nearest(str(folder), ExperimentFolder.names())}",
                expected=f"the folder of an experiment, seen from {Path.cwd()}.",
                fix="lightlib.experiment.run('search.yaml') begins one.",
            )
        self._folder, self._worker = experiment_folder, worker

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._folder.path

    @property
    def state(self) -> str:
        """``"running"``, ``"waiting"`` for a worker, ``"paused"``, ``"canceled"``, ``"completed"`` or ``"errored"``."""
        return self._results().state

    @property
    def trials(self) -> list[Trial]:
        """The trials, in the order of their numbers."""
        return self._results().trials

    @property
    def best(self) -> Trial | None:
        """The best trial, or None before one has completed; of several metrics, the best of `front` by the first."""
        return self._results().best

    @property
    def front(self) -> list[Trial]:
        """The non-dominated trials of an experiment with several metrics; else those with the best metric."""
        return self._results().front

    def checkpoint(self, trial: Trial | None = None) -> Path | str | None:
        """Return the checkpoint of a trial's best validation, or its last one; None if there is neither.

        It is a path, or the URL of one in a store.

        Args:
            trial: Default: the best one.

        Raises:
            LightlibError: The store does not answer, or its keys are masked in the folder of the experiment.
        """
        results = self._results()
        chosen = trial or results.best
        return None if chosen is None else results.checkpoint(chosen)

    def load(self, module: type[T], trial: Trial | None = None, **arguments: Any) -> T:
        """Return a module with the weights of a trial.

        Args:
            module: The class, a `Module`.
            trial: Default: the best one.
            arguments: Of `load_from_checkpoint`.

        Raises:
            MisconfigurationException: The trial has no checkpoint.
        """
        path = self.checkpoint(trial)
        if path is None:
            raise MisconfigurationException(
                f"{'The best trial' if trial is None else f'Trial {trial.number}'} has no checkpoint.",
                expected="a trial that has completed, and of which a checkpoint was kept.",
                fix="checkpoint_storage: {save_trial_best: 1} in the experiment file.",
            )
        loaded: T = module.load_from_checkpoint(path, **arguments)  # type: ignore[attr-defined]
        return loaded

    def metrics(self, trial: int) -> list[dict[str, float]]:
        """Return the metrics of each validation of a trial, with its ``step`` in batches, in the order of the steps.

        Args:
            trial: The number of the trial.
        """
        written = messages_of(self._folder, trial, "validated")
        by_step = {message["step"]: {"step": message["step"], **message["metrics"]} for message in written}
        return [by_step[step] for step in sorted(by_step)]

    @property
    def study(self) -> Study:
        """Optuna's study, for its plots. Each of its trials is an attempt of one of ours, or of your searcher."""
        from optuna import load_study  # optional: optuna

        with open_ledger(self._folder, self._folder.config) as ledger:
            return load_study(study_name=ledger.name, storage=ledger.storage)

    def pause(self) -> None:
        """Let its trials save a checkpoint and give back their slots, on all machines."""
        self._order("pause")

    def resume(self) -> None:
        """Let it continue, if it is paused."""
        self._order("run")

    def cancel(self) -> None:
        """End it after a checkpoint of each trial that runs."""
        self._order("cancel")

    def kill(self) -> None:
        """End it at once."""
        self._order("kill")

    def wait(self) -> Experiment:
        """Wait until the worker that `run` has started has ended; return this experiment.

        Ctrl-C lets its trials save a checkpoint and pause.

        Raises:
            LightlibError: The worker has ended before the experiment.
        """
        if self._worker is None:
            return self
        try:
            code = self._worker.wait()
        except KeyboardInterrupt:
            self._worker.send_signal(signal.SIGINT)
            self._worker.wait()
            raise
        with open_ledger(self._folder, self._folder.config) as ledger:
            state = Results(self._folder, self._folder.config, ledger).state
            reason = orders_of(ledger).text
        if state not in ENDED or reason:
            raise LightlibError(
                f"The experiment in {str(self.path)!r} is {state}, and its worker has ended with exit code {code}."
                f"{f' {reason}' if reason else ''}",
                expected="an experiment that has ended.",
                fix=f"the messages above; `lightlib experiment work {self.path}` continues it.",
            )
        return self

    def _results(self) -> Results:
        config = self._folder.config
        with open_ledger(self._folder, config) as ledger:
            return Results(self._folder, config, ledger)

    def _order(self, order: Order) -> None:
        with open_ledger(self._folder, self._folder.config) as ledger:
            if not orders_of(ledger).is_over:
                give_order(ledger, order)

    def __repr__(self) -> str:
        return f"Experiment({str(self.path)!r})"


def run(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    slots: int | str = "auto",
    context: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] = ROOT,
    config: Iterable[str] = (),
    storage: str | None = None,
    wait: bool = True,
) -> Experiment:
    """Begin an experiment, or continue it, and run its trials until it has ended, as `lightlib experiment run` does.

    Args:
        source: The experiment file, or its contents.
        slots: How many GPUs or cores, or which: ``"0,1,3"``. Default: all.
        context: The folder of your code. Default: that of the file, or the working directory.
        root: The folder of all experiments.
        config: ``"KEY=VALUE"`` in place of the values of `source`.
        storage: The URL of a database for the ledger, without a password. Default: that of the variable
            ``LIGHTLIB_STORAGE``, or the folder of the experiment.
        wait: False returns at once; a worker runs in the background, and outlives this program.

    Raises:
        ConfigError: A key or a value is wrong, or the experiment has begun with other settings.
        LightlibError: The worker has ended before the experiment.
    """
    changes = list(config)
    settings, chosen_slots = read(source, changes), Slots.of_machine(str(slots))
    source_folder = Path.cwd() if isinstance(source, Mapping) else Path(source).parent
    code = source_folder if context is None else Path(context)
    folder = ExperimentFolder.of(settings, root)
    check(settings, folder.context if folder.exists else code, chosen_slots)
    initial_weights = None if folder.exists else weights.find(settings)
    folder.begin(settings, code, initial_weights, Database.chosen(storage, new=not folder.exists))
    command = ["work", str(folder.path)]
    if not isinstance(source, Mapping):  # a file may have secrets, which its copy in the folder has not
        options = [word for change in changes for word in ("--config", change)]
        command = ["run", os.fspath(source), str(code), "--root", str(root), *options]
    worker = subprocess.Popen(  # noqa: S603  words of this call, without a shell
        [sys.executable, "-m", "lightlib", "experiment", *command, "--slots", str(slots)],
        start_new_session=True,  # Ctrl-C reaches it through `wait` alone
    )
    experiment = Experiment(folder.path, worker)
    return experiment.wait() if wait else experiment


def open(folder: str | os.PathLike[str]) -> Experiment:  # noqa: A001  experiment.open reads as it is meant
    """Return an experiment that has begun.

    Args:
        folder: Its folder, or its name below ``experiments``.

    Raises:
        MisconfigurationException: There is none.
    """
    return Experiment(folder)
