"""File campaign: a short run that is killed at each of its file operations in turn."""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaigns.campaign_kill import output, preload
from tests.campaigns.outcome import compare, kinds
from tests.campaigns.program import Configuration, main
from tests.campaigns.runner import Ended, in_jobs, run, shared_tasks

SOURCE = Path(__file__).with_name("interpose.c")
COMPILERS = ("cc", "gcc", "clang")
OTHER_DEVICE = Path("/dev/shm")


@dataclass(frozen=True)
class Variant:
    """A run and the way it is killed.

    Attributes:
        how: Configuration of the run.
        other_device: Whether the folder for temporary files is on another device than the checkpoints.
        torn: Whether half of a write is done before the kill, instead of none of it.
    """

    how: Configuration
    other_device: bool
    torn: bool

    @property
    def name(self) -> str:
        """Name of this variant in the report."""
        parts = [self.how.name, *(["other-device"] if self.other_device else []), *(["torn"] if self.torn else [])]
        return "/".join(parts)


def variants(epochs: int = 2) -> list[Variant]:
    """Return the variants of both formats."""
    return [
        Variant(Configuration(format=form, epochs=epochs, asynchronous=asynchronous), other_device, torn)
        for form in ("file", "directory")
        for asynchronous, other_device, torn in (
            (False, False, False),
            (False, False, True),
            (False, True, False),
            (True, False, False),
        )
    ]


def compiler() -> str | None:
    """Return the C compiler of this machine, or None."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def compiled(folder: Path) -> Path:
    """Compile the interposer."""
    library = folder / "interpose.so"
    found = compiler()
    assert found is not None, "no C compiler"
    subprocess.run([found, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def program(variant: Variant, where: Path, k: int, trace: Path | None = None) -> None:
    """Run, and die at the k-th file operation, or never if k is 0. Operations are written to `trace`."""
    temporary = OTHER_DEVICE / f"lightlib-campaign-{where.name}"
    if variant.other_device:
        temporary.mkdir(exist_ok=True)
        os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
    out = -1 if trace is None else os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    folders = f"{where}:{temporary}".encode()
    library = ctypes.CDLL(None)
    library.interpose_arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int)
    library.interpose_arm(folders, k, int(variant.torn), out)
    main(variant.how, where)


def operations(variant: Variant, folder: Path) -> tuple[Path, list[str]]:
    """Run without a kill; return the folder and the operations."""
    where, trace = folder / f"{variant.name.replace('/', '-')}-reference", folder / "trace.txt"
    trace = where.with_suffix(".trace")
    ended = run(partial(program, variant, where, 0, trace), 1, where)
    if not ended.well:
        raise RuntimeError(f"{variant.name}: the reference run ended with {ended.codes}\n{output(where)}")
    _clean(where)
    lines = trace.read_text().splitlines()
    return where, [line.split(" ", 1)[1].replace(str(where), "") for line in lines]


def _clean(where: Path) -> None:
    shutil.rmtree(OTHER_DEVICE / f"lightlib-campaign-{where.name}", ignore_errors=True)


def one(variant: Variant, k: int, reference: Path, folder: Path) -> tuple[Ended, str, list[str]]:
    """Kill at operation `k` and restart; return how it ended, the problem, and the differences."""
    where = folder / f"{variant.name.replace('/', '-')}-{k}"
    killed = run(partial(program, variant, where, k, where.with_suffix(".trace")), 1, where)
    again = run(partial(program, variant, where, 0), 1, where)
    _clean(where)
    problem = "" if again.well else f"the run that was started again ended with {again.codes}"
    if killed.codes not in ([-9], [0]):
        problem = f"the run that was to be killed ended with {killed.codes}"
    return killed, problem, [] if problem else compare(reference, where)


def campaign(chosen: list[Variant], every: int, only: int | None, jobs: int, folder: Path, keep: bool) -> list[Any]:
    """Kill at every k-th operation of each variant; return one record per kill."""
    known = [operations(variant, folder) for variant in chosen]
    points = [
        (variant, k, *found)
        for variant, found in zip(chosen, known, strict=True)
        for k in (range(1, len(found[1]) + 1, every) if only is None else [only])
        if not variant.torn or only is not None or found[1][k - 1].startswith("write")
    ]
    print(f"{len(points)} points: " + ", ".join(f"{v.name} {len(f[1])}" for v, f in zip(chosen, known, strict=True)))
    take = shared_tasks(len(points))

    def work() -> None:
        while (task := take()) is not None:
            variant, k, reference, names = points[task]
            killed, problem, differing = one(variant, k, reference, folder)
            _tell(folder, variant, k, names[k - 1], killed, problem, differing)
            if not keep and not problem and not differing:
                _remove(folder / f"{variant.name.replace('/', '-')}-{k}")

    in_jobs(jobs, work)
    path = folder / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _remove(where: Path) -> None:
    shutil.rmtree(where, ignore_errors=True)
    for path in (Path(f"{where}.rank0.txt"), where.with_suffix(".trace")):
        path.unlink(missing_ok=True)


def _tell(folder: Path, variant: Variant, k: int, name: str, killed: Ended, problem: str, differing: list[str]) -> None:
    hit = killed.codes == [-9]
    if problem or differing:
        where = folder / f"{variant.name.replace('/', '-')}-{k}"
        lines = [
            f"FAILED  {problem}" if problem else f"DIFFERS in {len(differing)} places ({', '.join(kinds(differing))}):",
            *differing[:6],
            f"{variant.name}: killed at operation {k}: {name}",
            f"again: python -m tests.campaigns.campaign_files --only {variant.name} --at {k} --keep",
            *([output(where, 12)] if problem else []),
        ]
        print("\n    ".join(lines), flush=True)
    values = {"name": variant.name, "k": k, "operation": name, "hit": hit, "problem": problem}
    with (folder / "records.jsonl").open("a") as file:
        file.write(json.dumps({**values, "differing": differing[:20], "kinds": kinds(differing)}) + "\n")


def summary(records: list[dict[str, Any]]) -> str:
    """Return a table of each variant's kills and their outcomes."""
    lines = [f"{'variant':48} {'kills':>5} {'equal':>5} {'differ':>6} {'failed':>6}"]
    by_name: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for record in records:
        by_name[record["name"]].append(record)
    for name, found in [*by_name.items(), ("all", records)]:
        hit, failed = sum(r["hit"] for r in found), sum(bool(r["problem"]) for r in found)
        differ = sum(bool(r["differing"]) for r in found)
        lines.append(f"{name:48} {hit:5} {len(found) - failed - differ:5} {differ:6} {failed:6}")
    operations_hit = collections.Counter(r["operation"].split()[0] for r in records if r["hit"])
    lines.append("operations: " + ", ".join(f"{name} {count}" for name, count in operations_hit.most_common()))
    parts = collections.Counter(kind for r in records for kind in r["kinds"])
    return "\n".join(lines + (["differing: " + ", ".join(f"{n} {c}" for n, c in parts.items())] if parts else []))


def command(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_files", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="names, or beginnings of names, of variants")
    parser.add_argument("--every", type=int, default=1, help="only every n-th operation")
    parser.add_argument("--at", type=int, help="only this operation")
    parser.add_argument("--epochs", type=int, default=2, help="length of the run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the runs write; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs, not only of failed ones")
    given = parser.parse_args(arguments)
    if compiler() is None:
        print(f"needs a C compiler: none of {', '.join(COMPILERS)} is there", file=sys.stderr)
        return 1
    folder = Path(given.folder or tempfile.mkdtemp(prefix="campaign_files-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not hasattr(ctypes.CDLL(None), "interpose_arm"):  # restart this program with the library preloaded
        options = [*(arguments if arguments is not None else sys.argv[1:]), "--folder", str(folder)]
        variables = {**os.environ, "LD_PRELOAD": str(compiled(folder))}
        os.execve(sys.executable, [sys.executable, "-m", "tests.campaigns.campaign_files", *options], variables)
    del os.environ["LD_PRELOAD"]
    chosen = [v for v in variants(given.epochs) if not given.only or any(v.name.startswith(n) for n in given.only)]
    if given.at is not None:
        chosen = [v for v in chosen if v.name in given.only]
    if not chosen:
        parser.error(f"--only {' '.join(given.only)} names no run")
    preload()
    begun = time.monotonic()
    records = campaign(chosen, given.every, given.at, given.jobs, folder, given.keep)
    print(summary(records))
    bad = [record for record in records if record["problem"] or record["differing"]]
    print(f"{len(records)} kills in {time.monotonic() - begun:.0f} s, {len(bad)} not equal; {folder}")
    if not bad and not given.keep:
        shutil.rmtree(folder)
    return int(bool(bad) or not records)


if __name__ == "__main__":
    sys.exit(command())
