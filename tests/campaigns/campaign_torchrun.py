"""Torchrun campaign: ranks are killed in every phase and restarted, and lose nothing."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightlib.launch.environment.environment import HeldPort
from tests.campaigns.outcome import compare, kinds
from tests.campaigns.runner import in_jobs, shared_tasks
from tests.campaigns.torchrun_program import EVENTS, Kill, as_argument
from tests.processes.programs import Program, environment
from tests.processes.warm import ROOT

SETUPS = ("static", "standalone", "c10d")
CONFIGURATIONS = (
    "ddp-workers0-accumulate1-fp32-sync-epochs1",
    "fsdp-workers0-accumulate1-fp32-async-directory-epochs1",
)
PATIENCE = 400.0  # seconds for a run with all its restarts; only one that hangs takes so long
WEIGHTS = {"agreement": 4, "instant": 3, "group": 2, "setup": 2}  # of events in the draw; default 1


@dataclass
class Ended:
    """How a run under torchrun ended.

    Attributes:
        code: Its exit code; None when it hung.
        text: What was printed.
        hits: The kills that hit.
        seconds: How long it took.
    """

    code: int | None
    text: str
    hits: list[str]
    seconds: float


def run(setup: str, name: str, where: Path, kills: list[Kill]) -> Ended:
    """Start a configuration by torchrun in one of the `SETUPS`, and wait until it ends, restarts included."""
    begun = time.monotonic()
    notes = where.parent / f"{where.name}.notes"
    with contextlib.closing(HeldPort()) as held:
        options = {
            "static": ["--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={held.port}"],
            "standalone": ["--standalone"],
            "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{held.port}", "--rdzv-id=campaign"],
        }[setup]
        command = ["torch.distributed.run", *options, "--nproc-per-node=2", f"--max-restarts={len(kills)}"]
        command += ["--monitor-interval=0.1", "-m", "tests.campaigns.torchrun_program"]
        program = Program(
            "-m", *command, where, name, as_argument(kills), cwd=ROOT, merged=True, starts=2 * (len(kills) + 1),
            env=environment(TQDM_DISABLE="1"),
        )  # fmt: skip
        code: int | None = None
        try:
            text, _ = program.communicate(PATIENCE)
            code = program.returncode
        except subprocess.TimeoutExpired:
            program.kill()  # its ranks die with it
            text, _ = program.communicate(20.0)
    hits = [path.read_text() for path in sorted(notes.glob("killed*"))]
    where.with_name(f"{where.name}.txt").write_text(text)
    return Ended(code, text, hits, time.monotonic() - begun)


@dataclass
class Case:
    """One run with one to three kills.

    Attributes:
        setup, name: The rendezvous of torchrun's agents, and the configuration of the run.
        number: Number of the case; with the seed it determines everything except kills at an instant.
        kills: The planned kill of each attempt.
        hits: The kills that hit.
        problem: The problem at the end; empty if there was none.
        differing: Differences from the reference run.
        seconds: Total duration.
    """

    setup: str
    name: str
    number: int
    kills: list[Kill] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)
    problem: str = ""
    differing: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def command(self, seed: int) -> str:
        """Command that repeats this case."""
        return (
            f"python -m tests.campaigns.campaign_torchrun --seed {seed} --only {self.setup} --case {self.number} --keep"
        )


@dataclass(frozen=True)
class Reference:
    """The reference run, which is not killed: its folder, event counts per rank, and duration."""

    where: Path
    counts: list[dict[str, int]]
    seconds: float


def reference(name: str, folder: Path) -> Reference:
    """Run without a kill."""
    where = folder / f"{name}-reference"
    ended = run("static", name, where, [])
    if ended.code != 0:
        raise RuntimeError(f"{name}: the reference run ended with {ended.code}\n{ended.text}")
    notes = where.with_name(f"{where.name}.notes")
    return Reference(where, [json.loads((notes / f"counts{rank}.json").read_text()) for rank in (0, 1)], ended.seconds)


def drawn(known: Reference, rng: random.Random) -> list[Kill]:
    """Draw the rank to kill, and where, for each attempt; the attempt after the last kill runs to its end."""
    kills = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        rank = rng.randrange(2)
        possible = [event for event in EVENTS if known.counts[rank][event]] + ["instant"]
        event = rng.choices(possible, [WEIGHTS.get(event, 1) for event in possible])[0]
        most = int(1000 * known.seconds) if event == "instant" else known.counts[rank][event]
        kills.append(Kill(rank, event, rng.randint(1, most if event != "agreement" else 9)))
    return kills


def one_case(setup: str, number: int, seed: int, known: dict[str, Reference], folder: Path) -> Case:
    """Kill a run at moments drawn from the seed, and compare its outcome with the reference run."""
    rng = random.Random(f"{seed}/{setup}/{number}")
    name = rng.choice(CONFIGURATIONS)
    case, where = Case(setup, name, number), folder / f"{setup}-{number}"
    case.kills = drawn(known[name], rng)
    ended = run(setup, name, where, case.kills)
    case.hits, case.seconds = ended.hits, ended.seconds
    if ended.code != 0:
        case.problem = "hung" if ended.code is None else f"ended with exit code {ended.code}"
    else:
        case.differing = compare(known[name].where, where)
    return case


def told(case: Case, seed: int, folder: Path) -> str:
    """Return the lines for one case."""
    head = f"{case.setup} {case.name} #{case.number} ({case.seconds:.0f} s): {'; '.join(case.hits) or 'never hit'}"
    if not case.problem and not case.differing:
        return f"equal   {head}"
    if case.problem:
        text = (folder / f"{case.setup}-{case.number}.txt").read_text().splitlines()[-40:]
        return "\n".join([f"FAILED  {head}", f"    {case.problem}; again: {case.command(seed)}", *text])
    what = f"in {len(case.differing)} places ({', '.join(kinds(case.differing))}); again: {case.command(seed)}"
    return "\n    ".join([f"DIFFERS {head}", what, *case.differing[:6]])


def campaign(
    setups: list[str], kills: int, seed: int, jobs: int, folder: Path, only_case: int | None, keep: bool
) -> list[dict[str, Any]]:
    """Run everything in so many processes at once; return one record per case."""
    known = {name: reference(name, folder) for name in CONFIGURATIONS}
    take = shared_tasks(len(setups) * jobs)
    each = -(-kills // (len(setups) * jobs))

    def work() -> None:
        while (task := take()) is not None:
            setup, number = setups[task % len(setups)], 1000 * (task // len(setups))
            done = 0
            while done < each if only_case is None else done == 0:
                case = one_case(setup, number if only_case is None else only_case, seed, known, folder)
                record(folder, case, seed)
                done, number = done + max(1, len(case.hits)), number + 1
                if not keep and not case.problem and not case.differing:
                    remove(folder / f"{case.setup}-{case.number}")

    in_jobs(jobs, work)
    path = folder / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def remove(where: Path) -> None:
    for path in where.parent.glob(f"{where.name}*"):
        if re.fullmatch(rf"{re.escape(where.name)}(\.notes|\.txt)?", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def record(folder: Path, case: Case, seed: int) -> None:
    print(told(case, seed, folder), flush=True)
    values = {"setup": case.setup, "case": case.number, "hits": case.hits, "problem": case.problem}
    line = json.dumps({**values, "differing": case.differing[:20], "seconds": round(case.seconds, 1)}) + "\n"
    with (folder / "records.jsonl").open("a") as file:
        file.write(line)


def summary(records: list[dict[str, Any]]) -> Iterator[str]:
    """Return a table of each setup's kills, the ranks that were killed, and the outcomes."""
    yield f"{'setup':12} {'kills':>5}  {'rank 0':>6} {'rank 1':>6}  {'equal':>5} {'differ':>6} {'failed':>6}"
    for setup in (*SETUPS, "all"):
        cases = [record for record in records if setup in (record["setup"], "all")]
        hits = [hit for case in cases for hit in case["hits"]]
        ranks = [sum(hit.startswith(f"rank {rank}") for hit in hits) for rank in (0, 1)]
        failed, differ = (sum(bool(case[key]) for case in cases) for key in ("problem", "differing"))
        equal = len(cases) - failed - differ
        yield f"{setup:12} {len(hits):5}  {ranks[0]:6} {ranks[1]:6}  {equal:5} {differ:6} {failed:6}"
    where = collections.Counter(
        "instant" if " ms" in hit else re.sub(r"rank \d before (.*) \d+", r"\1", hit)
        for record in records
        for hit in record["hits"]
    )
    yield "before: " + ", ".join(f"{event} {count}" for event, count in where.most_common())


def command(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_torchrun", description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="at least so many; default 60")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=list(SETUPS), choices=SETUPS)
    parser.add_argument("--case", type=int, help="only the case of this number, of each chosen setup")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the runs write; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs, not only of failed ones")
    given = parser.parse_args(arguments)
    folder = Path(given.folder or tempfile.mkdtemp(prefix="campaign_torchrun-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{', '.join(given.only)}; seed {given.seed}, in {folder}", flush=True)
    begun = time.monotonic()
    records = campaign(given.only, given.kills, given.seed, given.jobs, folder, given.case, given.keep)
    print("\n".join(summary(records)))
    bad = [record for record in records if record["problem"] or record["differing"]]
    print(f"{len(records)} cases in {time.monotonic() - begun:.0f} s, {len(bad)} not equal")
    if not bad and not given.keep:
        shutil.rmtree(folder)
    return int(bool(bad) or not records)


if __name__ == "__main__":
    sys.exit(command())
