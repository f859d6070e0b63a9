"""`lightlib doctor`: prints facts about this machine, and checks with their fixes."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from lightlib.command.doctor import facts
from lightlib.command.doctor.checks import Check, examine
from lightlib.command.doctor.profile import profile
from lightlib.errors import MisconfigurationException

EPILOG = """The last line counts the warnings and failures; the exit status is 1 when a check has failed, else 0.
Nothing is sent, and nothing stays on the disk. With --profile nothing is checked: the script runs, and the last table
names its bottleneck with a fix. `lightlib env` prints the part that a bug report needs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lightlib doctor`."""
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--steps", type=int, metavar="N", help="with --profile: end each training run after N steps")
    parser.add_argument(
        "--profile", nargs=argparse.REMAINDER, metavar="SCRIPT",
        help="run a script, with the arguments that follow it, and show where the time of its training goes",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Print facts and checks, or the profile of a script; return 1 if a check failed."""
    if options.profile is not None or options.steps is not None:
        return profile(_script_of(options), options.steps)
    packages = facts.packages()
    groups = facts.groups(packages)
    if options.json:
        checks = list(examine(packages))
        print(json.dumps({**groups, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        for title, group in groups.items():
            _print_group(title, group)
        checks = _print_checks(examine(packages))
    return int(any(check.status == "failed" for check in checks))


def _script_of(options: argparse.Namespace) -> list[str]:
    script: list[str] = options.profile or []
    if not script or options.json:
        other = "--json with --profile" if options.json else "--profile without a script" if script == [] else ""
        raise MisconfigurationException(
            f"lightlib doctor got {other if options.profile is not None else '--steps without --profile'}.",
            expected="--profile with a script and its arguments, at the end.",
            fix="lightlib doctor --steps 100 --profile train.py",
        )
    return script


def _print_group(title: str, group: Mapping[str, Any]) -> None:
    print(title.capitalize())
    width = max(map(len, group), default=0)
    for name, value in group.items():
        print(f"  {name:{width}}  {value}")
    if not group:
        print("  no variable that affects a run is set" if title == "environment" else "  needs torch")
    print()


def _print_checks(checks: Iterable[Check]) -> list[Check]:
    print("Checks")
    lines = textwrap.TextWrapper(
        max(60, shutil.get_terminal_size().columns), break_on_hyphens=False, break_long_words=False
    )
    done = []
    for check in checks:
        done.append(check)
        lines.initial_indent, lines.subsequent_indent = f"  {check.status:9}", " " * 11
        print(lines.fill(f"{check.name}: {check.found}"))
        lines.initial_indent, lines.subsequent_indent = " " * 11, " " * 16
        if check.fix:
            print(lines.fill(f"Fix: {check.fix}"))
    counts = Counter(check.status for check in done)
    warnings = f"{counts['warning']} warning{'' if counts['warning'] == 1 else 's'}"
    print(f"\n{counts['ok']} ok, {warnings}, {counts['failed']} failed.")
    return done
