"""(j) The storage of a search: ms of a trial, with one worker and with many; seconds to open it."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import NOT_INSTALLED

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["run"]

POSTGRESQL = "BENCH_POSTGRESQL"  # a variable of the environment: the URL of a database
REPORTS = 3
_OPTUNA, _LIGHTLIB = "Optuna", "lightlib"
_WHAT = "ms of storage per trial: {place}, {workers} workers with {each} trials"
_OPENED = "s to open {trials} trials with {reports} reports each, in a folder"
Work = Callable[[str, str, int, int], None]


def run(size: Size) -> Iterator[Result]:
    """Yield the time of a trial in the storage: by Optuna's study, and by lightlib's ledger."""
    quick = size.fewer_rounds == 1
    for workers, each, limit in ((1, 5 if quick else 100, 2.0), (2 if quick else 64, 2 if quick else 8, 1.5)):
        for place in ("folder", "PostgreSQL"):
            what = _WHAT.format(place=place, workers=workers, each=each)
            note = _note(place)
            times: dict[str, list[float]] = {_OPTUNA: [], _LIGHTLIB: []}
            for _ in range(0 if note else size.processes):
                for who, work in ((_OPTUNA, _with_optuna), (_LIGHTLIB, _with_lightlib)):
                    times[who].append(_measured(work, place, workers, each))
            for who, values in times.items():
                yield Row(what, who, values, "ms", note)
            if not note:
                share = median(times[_LIGHTLIB]) / median(times[_OPTUNA])
                yield Target(f"{what}: share of Optuna's", share, limit, "")
    if not _note("folder"):
        trials, reports = (10, 5) if quick else (1000, 100)
        what, values = _OPENED.format(trials=trials, reports=reports), _opened(trials, reports, size.processes)
        yield Row(what, _LIGHTLIB, values, "s")
        yield Target(what, median(values), 3.0, "s")


def _note(place: str) -> str:
    if not find_spec("optuna"):
        return NOT_INSTALLED
    return f"{POSTGRESQL} is not set" if place == "PostgreSQL" and POSTGRESQL not in os.environ else ""


def _measured(work: Work, place: str, workers: int, each: int) -> float:
    """Return the milliseconds per trial from the first start of a worker to the last end."""
    context = multiprocessing.get_context("fork")  # all has been imported
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        where = folder if place == "folder" else os.environ[POSTGRESQL]
        work(where, name, 0, 1)  # creates the study
        results, barrier = context.SimpleQueue(), context.Barrier(workers)

        def one() -> None:
            barrier.wait()
            began = time.time()
            work(where, name, each, workers)
            results.put((began, time.time()))

        processes = [context.Process(target=one) for _ in range(workers)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                raise RuntimeError(f"a worker of {name} ended with exit code {process.exitcode}")
        times = [results.get() for _ in processes]
    return 1e3 * (max(end for _, end in times) - min(began for began, _ in times)) / (workers * each)


def _with_optuna(place: str, name: str, each: int, workers: int) -> None:  # noqa: ARG001  as that of lightlib
    import optuna  # optional: optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name=name, storage=_storage_of_optuna(place), load_if_exists=True)
    for _ in range(each):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        for step in range(REPORTS):
            trial.report(0.5, step)
        study.tell(trial, 0.5)


def _storage_of_optuna(place: str) -> str | BaseStorage:
    from optuna.storages import JournalStorage  # optional: optuna
    from optuna.storages.journal import JournalFileBackend  # optional: optuna

    return place if "://" in place else JournalStorage(JournalFileBackend(str(Path(place) / "journal.log")))


def _opened(trials: int, reports: int, times: int) -> list[float]:
    """Return the seconds of reading an experiment from its folder."""
    from lightlib.experiment.ledger.ledger import Ledger  # optional: optuna
    from lightlib.experiment.ledger.storage import Patience, open_storage  # optional: optuna

    found = []
    with tempfile.TemporaryDirectory() as folder:
        _with_lightlib(folder, "bench", trials, 1, reports)
        for _ in range(times):
            began = time.time()
            with open_storage(folder, Patience(120)) as storage:
                snapshot = Ledger(storage, "bench", patience=Patience(120)).snapshot()
            found.append(time.time() - began)
            assert len(snapshot.chains) == trials
    return found


def _with_lightlib(place: str, name: str, each: int, workers: int, reports: int = REPORTS) -> None:
    from optuna.distributions import FloatDistribution  # optional: optuna

    from lightlib.experiment.ledger.attempt import Entry  # optional: optuna
    from lightlib.experiment.ledger.beats import BeatFiles, BeatRows, Watch, this_process  # optional: optuna
    from lightlib.experiment.ledger.ledger import Ledger  # optional: optuna
    from lightlib.experiment.ledger.queue import Queue  # optional: optuna
    from lightlib.experiment.ledger.storage import Patience, open_with_engine  # optional: optuna
    from lightlib.experiment.ledger.turns import turns_of  # optional: optuna
    from lightlib.experiment.searchers.plain import Plain  # optional: optuna

    def new(trial: int, _: Any) -> Entry:
        return Entry(trial, params={"x": 0.5}, distributions={"x": FloatDistribution(0, 1)})

    with open_with_engine(place, Patience(120)) as (storage, engine):
        turns = turns_of(Path(place), engine, name, Patience(120))
        ledger = Ledger(storage, name, patience=Patience(120), turns=turns)
        beats = BeatRows(ledger) if "://" in place else BeatFiles(Path(place))
        queue = Queue(ledger, Watch(beats, 60.0), Plain(each * workers, workers, new), this_process())
        while each:
            attempt = queue.next(patient=True)
            if attempt is None:
                if queue.is_done():
                    return
                time.sleep(0.01)
                continue
            for step in range(1, reports + 1):
                ledger.report(attempt, step, 0.5)
            ledger.end(attempt, "completed", 0.5)
