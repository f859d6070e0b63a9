"""Writes and checks constraints.txt: one exact version for all that the tests and examples need.

python scripts/constraints.py check                              is everything pinned, and installed as pinned?
python scripts/constraints.py write python3.10 python3.11 …      resolve again, once per interpreter
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
PROJECT = "lightlib"
EXTRAS = ("dev", "docs", "examples", "test")
SEPARATE = ("guides",)  # pinned, and installed in an environment without the development tools: record 2 has the reason
# The libraries of torch's GPU builds: torch's own metadata pins them, and the CPU build has none of them.
GPU_LIBRARIES = ("cuda-", "nvidia-", "triton")
HEADER = """\
# The exact versions that lightlib is tested with: {project}[{extras}] and all that they need in turn.
# Made on Linux by `python scripts/constraints.py write {interpreters}`; do not edit by hand.
# Where interpreters need different versions, a marker selects one. torch's own GPU libraries are not listed:
# torch pins them itself. The extras for services and engines (wandb, deepspeed, …) are not listed.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="is everything pinned, and installed as pinned?")
    write = commands.add_parser("write", help="resolve again and write constraints.txt")
    write.add_argument("interpreters", nargs="+", help="the Python programs to resolve for, for example python3.10")
    options = parser.parse_args(arguments)
    if options.command == "write":
        FILE.write_text(resolve(options.interpreters), encoding="utf-8")
        return 0
    problems = [*form_problems(FILE.read_text(encoding="utf-8")), *installed_problems()]
    for problem in problems:
        print(f"constraints.txt: {problem}", file=sys.stderr)
    if problems:
        print("Fix: edit pyproject.toml, then `python scripts/constraints.py write python3.10 …`.", file=sys.stderr)
    return 1 if problems else 0


def pins(text: str) -> list[Requirement]:
    """Return the lines of a constraints file as requirements."""
    return [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]


def form_problems(text: str) -> Iterator[str]:
    """Yield the lines that are not ``name==version`` with an optional marker, or are out of order."""
    listed = pins(text)
    for pin in listed:
        exact = [s for s in pin.specifier if s.operator == "==" and "*" not in s.version]
        if len(pin.specifier) != 1 or not exact or pin.url or pin.extras:
            yield f"`{pin}` is not of the form name==version."
        elif Version(exact[0].version).local:
            yield f"`{pin}` names a build ({Version(exact[0].version).local}) that only some machines have."
    names = [canonicalize_name(pin.name) for pin in listed]
    if names != sorted(names):
        yield "the lines are not sorted by name."


def installed_problems() -> Iterator[str]:
    """Yield the requirements of the installed project, direct or not, without a fitting pin."""
    pinned = {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in pins(FILE.read_text(encoding="utf-8"))
        if pin.marker is None or pin.marker.evaluate()
    }
    for requirement, needed_by in requirements(Requirement(f"{PROJECT}[{','.join(EXTRAS)}]")):
        name = canonicalize_name(requirement.name)
        if name not in pinned:
            yield f"no line for {requirement.name}, which {needed_by} needs."
        elif not requirement.specifier.contains(pinned[name], prereleases=True):
            yield f"{requirement.name}=={pinned[name]} is not in the range that {needed_by} asks for: {requirement}."
        elif name != "torch" and metadata.version(name) != pinned[name]:
            yield f"{requirement.name}=={pinned[name]} is pinned, {metadata.version(name)} is installed."


def requirements(root: Requirement) -> Iterator[tuple[Requirement, str]]:
    """Yield every requirement of `root`, direct or not, with the name of the package that declares it."""
    todo, seen = [root], {str(root)}
    while todo:
        parent = todo.pop()
        for text in metadata.requires(parent.name) or []:
            child = Requirement(text)
            applies = child.marker is None or any(child.marker.evaluate({"extra": e}) for e in (*parent.extras, ""))
            if not applies or child.name.startswith(GPU_LIBRARIES):
                continue
            if canonicalize_name(child.name) != PROJECT:
                yield child, parent.name
            if str(child) not in seen:
                seen.add(str(child))
                todo.append(child)


def resolve(interpreters: list[str]) -> str:
    """Return the text of constraints.txt as pip resolves it now, for all `interpreters` together."""
    torch = next(pin for pin in pins(FILE.read_text(encoding="utf-8")) if pin.name == "torch")
    resolved: dict[str, dict[str, str]] = {}
    labels = []
    for interpreter in interpreters:
        label, versions = resolve_for(interpreter, str(torch))
        labels.append(label)
        for name, version in versions.items():
            resolved.setdefault(name, {})[label] = version
    labels.sort(key=Version)
    lines = [line for name in sorted(resolved) for line in pin_lines(name, resolved[name], labels)]
    extras, programs = sorted((*EXTRAS, *SEPARATE)), " ".join(f"python{label}" for label in labels)
    header = HEADER.format(project=PROJECT, extras=",".join(extras), interpreters=programs)
    return header + "\n".join(lines) + "\n"


def resolve_for(interpreter: str, torch: str) -> tuple[str, dict[str, str]]:
    """Return ``"3.11"`` and the versions that pip would install for it into a fresh environment."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        report = Path(folder) / "report.json"
        wanted = [torch, f"{ROOT}[{','.join(sorted((*EXTRAS, *SEPARATE)))}]"]
        dry_run = ["install", "-q", "-q", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([str(python), "-m", "pip", *dry_run, *wanted], check=True)
        answer = json.loads(report.read_text(encoding="utf-8"))
    major, minor = answer["environment"]["python_version"].split(".")
    items = [item["metadata"] for item in answer["install"]]
    found: dict[str, str] = {canonicalize_name(item["name"]): Version(item["version"]).public for item in items}
    own = {name: version for name, version in found.items() if name != PROJECT and not name.startswith(GPU_LIBRARIES)}
    return f"{major}.{minor}", own


def pin_lines(name: str, versions: Mapping[str, str], labels: list[str]) -> Iterator[str]:
    """Yield one line per version of `name`, with a marker where the interpreters differ.

    Example:
        >>> list(pin_lines("numpy", {"3.10": "2.2.6", "3.11": "2.4.6", "3.12": "2.4.6"}, ["3.10", "3.11", "3.12"]))
        ['numpy==2.2.6 ; python_version < "3.11"', 'numpy==2.4.6 ; python_version >= "3.11"']
    """
    having = [label for label in labels if label in versions]
    starts = [label for i, label in enumerate(having) if i == 0 or versions[label] != versions[having[i - 1]]]
    for i, start in enumerate(starts):
        bounds = [f'python_version >= "{start}"'] if i else []
        bounds += [f'python_version < "{starts[i + 1]}"'] if i + 1 < len(starts) else []
        yield f"{name}=={versions[start]}" + (f" ; {' and '.join(bounds)}" if bounds else "")


if __name__ == "__main__":
    sys.exit(main())
