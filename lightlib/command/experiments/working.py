"""`lightlib experiment work`: runs trials of experiments that have begun, on the same slots."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from lightlib.command.experiments.concluding import CANCELED, FAILED, conclude, printed, remove_logs
from lightlib.command.experiments.running import here, until_done
from lightlib.command.experiments.stops import TIMED_OUT, moment, stopping
from lightlib.command.experiments.trial_names import command, folder_of, near
from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import ENDED
from lightlib.experiment.machine.slots import Slots
from lightlib.experiment.work.folder import FILE, ROOT, ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.open import check, open_worker
from lightlib.experiment.work.results import Results
from lightlib.experiment.work.scheduler import Scheduler
from lightlib.experiment.work.worker import Worker, warm_up

_FIND = 5.0  # seconds between two looks for experiments that have begun


def work(options: argparse.Namespace) -> int:
    """Work on experiments that have begun."""
    pool, names, until = options.pool, options.experiments, moment(options.until)
    if not names and pool is None:
        raise MisconfigurationException(
            "`lightlib experiment work` names no experiment.",
            expected="one or more experiments, or --pool with the pool of those below --root.",
            fix="`lightlib experiment list` lists those that there are.",
        )
    folders = [folder_of(name) for name in dict.fromkeys(names)]
    configs = [folder.config for folder in folders]
    for config in configs:
        warm_up(config)
    slots = Slots.of_machine(options.slots)
    for folder, config in zip(folders, configs, strict=True):
        check(config, folder.context, slots)
        if not _is_of(config, pool):
            config.places.below("resources.resource_pool").refuse(
                f"is {config.resources.resource_pool!r}, and this worker has --pool {pool}.",
                "experiments of the pool of this worker.",
                "the command without --pool, or without this experiment.",
            )
    more = [] if pool is None else ["--pool", pool]
    root = [] if names or options.root == ROOT else ["--root", options.root]
    again = command("work", *names, *more, *root)
    if len(folders) == 1:
        return until_done(folders[0], configs[0], *here(folders[0], configs[0], slots, options), again, until)
    return _work_on_several(folders, slots, options, again, until)


def _is_of(config: ExperimentConfig, pool: str | None) -> bool:
    return pool is None or config.resources.resource_pool in (None, pool)


def _work_on_several(
    folders: list[ExperimentFolder], slots: Slots, options: argparse.Namespace, again: str, until: datetime | None
) -> int:
    with ExitStack() as stack:
        several = _Several(folders, slots, options, stack)
        scheduler = Scheduler(several.find(), several.find, several.end)
        stops = stack.enter_context(stopping(scheduler, printed, until))
        scheduler.run()
        if not several.codes:
            printed(f"There is nothing to do in {options.root}.")
        if stops and not (stops == [TIMED_OUT] and several.are_over):
            printed(f"To continue: {again}")
            return stops[0]
    return next((code for code in (FAILED, CANCELED) if code in several.codes), 0)


class _Several:
    """The experiments of a worker that has several.

    Args:
        folders: Of the experiments. Empty: all below ``--root`` that are of the pool, also those that begin later.
        slots: Of this machine.
        options: Of the command.
        stack: Closes the experiments.

    Attributes:
        codes: The exit codes of those that are over here.
        are_over: Whether these have ended, and were not stopped before.
    """

    def __init__(
        self, folders: list[ExperimentFolder], slots: Slots, options: argparse.Namespace, stack: ExitStack
    ) -> None:
        self._named, self._slots, self._options, self._stack = folders, slots, options, stack
        self._seen: set[Path] = set()
        self._open: dict[Worker, tuple[ExperimentFolder, Ledger]] = {}
        self._due = 0.0
        self.codes: list[int] = []
        self.are_over = True

    def find(self) -> list[Worker]:
        """Return workers for the experiments that were not seen before, the oldest first."""
        if time.monotonic() < self._due:
            return []
        self._due = time.monotonic() + _FIND
        folders = self._named or [ExperimentFolder(file.parent) for file in Path(self._options.root).glob(f"**/{FILE}")]
        new = [folder for folder in folders if folder.path not in self._seen and folder.context.is_dir()]
        self._seen |= {folder.path for folder in new}
        new.sort(key=lambda folder: (folder.context.stat().st_mtime, folder.path))
        return [worker for worker in map(self._worker, new) if worker is not None]

    def _worker(self, folder: ExperimentFolder) -> Worker | None:
        """Return a worker on an experiment; None if it has ended, is of another pool, or cannot run here."""
        name = near(folder.path)
        try:
            config = folder.config
            if not _is_of(config, self._options.pool):
                return None
            with open_ledger(folder, config) as ledger:
                if Results(folder, config, ledger).state in (*ENDED, "canceled"):
                    return None
            check(config, folder.context, self._slots)
            opened = open_worker(
                folder,
                config,
                self._slots,
                lambda text: printed(f"{name}: {text}"),
                patience=self._options.storage_patience,
            )
            worker, ledger = self._stack.enter_context(opened)
        except LightlibError as error:
            if self._named:
                raise
            printed(f"{name}: cannot run here. {error}")
            return None
        searcher = config.searcher.name or config.searcher.class_path
        printed(f"{name}: {searcher}, {self._slots.total} {self._slots.kind} slots")
        remove_logs(folder, config, ledger)
        self._open[worker] = folder, ledger
        return worker

    def end(self, worker: Worker, error: LightlibError | None) -> None:
        """Print the results of an experiment that is over here."""
        folder, ledger = self._open.pop(worker)
        printed(f"{near(folder.path)}:")
        if error is not None:
            printed(str(error))
            self.codes.append(FAILED)
            return
        self.codes.append(conclude(folder, folder.config, ledger))
        self.are_over &= Results(folder, folder.config, ledger).state in (*ENDED, "canceled")
