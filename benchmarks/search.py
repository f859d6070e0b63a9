"""(i) Costs of a search: of a trial and a start as with other tools, a report, a decision, a preview."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import time

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import NOT_INSTALLED

__all__ = ["run"]

ROOT = Path(__file__).parents[1]
POSTGRESQL, RAY, HYDRA = "BENCH_POSTGRESQL", "BENCH_RAY", "BENCH_HYDRA"  # variables of the environment
_COST, _START = "s of a trial over its objective", "s until the first trial begins"
_OBJECTIVE = """
import time
from pathlib import Path


def objective(x, folder):
    began = time.time()
    time.sleep({seconds})
    with (Path(folder) / "times").open("a") as file:
        file.write(f"{{began}} {{time.time()}}\\n")
    return (x - 2) ** 2
"""
_OPTUNA = """
import multiprocessing
import sys

import optuna
from objective import objective
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

FOLDER, TRIALS = sys.argv[1], int(sys.argv[2])


def work(number):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(f"{FOLDER}/journal.log"))
    study = optuna.load_study(study_name="bench", storage=storage, sampler=optuna.samplers.RandomSampler(number))
    done = optuna.study.MaxTrialsCallback(TRIALS, states=None)
    study.optimize(lambda trial: objective(trial.suggest_float("x", 0, 4), FOLDER), callbacks=[done])


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.create_study(study_name="bench", storage=JournalStorage(JournalFileBackend(f"{FOLDER}/journal.log")))
    workers = [multiprocessing.Process(target=work, args=(number,)) for number in range(2)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
"""
_LIGHTLIB = """
import sys

from lightlib import experiment
from objective import objective


def bench(trial):
    return objective(trial.hparams["x"], trial.hparams["folder"])


if __name__ == "__main__":
    folder, trials, name = sys.argv[1:]  # trials import this file, too
    space = {"x": experiment.Double(0, 4), "folder": folder}
    experiment.search(bench, space, name=name, max_trials=int(trials), slots=2, root=f"{folder}/experiments")
"""
_RAY = """
import sys

import ray
from objective import objective
from ray import tune

FOLDER, TRIALS = sys.argv[1], int(sys.argv[2])


def bench(config):
    tune.report({"loss": objective(config["x"], FOLDER)})


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    settings = tune.TuneConfig(num_samples=TRIALS, max_concurrent_trials=2)
    where = tune.RunConfig(storage_path=FOLDER, verbose=0)
    needs = tune.with_resources(bench, {"cpu": 1})
    tune.Tuner(needs, param_space={"x": tune.uniform(0, 4)}, tune_config=settings, run_config=where).fit()
"""
_HYDRA = """
import sys

import hydra
from hydra.core.config_store import ConfigStore
from objective import objective

FOLDER, TRIALS, _ = sys.argv[1:]
del sys.argv[1:]
sys.argv += ["-m", f"hydra.sweep.dir={FOLDER}/runs", "hydra/sweeper=optuna", f"hydra.sweeper.n_trials={TRIALS}"]
sys.argv += ["hydra.sweeper.n_jobs=1", "x=interval(0,4)"]
ConfigStore.instance().store("bench", {"x": 1.0})


@hydra.main(version_base=None, config_path=None, config_name="bench")
def bench(config):
    return objective(config.x, FOLDER)


bench()
"""


_RUNGS = """
import sys
import time
from pathlib import Path

from lightlib import experiment


def bench(trial):
    seconds = []
    for step in range(1, 65):
        computed = time.perf_counter() + 0.005
        while time.perf_counter() < computed:
            pass
        began = time.perf_counter()
        trial.report(step, loss=trial.hparams["x"])
        seconds.append(f"{step} {time.perf_counter() - began}\\n")
        if trial.should_stop:
            break
    with Path(trial.hparams["folder"], "times").open("a") as file:
        file.write("".join(seconds))


if __name__ == "__main__":
    folder, trials, name = sys.argv[1:]  # trials import this file, too
    space = {"x": experiment.Double(0, 4), "folder": folder}
    settings = {"searcher": "async_halving", "num_rungs": 3, "max_length": 64, "divisor": 4, "slots": 1}
    experiment.search(bench, space, name=name, max_trials=int(trials), root=f"{folder}/experiments", **settings)
"""
_RUNG_STEPS = {4, 16, 64}
_PREVIEWED = """
entrypoint: [python3, objective.py]
hyperparameters: {{x: {{type: double, minval: 0, maxval: 4}}}}
searcher: {{name: adaptive_asha, metric: loss, max_length: 1000, max_trials: {trials}}}
"""


@dataclass(frozen=True)
class Peer:
    """A program that searches.

    Attributes:
        name: As it is shown.
        program: Its source; it gets a folder, the number of trials, and a name that is used once.
        needs: A variable of the environment, without which it is not measured: the Python that has its packages, or
            the URL of a database.
        at_once: How many trials it runs at once.
    """

    name: str
    program: str
    needs: str = ""
    at_once: int = 2

    @property
    def note(self) -> str:
        """Why it is not measured; empty if it is."""
        if self.needs and self.needs not in os.environ:
            return f"{self.needs} is not set"
        return "" if self.needs in (RAY, HYDRA) or find_spec("optuna") else NOT_INSTALLED

    @property
    def environment(self) -> dict[str, str]:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        variables.pop("LIGHTLIB_STORAGE", None)
        return {**variables, "LIGHTLIB_STORAGE": os.environ[self.needs]} if self.needs == POSTGRESQL else variables


RUNGS = Peer("lightlib, folder", _RUNGS)
FOLDER, DATABASE = Peer("lightlib, folder", _LIGHTLIB), Peer("lightlib, PostgreSQL", _LIGHTLIB, POSTGRESQL)
PEERS = (
    Peer("Optuna", _OPTUNA),
    FOLDER,
    DATABASE,
    Peer("Ray Tune", _RAY, RAY),
    Peer("Hydra's Optuna sweeper", _HYDRA, HYDRA, at_once=1),
)


def run(size: Size) -> Iterator[Result]:
    """Yield the costs of a trial and of a start for each program, in turns."""
    trials, seconds = (4, 0.2) if size.fewer_rounds == 1 else (40, 1.0)
    found: dict[Peer, list[tuple[float, float]]] = {peer: [] for peer in PEERS}
    for _ in range(size.processes):
        for peer in PEERS:
            if not peer.note:
                found[peer].append(_measured(peer, trials, seconds))
    for k, what in enumerate((_COST, _START)):
        for peer in PEERS:
            yield Row(what, peer.name, [one[k] for one in found[peer]], "s", peer.note)
    for peer, limit in ((FOLDER, 0.15), (DATABASE, 0.25)):
        costs = [cost for cost, _ in found.get(peer, [])]
        if costs:
            yield Target(f"{_COST}: {peer.name}", median(costs), limit, "s")
    if RUNGS.note:
        return
    in_loop, at_rungs = _reports(4 if size.fewer_rounds == 1 else 40)
    preview = [_preview(500) for _ in range(size.processes)]
    for what, values, limit, unit in (
        ("ms of a report that waits for nothing", in_loop, 0.1, "ms"),
        ("ms of a report at a rung, until the decision, after steps of 5 ms", at_rungs, 50, "ms"),
        ("s of `lightlib search preview` of 500 trials", preview, 0.5, "s"),
    ):
        yield Row(what, RUNGS.name, values, unit)
        yield Target(what, median(values), limit, unit)


def _measured(peer: Peer, trials: int, seconds: float) -> tuple[float, float]:
    """Return the seconds that a trial costs, and those until the first one begins."""
    began = time()
    times = _times(peer, trials, seconds)
    assert len(times) == trials, f"{peer.name} ran {len(times)} trials"
    first, last = min(begin for begin, _ in times), max(end for _, end in times)
    return (last - first) / trials - seconds / peer.at_once, first - began


def _reports(trials: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each report in the loop of a trial, and of each one at a rung."""
    times = [(step in _RUNG_STEPS, 1e3 * seconds) for step, seconds in _times(RUNGS, trials)]
    return [ms for at_rung, ms in times if not at_rung], [ms for at_rung, ms in times if at_rung]


def _preview(trials: int) -> float:
    """Return the seconds of the command that shows the plan of a search."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "search.yaml"
        path.write_text(_PREVIEWED.format(trials=trials), encoding="utf-8")
        began = time()
        words = [sys.executable, "-m", "lightlib", "search", "preview", path.name]
        subprocess.run(words, cwd=made, env=RUNGS.environment, capture_output=True, check=True)
        return time() - began


def _times(peer: Peer, trials: int, seconds: float = 0.0) -> list[tuple[float, float]]:
    """Run a search, and return the pairs of numbers that its trials have written."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "objective.py").write_text(_OBJECTIVE.format(seconds=seconds), encoding="utf-8")
        (folder / "bench.py").write_text(peer.program, encoding="utf-8")
        (folder / ".detignore").write_text("experiments/\ntimes\n", encoding="utf-8")
        python = os.environ[peer.needs] if peer.needs in (RAY, HYDRA) else sys.executable
        words = [python, "-W", "ignore", "bench.py", str(folder), str(trials), f"bench-{uuid.uuid4().hex[:8]}"]
        done = subprocess.run(words, cwd=folder, env=peer.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{peer.name} ended with {done.returncode}: {done.stdout}\n{done.stderr}")
        lines = [line.split() for line in (folder / "times").read_text(encoding="utf-8").splitlines()]
        return [(float(first), float(second)) for first, second in lines]
