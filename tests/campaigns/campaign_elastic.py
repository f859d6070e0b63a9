"""Elastic campaign: runs that are killed and restarted with another number of processes lose nothing."""

from __future__ import annotations

import argparse
import collections
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaigns import elastic_agents, elastic_takeover
from tests.campaigns.campaign_kill import output, preload
from tests.campaigns.elastic_checks import Course, changes_of, course_of, plain_course, problems
from tests.campaigns.elastic_program import REQUEUED, Elastic, main
from tests.campaigns.phases import Trigger
from tests.campaigns.runner import Ended, Kill, in_jobs, run, shared_tasks

DDP, FSDP, HSDP = partial(Elastic, "ddp"), partial(Elastic, "fsdp"), partial(Elastic, "hsdp")
ALL = [
    DDP((4, 3)), DDP((4, 3), "shrunk", workers=2), DDP((4, 3), "weighted", drawn=True), DDP((4, 3), "dropping"),
    DDP((2, 1)), DDP((2, 1), "shrunk", "stream", 1), DDP((2, 1), data="combined"),
    DDP((4, 3), data="stream", workers=2),
    DDP((4, 3), "shrunk", launcher="slurm", resume="last"), DDP((2, 1), launcher="slurm"),
    FSDP((4, 3)), FSDP((4, 3), "shrunk", format="directory"), FSDP((2, 1), "weighted", "map", 1),
    FSDP((2, 1), "shrunk", format="directory", double=True), FSDP((2, 1), launcher="slurm", format="directory"),
    HSDP((4, 2)), HSDP((4, 2), "shrunk", format="directory"),
    DDP((4, 3), launcher="torchrun", resume="last"), DDP((2, 1), "shrunk", launcher="torchrun"),
    FSDP((4, 3), "shrunk", launcher="torchrun", format="directory"), HSDP((4, 2), launcher="torchrun"),
]  # fmt: skip
EVENTS = ("batch", "validation batch", "open", "flush", "rename", "setup", "instant")
WEIGHTS = (4, 3, 1, 1, 2, 2, 2)
TRIES = 3  # kills that came after the end are drawn again


@dataclass
class Known:
    """Runs of a configuration that are not killed, and the plain loop.

    Attributes:
        plain: The plain loop's course.
        runs: For each number of processes how the run ended.
    """

    plain: Course
    runs: dict[int, Ended]


@dataclass
class Case:
    """One run that is killed and started again with another number of processes, once or several times.

    Attributes:
        name, number: The configuration, and the number of the case; with the seed they determine everything.
        kills: Each kill, and the phase that it hit.
        changes: Changes of the number of processes between two steps that count.
        starts: How often it was started with another number of processes.
        problems: What is wrong at the end.
        error: The largest relative error.
        seconds: Total duration.
    """

    name: str
    number: int
    kills: list[tuple[str, str]] = field(default_factory=list)
    changes: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    problems: list[str] = field(default_factory=list)
    error: float = 0.0
    seconds: float = 0.0

    def compare(self, how: Elastic, plain: Course, where: Path) -> None:
        """Compare the run's course with the plain loop's."""
        course = course_of(where)
        found, self.error = problems(how, plain, course)
        self.problems += found
        self.changes = dict(changes_of(course))


def known(how: Elastic, folder: Path) -> Known:
    """Train in a plain loop, and with each number of processes without a kill."""
    found = Known(plain_course(how), {})
    for size in how.sizes if how.launcher != "torchrun" else ():
        where = folder / f"{how.name}-of{size}"
        found.runs[size] = ended = run(partial(main, how, where), size, where)
        if not ended.well:
            raise RuntimeError(f"{how.name}: a run of {size} processes ended with {ended.codes}\n{output(where)}")
        differing, _ = problems(how, found.plain, course_of(where))
        if differing:
            raise RuntimeError(f"{how.name}: {size} processes differ from the plain loop:\n" + "\n".join(differing[:9]))
    return found


def drawn(how: Elastic, size: int, ended: Ended, rng: random.Random, share: float) -> Kill:
    """Draw the signal, the ranks that get it, and the phase.

    Args:
        how: What runs.
        size: With how many processes.
        ended: How such a run ends without a kill.
        rng: Draws.
        share: How much of the run is left.
    """
    polite = signal.SIGUSR1 if how.launcher == "slurm" else signal.SIGTERM
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, polite))
    rank = rng.randrange(size) if rng.random() < 0.4 else None
    event = rng.choices(EVENTS, WEIGHTS)[0]
    if event == "setup":
        return Kill(signal.SIGKILL, at=rng.uniform(0.0, 0.25 * ended.seconds), rank=rank)
    if event == "instant" or not ended.counts[event]:
        return Kill(number, at=rng.uniform(0.2, 1.0) * ended.seconds * share, rank=rank)
    count = rng.randint(1, max(1, int(ended.counts[event] * share)))
    return Kill(number, rank=rank, trigger=Trigger(event, count, False, int(number), rank is None))


def one_case(how: Elastic, number: int, seed: int, reference: Known, folder: Path) -> Case:
    """Kill a run two or three times, each time in front of a start with the other number of processes."""
    rng, case, begun = random.Random(f"{seed}/{how.name}/{number}"), Case(how.name, number), time.monotonic()
    where = folder / f"{how.name}-{number}"
    if how.launcher == "torchrun":
        ended = elastic_agents.one_case(how, rng, where)
        case.kills, case.starts, case.problems = ended.kills, ended.starts, ended.problems
    else:
        _forked_case(how, case, rng, reference, where)
    if not case.problems:
        case.compare(how, reference.plain, where)
    case.seconds = time.monotonic() - begun
    return case


def _forked_case(how: Elastic, case: Case, rng: random.Random, reference: Known, where: Path) -> None:
    wanted, share, tries = rng.choice((2, 2, 3)), 0.7, 0
    if how.launcher == "slurm":
        _fake_scontrol(where)
    size, other = how.sizes if rng.random() < 0.7 else reversed(how.sizes)
    while len(case.kills) < wanted and tries < wanted + TRIES:
        tries += 1
        kill = drawn(how, size, reference.runs[size], rng, share)
        ended = run(partial(main, how, where), size, where, kill)
        if ended.hung:
            case.problems.append(f"hung after {kill}: {ended.codes}")
            return
        if not ended.killed and not any(ended.codes):  # it has ended before the kill
            if case.kills:
                break
            shutil.rmtree(where, ignore_errors=True)
            continue
        case.kills.append((f"{kill} of {size}", ended.phase))
        size, other, share = other, size, share * 0.7
        case.starts += 1
    ended = run(partial(main, how, where), size, where)
    if not ended.well:
        case.problems.append(f"the last start, with {size} processes, {'hung' if ended.hung else 'failed'}")
    polite = [kill for kill, _ in case.kills if kill.startswith("SIGUSR1")]
    requeued = where.with_name(f"{where.name}.bin") / REQUEUED
    if requeued.exists() and not polite:
        case.problems.append("the job was requeued without a signal")


def _fake_scontrol(where: Path) -> None:
    """Put a command `scontrol` where the program looks first, which notes its arguments."""
    folder = where.with_name(f"{where.name}.bin")
    folder.mkdir(parents=True)
    (folder / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {folder / REQUEUED}\n')
    (folder / "scontrol").chmod(0o755)


def told(case: Case, seed: int, folder: Path) -> str:
    """Return the lines for one case."""
    kills = "; ".join(f"{kill} ({phase})" for kill, phase in case.kills) or "never hit"
    head = f"{case.name} #{case.number} ({case.seconds:.0f} s, {case.error:.1e}): {kills}"
    if not case.problems:
        return f"equal   {head}"
    again = f"python -m tests.campaigns.campaign_elastic --seed {seed} --only {case.name} --case {case.number} --keep"
    last = output(folder / f"{case.name}-{case.number}", 12)
    return "\n    ".join([f"WRONG   {head}", f"again: {again}", *case.problems[:8], last])


def campaign(
    chosen: list[Elastic], changes: int, seed: int, jobs: int, folder: Path, only_case: int | None, keep: bool
) -> list[dict[str, Any]]:
    """Run everything in so many processes at once; return one record per case."""
    take = shared_tasks(len(chosen))
    each = -(-changes // len(chosen))

    def work() -> None:
        while (task := take()) is not None:
            how = chosen[task]
            try:
                reference = known(how, folder)
            except RuntimeError as error:
                _record(folder, Case(how.name, -1, problems=[str(error)]), seed)
                continue
            done, number = 0, 0
            while done < each if only_case is None else number == 0:
                case = one_case(how, number if only_case is None else only_case, seed, reference, folder)
                _record(folder, case, seed)
                done, number = done + max(1, case.starts), number + 1
                if not keep and not case.problems:
                    shutil.rmtree(folder / f"{how.name}-{case.number}", ignore_errors=True)

    in_jobs(jobs, work)
    path = folder / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _record(folder: Path, case: Case, seed: int) -> None:
    print(told(case, seed, folder), flush=True)
    with (folder / "records.jsonl").open("a") as file:
        file.write(json.dumps(asdict(case)) + "\n")


def summary(records: list[dict[str, Any]]) -> Iterator[str]:
    """Return a table of each configuration's changes and outcomes, and totals."""
    yield f"{'configuration':58} {'starts':>6} {'equal':>5} {'wrong':>5} {'error':>8}"
    for name in [*dict.fromkeys(record["name"] for record in records), ""]:
        cases = [record for record in records if name in (record["name"], "")]
        wrong, error = (
            sum(bool(case["problems"]) for case in cases),
            max((case["error"] for case in cases), default=0.0),
        )
        starts = sum(case["starts"] for case in cases)
        yield f"{name or 'all':58} {starts:6} {len(cases) - wrong:5} {wrong:5} {error:8.1e}"
    kills = [kill for case in records for kill in case["kills"]]
    changes = collections.Counter[str]()
    for case in records:
        changes.update(case["changes"])
    for title, counted in (
        ("phases", collections.Counter(phase for _, phase in kills)),
        ("signals", collections.Counter(kill.split()[0] for kill, _ in kills)),
        ("changes between steps that count", changes),
    ):
        yield f"{title}: " + ", ".join(f"{word} {count}" for word, count in counted.most_common())


def command(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_elastic", description=__doc__)
    parser.add_argument("--changes", type=int, default=160, help="at least so many; default 160")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="names, or beginnings of names, of configurations")
    parser.add_argument("--case", type=int, help="only the case of this number, of each chosen configuration")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the runs write; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs, not only of failed ones")
    parser.add_argument("--list", action="store_true", help="list the configurations")
    parser.add_argument("--takeover", type=int, metavar="TIMES", help="instead measure how soon a spare trains")
    given = parser.parse_args(arguments)
    chosen = [how for how in ALL if not given.only or any(how.name.startswith(name) for name in given.only)]
    if given.list:
        print("\n".join(how.name for how in chosen))
        return 0
    if not chosen:
        parser.error(f"--only {' '.join(given.only)} names no configuration; see --list")
    folder = Path(given.folder or tempfile.mkdtemp(prefix="campaign_elastic-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.takeover:
        for line in elastic_takeover.measured(given.takeover, folder):
            print(line, flush=True)
        return 0
    print(f"{len(chosen)} configurations, seed {given.seed}, in {folder}", flush=True)
    preload()
    begun = time.monotonic()
    records = campaign(chosen, given.changes, given.seed, given.jobs, folder, given.case, given.keep)
    print("\n".join(summary(records)))
    bad = [record for record in records if record["problems"]]
    print(f"{len(records)} cases in {time.monotonic() - begun:.0f} s, {len(bad)} wrong")
    if not bad and not given.keep:
        shutil.rmtree(folder)
    return int(bool(bad) or not records)


if __name__ == "__main__":
    sys.exit(command())
