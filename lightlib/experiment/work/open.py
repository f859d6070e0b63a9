"""Opens an experiment for work: storage, ledger, searcher, slots, and the jobs of its attempts."""

from __future__ import annotations

import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.job import CHECKPOINTS, JOB_FILE, Job
from lightlib.experiment.ledger.attempt import Attempt
from lightlib.experiment.ledger.beats import BeatFiles, BeatRows, Watch, this_process
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.queue import Queue
from lightlib.experiment.ledger.snapshot import Snapshot
from lightlib.experiment.ledger.storage import Patience
from lightlib.experiment.machine.containers import Containers
from lightlib.experiment.machine.needs import check_machine, command_of, link_code, mount, run_startup_hook
from lightlib.experiment.machine.slots import Slot, Slots, variables
from lightlib.experiment.searchers.custom import Custom
from lightlib.experiment.searchers.halving import Halving
from lightlib.experiment.searchers.plain import Plain
from lightlib.experiment.space import Space
from lightlib.experiment.store import Store, check_store
from lightlib.experiment.trial.settings import Settings, fit_settings
from lightlib.experiment.trial.trainer import checkpoint_period, rungs_of_fit
from lightlib.experiment.work.custom import Calls, CustomDecisions, SearcherSource, check_searcher
from lightlib.experiment.work.database import Database
from lightlib.experiment.work.decisions import Decisions
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.trial_source import check_source, source_of
from lightlib.experiment.work.worker import EXCLUDED, Show, Worker


class Jobs:
    """Makes the jobs of attempts.

    Args:
        folder: Of the experiment.
        config: It, with its seed.
        space: Of its hyperparameters.
        slots: Of this machine.
        source: Of the trials.
        containers: In which they run. Default: none.
    """

    def __init__(
        self,
        folder: ExperimentFolder,
        config: ExperimentConfig,
        space: Space,
        slots: Slots,
        source: Plain | Halving | Custom,
        containers: Containers | None = None,
    ) -> None:
        self._folder, self._config, self._space, self._slots, self._source = folder, config, space, slots, source
        self._containers, self._store = containers, Store(folder.path, config)

    def __call__(self, attempt: Attempt, snapshot: Snapshot, slots: Sequence[Slot]) -> Job:
        """Return the job of an attempt that has these slots; its folder is created."""
        config, searcher, kind = self._config, self._config.searcher, self._slots.kind
        hparams = self._space.values(attempt.params)
        path = self._folder.attempt(attempt.trial, attempt.attempt)
        path.mkdir(parents=True, exist_ok=True)
        earlier = [folder for folder in self._folder.attempts(attempt.trial) if folder != path]
        command, fit = command_of(config, len(slots)), None
        if self._containers is None:
            mount(config, path)
        if command:
            link_code(self._folder.context, path)
            self._continue_checkpoints(earlier, path)
        else:
            devices = max(len(slots), 1)
            fit = settings(config, self._folder.context, hparams, attempt.trial, devices, kind).fit
        unit, rungs, rung = self._rungs(attempt, snapshot, hparams, fit)
        period = checkpoint_period(fit["trainer"], config, hparams) if fit is not None else None
        rest = (other for other in snapshot.attempts if other.trial != attempt.trial)
        values = [value for other in rest for value in other.reports.values()]
        job = Job(
            trial=attempt.trial,
            attempt=attempt.attempt,
            folder=str(path),
            context=str(self._folder.context),
            hparams=hparams,
            metric=searcher.metrics[0],
            smaller_is_better=searcher.directions[0],
            more_metrics=searcher.metrics[1:],
            fit=fit,
            command=command,
            variables={**variables(slots), **config.environment.variables(kind), **self._store.variables()},
            threads=1 if kind == "cpu" else max((os.cpu_count() or 1) // self._slots.total, 1),
            store=self._store.place(path),
            earlier=(*map(str, earlier), *filter(None, map(self._store.place, earlier))),
            weights=str(self._folder.weights) if self._folder.weights.exists() else None,
            best=(min if searcher.directions[0] else max)(values, default=None),
            reported=any(of_trial.reports for of_trial in snapshot.chains[attempt.trial]),
            rungs=rungs,
            unit=unit,
            rung=rung,
            checkpoint_policy=config.checkpoint_policy,
            save_trial_best=config.checkpoint_storage.save_trial_best,
            min_checkpoint_period=period,
            records_per_epoch=config.records_per_epoch,
            initial_validation=config.perform_initial_validation,
            debug=config.debug,
            preload=config.environment.preload,
        )
        return job if self._containers is None else replace(job, container=self._container(job, slots))

    def _container(self, job: Job, slots: Sequence[Slot]) -> tuple[str, ...]:
        assert self._containers is not None, "checked by the caller"
        attempt = Path(job.folder)
        experiment = re.sub(r"[^a-zA-Z0-9_.-]+", "-", self._config.name)
        name = f"lightlib-{experiment}-{job.trial}-{job.attempt}-{uuid.uuid4().hex[:8]}"
        command = job.command or ("python3", "-m", "lightlib.experiment.trial", str(attempt / JOB_FILE))
        return self._containers.words(name, attempt, self._folder.context, slots, job.variables, command)

    def _rungs(
        self, attempt: Attempt, snapshot: Snapshot, hparams: dict[str, Any], fit: dict[str, Any] | None
    ) -> tuple[str | None, tuple[float, ...], int]:
        """Return the unit and the lengths of a trial's rungs, and the rung that it trains to."""
        lengths, rung = list[int](), 0
        if isinstance(self._source, Custom):
            lengths = self._source.lengths(attempt)
        elif isinstance(self._source, Halving):
            course = self._source.course(snapshot, attempt.trial)
            lengths, rung = list(self._source.brackets[course.bracket].lengths), course.rung
        if not lengths:
            return None, (), 0
        if fit is None:
            searcher = self._config.searcher
            return (searcher.stopping or searcher).time_metric, tuple(lengths), rung
        return *rungs_of_fit(lengths, fit["trainer"], self._config, hparams), rung

    def _continue_checkpoints(self, earlier: list[Path], path: Path) -> None:
        """Let the folder for the checkpoints of a command begin as that of the attempt before.

        In a store, which is a folder for a command, it is a link.
        """
        target, folders = (
            path / CHECKPOINTS,
            [folder / CHECKPOINTS for folder in earlier if (folder / CHECKPOINTS).is_dir()],
        )
        stored = self._store.place(path)
        if stored is not None and not target.is_symlink():
            os.makedirs(stored, exist_ok=True)
            target.symlink_to(stored, target_is_directory=True)
        target.mkdir(exist_ok=True)
        if folders and not any(target.iterdir()):
            shutil.copytree(folders[-1], target, dirs_exist_ok=True)


def check(config: ExperimentConfig, context: Path, slots: Slots, *, works: bool = True) -> None:
    """Refuse an experiment that cannot run, before anything of it is written.

    Args:
        config: The experiment.
        context: The folder of the user's code.
        slots: Of this machine.
        works: Whether it runs trials. Default: yes.

    Raises:
        MisconfigurationException: Its searcher, its space, the settings of its trials or its slots do not fit.
    """
    num_slots = config.resources.slots_per_trial
    if works and num_slots > slots.total:
        config.places.below("resources.slots_per_trial").refuse(
            f"is {num_slots}, and this worker has {slots.total} slots ({slots.kind}). A trial runs on one machine, "
            "with or without resources.is_single_node.",
            "as many slots as a trial needs.",
            f"resources.slots_per_trial: {slots.total}, or a machine with more devices.",
        )
    config.require_secrets()
    contained = works and Containers.of(config, context, slots.kind) is not None
    if works:
        check_machine(config, contained=contained)
    seeded = config.with_seed()
    space = Space(config.hyperparameters, lambda key: config.where(f"hyperparameters.{key}"))
    check_source(seeded, space, slots.total)
    check_searcher(seeded, context, space)
    if config.entrypoint is None or not config.entrypoint.command:
        hparams = space.values(space.draw_trial(0, 0))
        trial_settings = settings(seeded, context, hparams, 0, max(num_slots, 1), slots.kind)
        checkpoint_period(trial_settings.fit["trainer"], seeded, hparams)
    check_store(config, contained=contained)


def settings(
    config: ExperimentConfig, context: Path, hparams: dict[str, Any], trial: int, devices: int, accelerator: str
) -> Settings:
    """Return the settings of a trial's fit."""
    seed = config.reproducibility.experiment_seed
    assert seed is not None, "the stored experiment has one"
    return fit_settings(
        config, hparams, trial=trial, seed=seed, devices=devices, accelerator=accelerator, context=context
    )


@contextmanager
def open_worker(
    folder: ExperimentFolder,
    config: ExperimentConfig,
    slots: Slots,
    show: Show,
    grace: float = 60.0,
    patience: float = 600.0,
) -> Iterator[tuple[Worker, Ledger]]:
    """Open an experiment that has begun, to work on it.

    Args:
        folder: Of the experiment.
        config: It, with its seed.
        slots: Of this machine.
        show: Gets a line for each event.
        grace: Seconds without a sign of life after which a worker on another machine is dead.
        patience: Seconds for which a database may not answer.

    Raises:
        LightlibError: The checkpoints of the experiment are not in its store, as seen from this machine.
    """
    Store(folder.path, config).require()
    space = Space(config.hyperparameters, lambda key: config.where(f"hyperparameters.{key}"))
    containers = Containers.of(config, folder.path.absolute(), slots.kind)
    if containers is None:
        run_startup_hook(folder.context, config.environment.variables(slots.kind))
    else:
        containers.prepare()
    with open_ledger(folder, config, Patience(patience)) as ledger:
        source = source_of(config, space, slots.total // max(config.resources.slots_per_trial, 1), ledger)
        jobs = Jobs(folder, config, space, slots, source, containers)
        beats = BeatFiles(folder.path) if Database.of(folder.path) is None else BeatRows(ledger)
        watch, owner = Watch(beats, grace), this_process()
        decisions: Decisions | CustomDecisions = Decisions(source, ledger, config.searcher.directions[0])
        if isinstance(source, Custom):
            of_searcher = Queue(ledger.of_searcher(), watch, SearcherSource(), owner)
            calls = partial(Calls, config, folder.context, space)
            decisions = CustomDecisions(calls, ledger, beats, of_searcher)
        queue = Queue(ledger, watch, source, owner, Accepts(config))
        yield Worker(config, folder, ledger, queue, beats, slots, decisions, jobs, show, grace), ledger


class Accepts:
    """Whether a worker on this machine may run a trial now, by log policies and `max_slots`.

    Args:
        config: The experiment.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self._most, self._each = config.resources.max_slots, config.resources.slots_per_trial
        self._here = socket.gethostname()

    def __call__(self, snapshot: Snapshot, trial: int) -> bool:
        if any(attempt.attribute(EXCLUDED) == self._here for attempt in snapshot.chains.get(trial, ())):
            return False
        running = sum(chain[-1].state == "running" for chain in snapshot.chains.values())
        return self._most is None or (running + 1) * self._each <= self._most
