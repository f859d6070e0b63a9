"""The command line of `make gpu`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightlib.errors import LightlibError, MisconfigurationException, UnknownNameError
from tests.gpu.case import PRECISIONS, Case, Outcome
from tests.gpu.device import Device, chosen
from tests.gpu.parts import PARTS
from tests.gpu.processes import ROOT, Limits, run_cases
from tests.gpu.results import Results, write_page

PAGE = ROOT / "docs" / "gpu.md"
RESULTS = {False: ROOT / "build" / "gpu.json", True: ROOT / "build" / "gpu-pretended.json"}
SHOWN_LINES = 8  # of the output of a case that fails


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 if a case failed, or 2 after a request that cannot be met."""
    given = _parser().parse_args(arguments)
    try:
        if given.page is not None:
            write_page(Results(given.page), PAGE)
            print(f"{PAGE} has the results of {given.page}.")
            return 0
        _check_names("part", given.only, PARTS)
        _check_names("precision", given.precisions, PRECISIONS)
        device = chosen(given.pretend, given.devices)
        plan = {part: _cases(part, device, given) for part in given.only}
        if given.cases and not any(plan.values()):
            raise MisconfigurationException(
                f"No case begins with {' or '.join(map(repr, given.cases))}.",
                expected="beginnings of names of cases.",
                fix="python -m tests.gpu --list",
            )
        if given.list:
            _print_list(plan, device)
            return 0
        return _run(plan, device, given)
    except LightlibError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--cases", nargs="+", default=[], metavar="NAME", help="beginnings of names of cases")
    parser.add_argument(
        "--precisions", nargs="+", default=list(PRECISIONS), metavar="PRECISION", help=f"of {', '.join(PRECISIONS)}"
    )
    parser.add_argument("--list", action="store_true", help="list the cases, and run nothing")
    parser.add_argument(
        "--pretend", action="store_true", help="run on the CPU with gloo, to see that it works up to the device"
    )
    parser.add_argument("--devices", type=int, help="use so many GPUs; default: all, and 4 with --pretend")
    parser.add_argument("--results", type=Path, help="the file of results; default: build/gpu.json")
    parser.add_argument("--resume", action="store_true", help="leave out cases that passed before, by the results")
    parser.add_argument("--limit", type=float, default=Limits.part, help="seconds for a part; default: %(default)g")
    parser.add_argument("--case-limit", type=float, default=Limits.case, help="for a case; default: %(default)g")
    parser.add_argument(
        "--page", type=Path, metavar="RESULTS", help="write these results into docs/gpu.md; run nothing"
    )
    return parser


def _check_names(kind: str, names: Sequence[str], known: Sequence[str] | dict[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, name, known, fix="python -m tests.gpu --list")


def _cases(part: str, device: Device, given: argparse.Namespace) -> list[Case]:
    found = PARTS[part].cases(device, given.precisions)
    return [case for case in found if not given.cases or case.name.startswith(tuple(given.cases))]


def _print_list(plan: dict[str, list[Case]], device: Device) -> None:
    for part, cases in plan.items():
        print(f"{part}: {PARTS[part].about}")
        for case in cases:
            print(f"    {case.name}{_lacks(case, device) and f'   ({_lacks(case, device)})'}")


def _lacks(case: Case, device: Device) -> str:
    if case.devices <= device.count:
        return ""
    return f"needs {case.devices} GPUs, {device.count} here"


def _run(plan: dict[str, list[Case]], device: Device, given: argparse.Namespace) -> int:
    path = given.results or RESULTS[device.pretended]
    results = Results(path, _facts(device))
    print(f"{results.page().splitlines()[0]}\nResults: {path}", flush=True)
    _check_packages(plan)
    failed, limits = 0, Limits(given.limit, given.case_limit)
    for part, cases in plan.items():
        begun = time.monotonic()
        print(f"\n{part}: {PARTS[part].about}", flush=True)
        counts: dict[str, int] = {}
        report = _reporter(part, results, counts)
        for case in cases:
            if _lacks(case, device):
                report(case, Outcome("needs devices", problem=_lacks(case, device)))
        left = [case for case in cases if not _lacks(case, device)]
        if given.resume:
            left = [case for case in left if not results.passed(part, case.name)]
        with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
            run_cases(part, left, device, Path(folder), report, limits)
        failed += counts.get("failed", 0)
        words = ", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing left to run"
        print(f"{part}: {words}, in {time.monotonic() - begun:.0f} s", flush=True)
    if not device.pretended and given.results is None:
        write_page(results, PAGE)
        print(f"{PAGE} has the results.")
    return int(failed > 0)


def _facts(device: Device) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.gpu.device", "pretended" if device.pretended else "cuda", str(device.count)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise MisconfigurationException(
            f"A process cannot use the devices:\n{ended.stderr.strip()}",
            expected="torch to find and use each of them.",
            fix="see nvidia-smi: another process may hold a GPU, or its driver is too old for this torch.",
        )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _check_packages(plan: dict[str, list[Case]]) -> None:
    for part in [part for part, cases in plan.items() if cases]:
        missing = [name for name in PARTS[part].packages if importlib.util.find_spec(name) is None]
        if missing:
            raise MisconfigurationException(
                f"The part {part!r} needs {' and '.join(missing)}, which is not installed.",
                expected="its packages in this environment.",
                fix=f"pip install {' '.join(missing)}, or --only {' '.join(name for name in plan if name != part)}",
            )


def _reporter(part: str, results: Results, counts: dict[str, int]) -> Callable[[Case, Outcome], None]:
    def report(case: Case, outcome: Outcome) -> None:
        results.add(part, case.name, replace(outcome, date=time.strftime("%Y-%m-%d")).as_dict())
        counts[outcome.state] = counts.get(outcome.state, 0) + 1
        figures = ", ".join(
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in outcome.figures.items()
        )
        print(f"  {outcome.state:13} {case.name:40} {outcome.seconds:6.1f} s  {figures or outcome.problem}", flush=True)
        if outcome.state == "failed":
            print("".join(f"      {line}\n" for line in outcome.output[-SHOWN_LINES:]), end="", flush=True)

    return report
