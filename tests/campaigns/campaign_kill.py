"""Kill campaign: runs that are killed at random instants and restarted end as if never killed."""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.campaigns import phases
from tests.campaigns.outcome import compare, kinds
from tests.campaigns.program import Configuration, main
from tests.campaigns.runner import Ended, Kill, in_jobs, run, shared_tasks

MAIN = ("one", "ddp", "fsdp", "pipeline")
ALL = [
    Configuration(strategy, workers, accumulate, precision, asynchronous)
    for strategy, workers, accumulate, precision, asynchronous in itertools.product(
        MAIN, (0, 2), (1, 3), ("fp32", "fp16"), (False, True)
    )
]
ALL += [Configuration(strategy, asynchronous=a, format="directory") for strategy in MAIN for a in (False, True)]
ALL += [Configuration("ddp3", workers, n, asynchronous=a) for workers in (0, 2) for n in (1, 3) for a in (False, True)]
ALL += [Configuration(strategy, accumulate=n, own=True) for strategy in ("one", "ddp", "fsdp") for n in (1, 3)]
ALL += [
    Configuration("one", workers=2, asynchronous=True, own=True),
    Configuration("one", format="directory", own=True),
]
ALL += [Configuration("ddp", workers=2, own=True)]
ALL += [Configuration(strategy, batteries=True) for strategy in MAIN]
ALL += [
    Configuration("ddp", workers=2, asynchronous=True, batteries=True),
    Configuration("fsdp", asynchronous=True, format="directory", batteries=True),
]
ALL += [Configuration(strategy, phased=True) for strategy in MAIN]
ALL += [Configuration("ddp", workers=2, asynchronous=True, phased=True)]
ALL += [Configuration(strategy, phased=True, trainable=True) for strategy in MAIN]
ALL += [Configuration("fsdp", asynchronous=True, format="directory", phased=True, trainable=True)]
ALL += [Configuration(strategy, pruned=True) for strategy in ("one", "ddp")]
ALL += [
    Configuration("one", sized=True),
    Configuration("one", sampled=True),
    Configuration("ddp", workers=2, sampled=True),
]
ALL += [Configuration(strategy, accumulate=n, odd=True) for strategy in ("one", "ddp") for n in (1, 3)]
ALL += [Configuration("one", workers=2, asynchronous=True, odd=True)]
ALL += [Configuration(strategy, **{kind: True}) for strategy in MAIN for kind in ("muon", "free", "counted")]
ALL += [Configuration("ddp", 2, 3, asynchronous=True, counted=True)]
ALL += [
    Configuration("one", 2, 3, "fp16", asynchronous=True, muon=True),
    Configuration("fsdp", asynchronous=True, format="directory", free=True),
]
ALL += [Configuration(strategy, several=True) for strategy in MAIN]
ALL += [Configuration("ddp", workers=2, asynchronous=True, several=True)]
ALL += [Configuration(strategy, compiled=True) for strategy in MAIN]
ALL += [Configuration("one", short=True), Configuration("ddp", short=True)]
ALL += [Configuration("ddp", workers=2, asynchronous=True, short=True)]
ALL += [Configuration("fsdp", 2, 3, "fp16", asynchronous=True, format="directory", compiled=True)]
ALL += [Configuration(strategy, rounded=True) for strategy in MAIN[:3]]
ALL += [Configuration(strategy, policy=True, trainable=True) for strategy in MAIN[:3]]
ALL += [
    Configuration("fsdp", workers=2, asynchronous=True, format="directory", rounded=True),
    Configuration("ddp", 2, 3, "fp16", asynchronous=True, policy=True),
]
ALL += [Configuration(strategy, mixed=True) for strategy in MAIN[:3]]
ALL += [Configuration("ddp", workers=2, asynchronous=True, mixed=True)]
PRELOADED = (
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint.state_dict",
    "torch.utils.tensorboard",
    "tensorboard.backend.event_processing.event_accumulator",
)
SIGNALS = (signal.SIGKILL,) * 6 + (signal.SIGTERM,) * 2 + (signal.SIGINT,) * 2
TRIES = 3  # kills that came after the end are drawn again


@dataclass
class Reference:
    """The reference run, which is not killed."""

    where: Path
    seconds: float
    counts: dict[str, int]


class CampaignError(Exception):
    """The campaign cannot run here: its reference run fails, or two reference runs differ."""


def reference(how: Configuration, folder: Path, twice: bool = False) -> Reference:
    """Run without a kill; with `twice`, check that two such runs agree."""
    places = [folder / f"{how.name}-reference{i}" for i in range(2 if twice else 1)]
    for where in places:
        ended = run(partial(main, how, where), how.processes, where)
        if not ended.well:
            raise CampaignError(f"{how.name}: the reference run ended with {ended.codes}\n{output(where)}")
    if twice and (differing := compare(places[0], places[1])):
        raise CampaignError(f"{how.name}: two reference runs differ:\n" + "\n".join(differing[:20]))
    return Reference(places[0], ended.seconds, ended.counts)


def drawn(how: Configuration, known: Reference, rng: random.Random, share: float = 1.0) -> Kill:
    """Draw how a run is killed: at an instant, or at an event that is rare in time.

    Args:
        how: What runs.
        known: How long it takes, and how often each event happens.
        rng: Draws.
        share: How much of the run is left, after earlier kills.
    """
    number = rng.choice(SIGNALS)
    several = how.processes > 1
    one = several and rng.random() < 0.35
    kind = rng.choices(("instant", *phases.EVENTS), (50, 5, 10, 5, 5, 10, 10, 10))[0]
    twice = number == signal.SIGINT and rng.random() < 0.2
    if kind == "instant" or not known.counts[kind]:
        at = rng.uniform(0.0, known.seconds * max(share, 0.3))
        return Kill(number, at=at, rank=rng.randrange(how.processes) if one else None, twice=twice)
    count = rng.randint(1, max(1, int(known.counts[kind] * share)))
    after = kind in ("rename", "delete", "flush") and rng.random() < 0.5
    return Kill(number, trigger=phases.Trigger(kind, count, after, int(number), not one))


@dataclass
class Case:
    """One run that is killed once or several times in a row and then runs to its end.

    Attributes:
        how: Configuration of the run.
        number: Number of the case; with the seed it determines everything.
        kills: Each kill, and the phase of the run that it hit.
        problem: The problem at the end; empty if there was none.
        differing: Differences from the reference run.
        seconds: Total duration.
    """

    how: Configuration
    number: int
    kills: list[tuple[str, str]]
    problem: str = ""
    differing: list[str] | None = None
    seconds: float = 0.0

    def command(self, seed: int) -> str:
        """Command that repeats this case."""
        which = f"--seed {seed} --only {self.how.name} --case {self.number}"
        return f"python -m tests.campaigns.campaign_kill {which} --keep"


def one_case(how: Configuration, number: int, seed: int, known: Reference, folder: Path) -> Case:
    """Kill a run at moments drawn from the seed, restart it until it ends by itself, and compare."""
    rng = random.Random(f"{seed}/{how.name}/{number}")
    where = folder / f"{how.name}-{number}"
    case = Case(how, number, [])
    begun = time.monotonic()
    program = partial(main, how, where)
    wanted, share = 1 + (rng.random() < 0.35) + (rng.random() < 0.15), 1.0
    for _ in range(wanted + TRIES):
        if len(case.kills) == wanted:
            break
        kill = drawn(how, known, rng, share)
        ended = run(program, how.processes, where, kill)
        if ended.hung:
            case.problem = f"hung after {kill}: {ended.codes}"
            break
        if not ended.killed:  # it had ended already
            if case.kills:
                break
            shutil.rmtree(where, ignore_errors=True)
            continue
        case.kills.append((str(kill), ended.phase))
        if unexpected := _unexpected(ended, kill):
            case.problem = unexpected
        share *= 0.6
    case.problem = case.problem or _ends(program, how, where)
    if not case.problem:
        case.differing = compare(known.where, where)
    case.seconds = time.monotonic() - begun
    return case


def _unexpected(ended: Ended, kill: Kill) -> str:
    """Return the problem with the exit codes of a killed run: a signal must not end in a Python error."""
    polite = {signal.SIGTERM: 143, signal.SIGINT: 130}
    if kill.number == signal.SIGKILL or kill.rank is not None or (kill.trigger and not kill.trigger.everybody):
        return ""
    allowed = {0, -kill.number, polite[signal.Signals(kill.number)]}
    if ended.by_launcher:  # a rank that waits for a peer inside torch cannot handle the signal
        allowed.add(-signal.SIGKILL)
    return "" if set(ended.codes) <= allowed else f"exit codes {ended.codes} after {kill}"


def _ends(program: Callable[[], None], how: Configuration, where: Path) -> str:
    ended = run(program, how.processes, where)
    if ended.well:
        return ""
    return f"the run that was started again {'hung' if ended.hung else 'failed'}: {ended.codes}"


def output(where: Path, lines: int = 30) -> str:
    """Return the last lines that the processes of a run have printed."""
    paths = sorted(where.parent.glob(f"{where.name}.rank*.txt"))
    return "\n".join("\n".join([f"{path.name}:", *path.read_text().splitlines()[-lines:]]) for path in paths)


def told(case: Case, seed: int, folder: Path) -> str:
    """Return the lines for one case."""
    kills = "; ".join(f"{kill} ({phase})" for kill, phase in case.kills) or "never hit"
    if case.problem:
        head = f"FAILED  {case.problem}"
    elif case.differing:
        what = ", ".join(kinds(case.differing))
        head = "DIFFERS " + "\n    ".join([f"in {len(case.differing)} places ({what}):", *case.differing[:6]])
    else:
        return f"equal   {case.how.name} #{case.number}: {kills}"
    last = f"\n{output(folder / f'{case.how.name}-{case.number}', 12)}" if case.problem else ""
    return f"{head}\n    {case.how.name} #{case.number}: {kills}\n    again: {case.command(seed)}{last}"


def campaign(
    chosen: list[Configuration],
    kills: int,
    seed: int,
    jobs: int,
    folder: Path,
    only_case: int | None,
    keep: bool,
    once: bool,
) -> list[dict[str, Any]]:
    """Run everything in so many processes at once; return one record per case."""
    take = shared_tasks(len(chosen))
    each = [kills // len(chosen) + (i < kills % len(chosen)) for i in range(len(chosen))]

    def work() -> None:
        while (task := take()) is not None:
            how = chosen[task]
            try:
                known = reference(how, folder, twice=not once)
            except CampaignError as error:
                _record(folder, Case(how, -1, [], problem=str(error)), seed)
                continue
            done, number = 0, 0
            while done < each[task] if only_case is None else number == 0:
                case = one_case(how, number if only_case is None else only_case, seed, known, folder)
                _record(folder, case, seed)
                done, number = done + max(1, len(case.kills)), number + 1
                if not keep and not case.problem and not case.differing:
                    _remove(folder / f"{how.name}-{case.number}")
            if not keep:
                _remove(*(folder / f"{how.name}-reference{i}" for i in range(2)))

    in_jobs(jobs, work)
    path = folder / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _remove(*places: Path) -> None:
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
        for text in place.parent.glob(f"{place.name}.rank*.txt"):
            text.unlink()


def _record(folder: Path, case: Case, seed: int) -> None:
    print(told(case, seed, folder), flush=True)
    values = {"name": case.how.name, "case": case.number, "kills": case.kills, "problem": case.problem}
    differing = case.differing or []
    values |= {"differing": differing[:20], "kinds": kinds(differing), "seconds": round(case.seconds, 2)}
    line = json.dumps(values) + "\n"
    with (folder / "records.jsonl").open("a") as file:
        file.write(line)


def summary(records: list[dict[str, Any]]) -> Iterator[str]:
    """Return a table of each configuration's kills, where they hit, and their outcomes."""
    where = ("start", "train", "validate", "save", "delete", "end")
    columns = "  ".join(f"{phase:>8}" for phase in where)
    yield f"{'configuration':44} {'kills':>5}  {columns}  {'equal':>5} {'differ':>6} {'failed':>6}"
    by_name: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for record in records:
        by_name[record["name"]].append(record)
    for name, cases in [*by_name.items(), ("all", records)]:
        hit = collections.Counter(phase for case in cases for _, phase in case["kills"])
        failed = sum(bool(case["problem"]) for case in cases)
        differ = sum(bool(case["differing"]) for case in cases)
        counts = "  ".join(f"{hit[phase]:8}" for phase in where)
        yield f"{name:44} {sum(hit.values()):5}  {counts}  {len(cases) - failed - differ:5} {differ:6} {failed:6}"
    signals = collections.Counter(kill.split()[0] for case in records for kill, _ in case["kills"])
    parts = collections.Counter(kind for case in records for kind in case["kinds"])
    if parts:
        yield "differing: " + ", ".join(f"{name} {count}" for name, count in parts.items())
    yield "signals: " + ", ".join(f"{name} {count}" for name, count in signals.items())


def preload() -> None:
    """Import all modules that a run needs, so that forked processes have them."""
    import importlib
    import pkgutil

    import lightlib

    of_ours = (module.name for module in pkgutil.walk_packages(lightlib.__path__, "lightlib."))
    for name in (*PRELOADED, *(name for name in of_ours if not name.endswith("__main__"))):
        importlib.import_module(name)
    torch.set_num_threads(1)


def command(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="at least so many; default 300")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="names, or beginnings of names, of configurations")
    parser.add_argument("--case", type=int, help="only the case of this number, of each chosen configuration")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the runs write; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs, not only of failed ones")
    parser.add_argument(
        "--once", action="store_true", help="train the reference run once, without a check that it is reproducible"
    )
    parser.add_argument("--list", action="store_true", help="list the configurations")
    given = parser.parse_args(arguments)
    chosen = [how for how in ALL if not given.only or any(how.name.startswith(name) for name in given.only)]
    chosen += [Configuration.named(n) for n in given.only if not any(how.name.startswith(n) for how in ALL)]
    if given.list:
        print("\n".join(how.name for how in chosen))
        return 0
    folder = Path(given.folder or tempfile.mkdtemp(prefix="campaign_kill-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{len(chosen)} configurations, seed {given.seed}, in {folder}", flush=True)
    preload()
    begun = time.monotonic()
    records = campaign(chosen, given.kills, given.seed, given.jobs, folder, given.case, given.keep, given.once)
    print("\n".join(summary(records)))
    bad = [record for record in records if record["problem"] or record["differing"]]
    print(f"{len(records)} cases in {time.monotonic() - begun:.0f} s, {len(bad)} not equal")
    if not bad and not given.keep:
        shutil.rmtree(folder)
    return int(bool(bad) or not records)


if __name__ == "__main__":
    sys.exit(command())
