"""`lightlib compat`: run Lightning's projects on lightlib, in one run or in the environment."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import os
import site
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import lightlib_lightning as compat
from lightlib.errors import MisconfigurationException
from lightlib.version import __version__
from lightlib_lightning.command import project

__all__ = ["ABOUT", "SECTION", "add_arguments", "run", "split", "switch_on_children"]

SECTION = "come from Lightning"
ABOUT = "run a program in which `import lightning` gives lightlib"

VARIABLE = "LIGHTLIB_AS_LIGHTNING"
ENTRY = "lightlib_as_lightning.pth"
# Python runs this line at its start, also when lightlib has been removed since.
_LINE = (
    "import os, sys; p = {folder!r}; os.environ.get({variable!r}) == '1' and p not in sys.path and "
    "os.path.isfile(os.path.join(p, 'lightning', '__init__.py')) and sys.path.insert(0, p)\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND", title="commands")
    program = commands.add_parser(
        "run",
        usage="lightlib compat run [-m] PROGRAM [ARGUMENT ...]",
        help="run a program in which `import lightning` gives lightlib",
    )
    program.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    program.add_argument("program", metavar="PROGRAM", help="a script; a module with -m")
    scanned = commands.add_parser("check", help="list what a project uses of Lightning and how it runs here")
    scanned.add_argument("path", metavar="PATH", type=Path, help="a file or folder; it is read, not imported")
    scanned.add_argument("--all", action="store_true", help="list what runs unchanged, too")
    commands.add_parser("enable", help=f"do so in every process of this environment that has {VARIABLE}=1")
    commands.add_parser("disable", help="undo enable")
    commands.add_parser("status", help="print which package `import lightning` gives, and why")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the command itself, and those of the program that it runs, which are passed on unchanged.

    Example:
        >>> split(["run", "-m", "package.train", "--epochs", "3"])
        (['run', '-m', 'package.train'], ['--epochs', '3'])
    """
    begin = next((i for i, word in enumerate(words) if i and not word.startswith("-")), len(words))
    end = begin + 1 if words[:1] == ["run"] else len(words)
    return [*words[:end]], [*words[end:]]


def run(arguments: argparse.Namespace) -> int:
    """Run a subcommand and return the exit status."""
    if arguments.subcommand == "run":
        return _run(arguments.program, arguments.arguments, arguments.module)
    if arguments.subcommand == "check":
        return _check(arguments.path, arguments.all)
    return {"enable": _enable, "disable": _disable, "status": _status}[arguments.subcommand]()


def _run(program: str, arguments: Sequence[str], is_module: bool) -> int:
    """Give this process to an interpreter that runs the program, so that all but the imports is as Python does it."""
    if not is_module and not os.path.exists(program):
        raise MisconfigurationException(
            f"lightlib compat run {program}: there is no such file.",
            expected="a script, or -m and a module.",
            fix=f"give its path from {os.getcwd()}."
            if program.endswith(".py")
            else f"lightlib compat run -m {program}",
        )
    switch_on_children()
    compat.announce()
    os.environ[compat.ANNOUNCED] = "1"
    command = [sys.executable, *(["-m"] if is_module else []), program, *arguments]
    if sys.platform != "win32":  # there the process that started this one would take it for ended
        os.execv(sys.executable, command)  # noqa: S606  the program that the user has named
    return subprocess.run(command, check=False).returncode  # noqa: S603  likewise


def switch_on_children() -> None:
    """Let the processes that this one starts import lightlib under Lightning's names."""
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(compat.SHIMS), *([path] if path else [])])


def _folders() -> list[Path]:
    """Return the folders in which Python looks for .pth files when it starts in this environment."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [Path(sysconfig.get_paths()["purelib"]), *map(Path, users)]


def _entries() -> list[Path]:
    return [folder / ENTRY for folder in _folders() if (folder / ENTRY).exists()]


def _enable() -> int:
    folders = _folders()
    folder = next(
        (
            candidate
            for candidate in folders
            if os.access(candidate if candidate.exists() else candidate.parent, os.W_OK)
        ),
        None,
    )
    if folder is None:
        raise MisconfigurationException(
            f"lightlib compat enable: {', '.join(map(str, folders))} cannot be written.",
            expected="a folder of this environment for the entry at start-up.",
            fix="enable it as the owner of the environment; `lightlib compat run PROGRAM` needs no entry.",
        )
    already = _entries()
    entry = folder / ENTRY
    folder.mkdir(parents=True, exist_ok=True)
    entry.write_text(_LINE.format(variable=VARIABLE, folder=str(compat.SHIMS)), encoding="utf-8")
    print(f"{'Renewed' if entry in already else 'Wrote'} {entry}.")
    print(f"With {VARIABLE}=1, `import lightning` gives lightlib in every process of this environment.")
    return 0


def _disable() -> int:
    entries = _entries()
    if not entries:
        print(f"It is not enabled: there is no {ENTRY} in {' or '.join(map(str, _folders()))}.")
    for entry in entries:
        try:
            entry.unlink()
        except OSError as error:
            raise MisconfigurationException(
                f"lightlib compat disable: {entry} cannot be removed: {error.strerror}.",
                expected="an entry of this user.",
                fix=f"disable it as the owner of the environment, or leave {VARIABLE} unset.",
            ) from error
        print(f"Removed {entry}.")
    return 0


def _status() -> int:
    value, entries, distributions = os.environ.get(VARIABLE), _entries(), compat.distributions()
    rows = {f"import {root} gives": _provider_of(root) for root in ("lightning", "pytorch_lightning")}
    rows["entry at start-up"] = ", ".join(map(_described, entries)) or "none (lightlib compat enable)"
    rows[VARIABLE] = "not set" if value is None else value if value == "1" else f"{value!r}: only 1 switches it on"
    used = not any(text.startswith("lightlib ") for text in rows.values())
    described = [
        f"{distribution}{' (for lightlib)' if distribution.ours else '' if used else ', not used'}"
        for distribution in distributions
    ]
    rows["installed Lightning"] = "; ".join(described) or "none"
    width = max(map(len, rows))
    for name, content in rows.items():
        print(f"{name:<{width}}  {content}")
    return 0


def _described(entry: Path) -> str:
    """Return the path of an entry, and whether it is one of this lightlib."""
    try:
        current = str(compat.SHIMS) in entry.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        current = False
    return str(entry) if current else f"{entry}, of another lightlib (lightlib compat enable renews it)"


def _provider_of(root: str) -> str:
    """Return which package an import of `root` gives in a process that starts as this one did."""
    spec = importlib.util.find_spec(root)
    if spec is None:
        return "nothing: it is not installed"
    folder = Path(spec.origin or "").parent
    name = root.replace("_", "-")
    distribution = next((candidate for candidate in compat.distributions() if candidate.name == name), None)
    if folder.is_relative_to(compat.SHIMS) or (distribution is not None and distribution.ours):
        return f"lightlib {__version__}"
    return f"{distribution or 'a package that pip does not know'} ({folder})"


def _check(path: Path, show_all: bool) -> int:
    if not path.exists():
        raise MisconfigurationException(
            f"lightlib compat check {path}: there is nothing.",
            expected="a file or folder.",
            fix="lightlib compat check .",
        )
    findings = project.scan(path)
    if not findings:
        print(f"No file of {path} uses Lightning.")
        return 0
    shown = [finding for finding in findings if show_all or finding.status != "unchanged"]
    for file, uses in itertools.groupby(shown, key=lambda finding: finding.file):
        print(file)
        print(*_lines(uses), sep="\n", end="\n\n")
    counts = Counter(finding.status for finding in findings)
    files = len({finding.file for finding in findings})
    present = ", ".join(f"{counts[status]} {status}" for status in project.STATUSES if counts[status])
    print(f"{files} file{'s' if files > 1 else ''} with {len(findings)} uses of Lightning: {present}.")
    if any(finding.see for finding in shown):
        print("The places of names.md are in the folder docs of lightlib.")
    if any(counts[status] for status in project.FAILING):
        print(
            "Change the lines above that are later, absent, private or unknown. If they are not yours to change, run "
            "the program with Lightning: leave compat off."
        )
        return 1
    print("All of them run here: lightlib compat run PROGRAM.")
    return 0


def _lines(uses: Iterable[project.Finding]) -> Iterator[str]:
    """Yield a line for each use of one file; the same difference in several places is one."""
    places: dict[tuple[str, ...], list[int]] = {}
    for use in uses:
        places.setdefault((use.status, use.name, use.reason, use.see), []).append(use.line)
    for (status, name, reason, see), lines in places.items():
        several = ", ".join(map(str, lines[:3])) + (", …" if len(lines) > 3 else "")
        yield f"  {several:>5}  {status:<9}  {name}{f': {reason}' if reason else ''}{f' ({see})' if see else ''}"
