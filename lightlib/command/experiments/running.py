"""`lightlib experiment run` and `create`: begin an experiment, and run its trials until all are done."""

from __future__ import annotations

import argparse
import shlex
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from lightlib.command.experiments.board import EVENTS, Board, is_possible, shown
from lightlib.command.experiments.concluding import CANCELED, conclude, printed, remove_logs
from lightlib.command.experiments.stops import TIMED_OUT, moment, stopping
from lightlib.command.experiments.trial_names import command, near, worker_of
from lightlib.errors import MisconfigurationException, closest, nearest
from lightlib.experiment.engines import kubernetes, ray, slurm
from lightlib.experiment.file import ExperimentConfig, read
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import ENDED
from lightlib.experiment.machine.slots import Slots
from lightlib.experiment.work import weights
from lightlib.experiment.work.database import Database
from lightlib.experiment.work.folder import ROOT, ExperimentFolder
from lightlib.experiment.work.open import check, open_worker
from lightlib.experiment.work.results import Results
from lightlib.experiment.work.scheduler import Scheduler
from lightlib.experiment.work.worker import Show, warm_up

_ENGINES = {"slurm": slurm.submit, "kubernetes": kubernetes.submit}
Open = Callable[[Show], AbstractContextManager[tuple[Scheduler | ray.RayWorkers, Ledger]]]


def run(options: argparse.Namespace) -> int:
    """Begin or continue an experiment, and work on it until it has ended; or let a cluster do so."""
    _check_engine(options)
    until = moment(options.until)
    if options.on == "ray":
        return _run_on_ray(options, until)
    if options.on != "local":
        folder, config, _ = _begin(options, works=False)
        return _submit(options.on, folder, config, options.workers)
    folder, config, slots = _begin(options, works=True)
    return until_done(folder, config, *here(folder, config, slots, options), command_of(options), until)


def command_of(options: argparse.Namespace, *more: str) -> str:
    """Return the command that continues a `run`."""
    words = [word for override in options.config for word in ("--config", override)]
    context = [options.context] if options.context else []
    root = [] if options.root == ROOT else ["--root", options.root]
    return command("run", options.file, *context, *root, *more, *words)


def _run_on_ray(options: argparse.Namespace, until: datetime | None) -> int:
    ray.require_ray()
    folder, config, _ = _begin(options, works=False)
    address = ["--address", options.address] if options.address else []
    again = command_of(options, "--on", "ray", "--workers", str(options.workers), *address)

    def open_(show: Show) -> AbstractContextManager[tuple[ray.RayWorkers, Ledger]]:
        return ray.open_workers(folder, config, options.workers, options.address, show, options.storage_patience)

    return until_done(folder, config, f"{options.workers} workers on Ray", open_, again, until)


def _check_engine(options: argparse.Namespace) -> None:
    """Refuse arguments that the engine of the workers does not have."""
    if options.workers < 1:
        raise MisconfigurationException(f"--workers is {options.workers}.", expected="an int >= 1.", fix="--workers 4")
    on = f"--on {options.on}"
    if options.on == "local" and options.workers != 1:
        raise MisconfigurationException(
            f"--workers is {options.workers}, and this process is one worker.",
            expected="no --workers, or --on with a cluster.",
            fix=f"--slots {options.workers} for as many trials at once, or --on slurm",
        )
    if options.address is not None and options.on != "ray":
        problem = f"--address is {options.address!r}, and {on} has no address."
        raise MisconfigurationException(problem, expected="the address of a Ray cluster.", fix="--on ray")
    if options.on != "local" and options.slots != "auto":
        raise MisconfigurationException(
            f"--slots is {options.slots!r}, and with {on} the cluster gives each worker its slots.",
            expected="no --slots.",
            fix="resources.slots_per_trial in the experiment file, and --workers",
        )
    if options.until is not None and options.on in _ENGINES:
        raise MisconfigurationException(
            f"--until is {options.until!r}, and with {on} this command does not wait for the workers.",
            expected="no --until.",
            fix="`lightlib experiment pause EXPERIMENT` at that time",
        )


def _submit(engine: str, folder: ExperimentFolder, config: ExperimentConfig, workers: int) -> int:
    job = _ENGINES[engine](config, folder, workers)
    watch = shlex.join(["lightlib", "experiment", "watch", str(near(folder.path))])
    printed(f"{near(folder.path)}: {engine} has job {job} with {workers} workers. `{watch}` shows its state.")
    return 0


def create(options: argparse.Namespace) -> int:
    """Begin an experiment; workers run its trials."""
    folder, *_ = _begin(options, works=False)
    printed(f"{near(folder.path)} has begun. {worker_of(folder)}")
    return 0


def _begin(options: argparse.Namespace, *, works: bool) -> tuple[ExperimentFolder, ExperimentConfig, Slots]:
    path = Path(options.file)
    if not path.is_file():
        beside = [str(neighbor) for neighbor in path.parent.glob("*.y*ml")]
        raise MisconfigurationException(
            f"There is no file {options.file!r}.{nearest(options.file, beside)}",
            expected=f"an experiment file, seen from {Path.cwd()}.",
            fix=f"lightlib experiment {options.action} {shlex.quote(closest(options.file, beside) or 'search.yaml')}",
        )
    config = read(path, options.config)
    if works:
        warm_up(config)
    slots = Slots.of_machine(options.slots if works else "auto")
    folder = ExperimentFolder.of(config, options.root)
    context = Path(options.context) if options.context else path.parent
    check(config, folder.context if folder.exists else context, slots, works=works)
    first = None if folder.exists else weights.find(config)
    begun = folder.begin(config, context, first, Database.chosen(options.storage, new=not folder.exists))
    return folder, begun, slots


def here(
    folder: ExperimentFolder, config: ExperimentConfig, slots: Slots, options: argparse.Namespace
) -> tuple[str, Open]:
    """Return the slots of this process as a text, and the function that opens an experiment for work on them."""

    @contextmanager
    def open_(show: Show) -> Iterator[tuple[Scheduler, Ledger]]:
        with open_worker(folder, config, slots, show, patience=options.storage_patience) as (worker, ledger):
            yield Scheduler([worker]), ledger

    return f"{slots.total} {slots.kind} slots", open_


def until_done(
    folder: ExperimentFolder, config: ExperimentConfig, where: str, open_: Open, again: str, until: datetime | None
) -> int:
    """Work on one experiment until it has ended, and return the exit code.

    Args:
        folder: Of it.
        config: It, with its seed.
        where: The slots, as a text.
        open_: Opens it for work.
        again: The command that continues it.
        until: When to end at the latest; None: never.
    """
    searcher = config.searcher.name or config.searcher.class_path
    end = "" if until is None else f", until {until.astimezone():%Y-%m-%d %H:%M:%S}"
    printed(f"{config.name}: {searcher}, {where}, in {near(folder.path)}{end}")
    events = deque[str](maxlen=EVENTS)
    on_board = is_possible()
    show = events.append if on_board else printed
    with open_(show) as (worker, ledger):
        remove_logs(folder, config, ledger)
        with ExitStack() as stack:
            if on_board:
                stack.enter_context(shown(Board(folder, config, ledger, events), transient=True))
            stops = stack.enter_context(stopping(worker, show, until))
            worker.run()
        code = conclude(folder, config, ledger)
        over = Results(folder, config, ledger).state in ENDED
    if stops and code != CANCELED and not (over and stops == [TIMED_OUT]):
        printed(f"To continue: {again}")
        return stops[0]
    return code
