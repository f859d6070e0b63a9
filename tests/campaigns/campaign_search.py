"""Search campaign: kills of trials, workers and the database; no trial is lost, or ends twice."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lightlib.experiment.space import trial_seed
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.results import Results
from tests.experiment.postgres import Postgres, why_not
from tests.experiment.work.project import MODEL, Project, trained
from tests.processes.programs import Program

BATCHES = 4  # of an epoch, on one device
LIMIT = 600.0  # seconds for a search to end after its last kill
SLOW = "        step = self.global_step\n        time.sleep(0.06)\n"  # so that kills hit trials that train
RUNGS = "metric: val_loss, divisor: 2, max_trials: {trials}, max_length: {{epochs: 4}}"
PLAIN = "metric: val_loss, max_trials: {trials}, max_length: {{epochs: 3}}"
SEARCHES = {
    "random": f"name: random, {PLAIN}",
    "grid": "name: grid, metric: val_loss, max_length: {{epochs: 3}}",
    "stopping": f"name: adaptive_asha, mode: aggressive, {RUNGS}",
    "promoting": f"name: adaptive_asha, mode: aggressive, stop_once: false, {RUNGS}",
    "halving": f"name: halving, num_rungs: 3, {RUNGS}",
    "tpe": f"name: tpe, options: {{{{n_startup_trials: 2}}}}, {PLAIN}",
    "batches": f"name: tpe, synchronous: true, max_concurrent_trials: 2, options: {{{{n_startup_trials: 2}}}}, {PLAIN}",
}
SAME_AGAIN = ("random", "grid", "halving", "batches")  # with any number of workers, after any kill
GRID = "{type: categorical, vals: [0.1, 0.05, 0.03, 0.02, 0.01, 0.005]}"
KINDS = ("trial", "trial", "worker", "worker", "all", "rank", "database")


@dataclass(frozen=True)
class Configuration:
    """A search.

    Attributes:
        storage: ``"folder"`` or ``"postgresql"``.
        search: A key of `SEARCHES`.
        workers: How many: one has two slots, two have one each.
        ranks: The processes of a trial.
    """

    storage: str
    search: str
    workers: int = 1
    ranks: int = 1

    @property
    def name(self) -> str:
        return f"{self.storage}-{self.search}-workers{self.workers}-ranks{self.ranks}"

    @property
    def trials(self) -> int:
        return 6 if self.ranks == 1 else 3

    @property
    def file(self) -> str:
        """The lines of its search.yaml."""
        points = GRID if self.ranks == 1 else "{type: categorical, vals: [0.1, 0.03, 0.01]}"
        grid = f"hyperparameters: {{lr: {points}}}\n" if self.search == "grid" else ""
        searcher = SEARCHES[self.search].format(trials=self.trials)
        return f"searcher: {{{searcher}}}\nmax_restarts: 99\n{grid}"

    def project(self, folder: Path) -> Project:
        """Return a new project of it."""
        return Project(folder, self.file, MODEL.replace("        step = self.global_step\n", SLOW), slots=self.ranks)


ALL = [
    Configuration(storage, search, workers)
    for storage, search, workers in itertools.product(("folder", "postgresql"), SEARCHES, (1, 2))
]
ALL += [Configuration(storage, search, ranks=2) for storage in ("folder", "postgresql") for search in SAME_AGAIN]


class Run:
    """The workers of one search, which are started again until it has ended.

    Args:
        how: The search.
        folder: Of its project.
        url: Of its database; None: the ledger is in the folder.
    """

    def __init__(self, how: Configuration, folder: Path, url: str | None) -> None:
        self.how, self.project, self.url = how, how.project(folder), url
        self.workers: dict[int, Program] = {}
        self.problems: list[str] = []

    def start(self) -> None:
        """Start the workers that do not run: each by its own command, which is always the same."""
        slots = "2" if self.how.workers == 1 else "1"
        storage = ["--storage", self.url] if self.url else []
        for number in range(self.how.workers):
            if number in self.workers and self.workers[number].poll() is None:
                continue
            if number and not (self.project.experiment / "experiment.yaml").exists():
                continue
            if number in self.workers:
                self.workers[number].communicate()
            words = ["work", "experiments/search"] if number else ["run", "search.yaml", *storage]
            self.workers[number] = self.project.start("experiment", *words, "--slots", slots)

    def living(self) -> list[Program]:
        return [one for one in self.workers.values() if one.poll() is None]

    def look(self) -> bool:
        """Start again each worker that was killed; return whether all have ended by themselves."""
        ended = {number: one.poll() for number, one in self.workers.items()}
        for number, code in ended.items():
            if code not in (None, 0, -signal.SIGKILL):
                self.problems.append(f"worker {number} ended with {code}: {self.workers[number].communicate()[0]}")
        if self.problems or (len(ended) == self.how.workers and set(ended.values()) == {0}):
            return True
        if any(code != 0 for code in ended.values() if code is not None) or len(ended) < self.how.workers:
            self.start()
        return False

    def wait(self) -> None:
        """Wait until the search has ended."""
        end = time.monotonic() + LIMIT
        while not self.look():
            if time.monotonic() > end:
                self.problems.append("hung")
                break
            time.sleep(0.05)
        for one in self.workers.values():
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.communicate()

    def trials(self) -> list[list[int]]:
        """Return the ids of the processes of each attempt that runs."""
        found: dict[Path, list[int]] = {}
        trials = self.project.experiment / "trials"
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    place = (process / "cwd").readlink()
                except OSError:  # it has ended
                    continue
                if place.is_relative_to(trials):
                    found.setdefault(place, []).append(int(process.name))
        return list(found.values())


@dataclass
class Case:
    """A search with its kills, and the faults at its end.

    Attributes:
        how: The search.
        number: With the seed it determines the order of kills.
        kills: The kind of each.
        problems: The faults; empty if there are none.
        seconds: Total duration.
    """

    how: Configuration
    number: int
    kills: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def one_case(how: Configuration, number: int, seed: int, kills: int, folder: Path, server: Postgres | None) -> Case:
    """Kill at moments drawn from the seed, let the search end, and look for faults."""
    rng, case, begun = random.Random(f"{seed}/{how.name}/{number}"), Case(how, number), time.monotonic()
    where = folder / f"{how.name}-{number}"
    url = server.database(f"case_{how.search}_{how.workers}_{how.ranks}_{number}") if server else None
    run = Run(how, where, url)
    run.start()
    while len(case.kills) < kills and not run.look():
        time.sleep(rng.uniform(0.3, 2.5 if how.ranks == 1 else 8.0))
        kind = rng.choice([one for one in KINDS if one != "database" or server])
        if run.trials() and hurt(run, kind, rng, server):
            case.kills.append(kind)
    run.wait()
    case.problems = run.problems or list(faults(run))
    if not case.problems and how.search in SAME_AGAIN and how.ranks > 1:
        case.problems = list(differences(run, _reference(how, folder)))
    case.seconds = time.monotonic() - begun
    return case


def hurt(run: Run, kind: str, rng: random.Random, server: Postgres | None) -> bool:
    """Kill something; return whether there was something to kill."""
    trials, living = run.trials(), run.living()
    if kind == "database" and server:
        server.crash()
        time.sleep(rng.uniform(0.0, 1.0))
        server.start()
        return True
    if kind in ("trial", "rank") and trials:
        victims = rng.choice(trials)
        for pid in victims if kind == "trial" else [rng.choice(victims)]:
            _kill(pid)
        return True
    if kind in ("worker", "all") and living:
        for one in living if kind == "all" else [rng.choice(living)]:
            _kill(one.pid)
            one.wait(60)
        return True
    return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just ended by itself
        return


def faults(run: Run) -> Iterator[str]:
    """Find trials that are missing, too many, in a wrong state, ended twice, or trained otherwise than by torch."""
    how, project = run.how, run.project
    folder = ExperimentFolder(project.experiment)
    with open_ledger(folder, folder.config) as ledger:
        results = Results(folder, folder.config, ledger)
    if results.state != "completed":
        yield f"the experiment is {results.state}"
    if len(results.trials) != how.trials:
        yield f"{len(results.trials)} trials, and {how.trials} were to be"
    allowed = {"completed"} if how.search in ("random", "grid", "tpe", "batches") else {"completed", "stopped"}
    for trial, chain in results.snapshot.chains.items():
        finals = [one.ended_as for one in chain if one.ended_as in ("completed", "stopped")]
        if len(finals) > 1:
            yield f"trial {trial} ended twice: {finals}"
        yield from (f"attempt {one.number} is {one.state}" for one in chain if one.state != "ended")
    for one in results.trials:
        if one.state not in allowed:
            yield f"trial {one.number} is {one.state}"
            continue
        validations: dict[int, set[float]] = {}
        for message in project.messages(one.number, "validated"):
            validations.setdefault(message["step"], set()).add(message["metrics"]["val_loss"])
        yield from (f"trial {one.number}: {len(v)} metrics at {step}" for step, v in validations.items() if len(v) > 1)
        if how.ranks == 1:
            end = max(validations)
            weights, losses = trained(one.hparams["lr"], trial_seed(7, one.number), 4, batches=end)
            if one.metric != min(losses):
                yield f"trial {one.number} has metric {one.metric}, and torch has {min(losses)}"
            if not list(project.experiment.glob(f"trials/{one.number:04d}/*/checkpoints/*.ckpt")):
                yield f"trial {one.number} has no checkpoint"
            elif any(not torch.equal(project.weights(one.number)[name], value) for name, value in weights.items()):
                yield f"trial {one.number} has other weights than torch after {end} batches"


def differences(one: Run, other: Run) -> Iterator[str]:
    """Compare the trials of two runs: hyperparameters, state, metric and weights, bit for bit."""
    for here, there in itertools.zip_longest(one.project.trials(), other.project.trials()):
        seen = [(t.number, dict(t.hparams), t.state, t.metric, t.step) if t else None for t in (here, there)]
        if seen[0] != seen[1]:
            yield f"{seen[1]} became {seen[0]}"
        elif not list(one.project.experiment.glob(f"trials/{here.number:04d}/*/checkpoints/*.ckpt")):
            yield f"trial {here.number} has no checkpoint"
        else:
            weights = [run.project.weights(here.number) for run in (one, other)]
            if any(not torch.equal(weights[0][name], value) for name, value in weights[1].items()):
                yield f"trial {here.number} has other weights"


_references: dict[tuple[str, int], Run] = {}


def _reference(how: Configuration, folder: Path) -> Run:
    """Return the same search without a kill, in a folder."""
    key = how.search, how.ranks
    if key not in _references:
        run = Run(how, folder / f"reference-{how.search}-ranks{how.ranks}", None)
        run.start()
        run.wait()
        assert not run.problems, run.problems
        _references[key] = run
    return _references[key]


# the command
def campaign(
    chosen: list[Configuration], kills: int, each: int, seed: int, folder: Path, show: Callable[[Case], None]
) -> list[Case]:
    """Run cases until there were so many kills, one case of each search at least."""
    server = Postgres() if any(one.storage == "postgresql" for one in chosen) else None
    cases: list[Case] = []
    try:
        for number in itertools.count():
            for how in chosen:
                own = server if how.storage == "postgresql" else None
                cases.append(one_case(how, number, seed, each, folder, own))
                show(cases[-1])
            if sum(len(one.kills) for one in cases) >= kills:
                return cases
    finally:
        if server:
            server.close()


def command(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_search", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="at least so many; default 200")
    parser.add_argument("--each", type=int, default=6, help="kills of a search; default 6")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="names, or beginnings of names, of searches")
    parser.add_argument("--folder", type=Path, help="where the searches write; default: a temporary folder")
    parser.add_argument("--list", action="store_true", help="list the searches")
    given = parser.parse_args(arguments)
    chosen = [how for how in ALL if not given.only or how.name.startswith(tuple(given.only))]
    reason = why_not()
    if reason:
        print(f"Without PostgreSQL: {reason}")
        chosen = [how for how in chosen if how.storage == "folder"]
    if given.list:
        print("\n".join(how.name for how in chosen))
        return 0
    if not chosen:
        parser.error(f"--only {' '.join(given.only)} names no search; see --list")
    folder = Path(given.folder or tempfile.mkdtemp(prefix="campaign_search-")).resolve()
    print(f"{len(chosen)} searches, seed {given.seed}, in {folder}", flush=True)
    torch.set_num_threads(1)
    begun = time.monotonic()
    cases = campaign(chosen, given.kills, given.each, given.seed, folder, lambda case: _show(case, given.seed))
    bad = [case for case in cases if case.problems]
    kinds = Counter(kind for case in cases for kind in case.kills)
    print(f"kills: {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}; {kinds.total()} in all")
    print(f"{len(cases)} searches in {time.monotonic() - begun:.0f} s, {len(bad)} with faults")
    if not bad:
        shutil.rmtree(folder)
    return int(bool(bad))


def _show(case: Case, seed: int) -> None:
    head = "FAULTS " if case.problems else "right  "
    print(f"{head} {case.how.name} #{case.number}: {' '.join(case.kills)} ({case.seconds:.0f} s)", flush=True)
    for one in case.problems:
        print(f"    {one}", flush=True)
    if case.problems:
        print(f"    again: python -m tests.campaigns.campaign_search --seed {seed} --only {case.how.name}", flush=True)


if __name__ == "__main__":
    sys.exit(command())
