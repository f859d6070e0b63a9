"""Make a release: join the notes of changes, check all that a user gets, and tag.

python scripts/release.py notes 0.2.0             write version and CHANGELOG.md from the files in changes/
python scripts/release.py check 0.2.0 [--dry-run] check the tree, build, install, try; tag unless --dry-run

RELEASING.md has the steps around it.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
TOOLS = ("hatchling>=1.27,<2", "twine>=6,<7")
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13")
PACKAGES = ("lightlib/", "lightlib_lightning/", "lightlib-stubs/")
NEEDED = ("lightlib/py.typed", "lightlib_lightning/py.typed", "lightlib/command/templates/classifier/config.yaml-tpl")


class Refused(Exception):
    """A check of the release failed; the text has the reason and the fix."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return its output; the last lines are the error if it fails."""
    ran = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    if ran.returncode:
        lines = "\n".join((ran.stdout + ran.stderr).strip().splitlines()[-15:])
        raise Refused(f"{' '.join(map(str, command))} ended with {ran.returncode}:\n{lines}")
    return ran.stdout


# notes of changes
def fragments(root: Path = ROOT) -> dict[str, list[Path]]:
    """Return the files in changes/ by kind."""
    found: dict[str, list[Path]] = {}
    for path in sorted((root / "changes").glob("*.md")):
        if path.name == "README.md":
            continue
        kind = path.name.removesuffix(".md").rpartition(".")[2]
        if kind not in KINDS:
            raise Refused(f"changes/{path.name} has no kind. Fix: name it <what>.<kind>.md, one of {', '.join(KINDS)}.")
        found.setdefault(kind, []).append(path)
    return found


def section(version: str, root: Path = ROOT) -> str:
    """Return the section of a version in CHANGELOG.md, from its heading on; empty if there is none."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\].*?(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def write_notes(version: str, day: str, root: Path = ROOT) -> None:
    """Write the version, and its section of CHANGELOG.md from the files in changes/, which are removed.

    A section that is there is dated; what changes/ has is put at the end of its kinds.
    """
    page, by_kind = root / "CHANGELOG.md", fragments(root)
    before, heading = section(version, root), f"## [{version}] - {day}"
    parts = re.split(r"^### (\w+)\n", before.partition("\n")[2], flags=re.MULTILINE) if before else [""]
    texts = dict(zip((name.lower() for name in parts[1::2]), parts[2::2], strict=True))
    for kind, paths in by_kind.items():
        items = "".join(f"- {_indented(path.read_text(encoding='utf-8'))}\n" for path in paths)
        texts[kind] = (texts.get(kind, "\n").rstrip("\n") + "\n" if texts.get(kind) else "\n") + items
    body = "".join(f"### {kind.capitalize()}\n\n{texts[kind].strip()}\n\n" for kind in KINDS if kind in texts)
    introduction = f"{parts[0].strip()}\n\n" if parts[0].strip() else ""
    new = f"{heading}\n\n{introduction}{body}"
    text = page.read_text(encoding="utf-8")
    if before:
        text = text.replace(before, new)
    else:
        first = text.find("\n## [")
        text = f"{text.rstrip()}\n\n{new}" if first < 0 else f"{text[: first + 1]}{new}{text[first + 1 :]}"
    page.write_text(text.rstrip() + "\n", encoding="utf-8")
    _version_file(root).write_text(
        re.sub(r'"[^"]+"(?=\n\Z)', f'"{version}"', _version_file(root).read_text(encoding="utf-8")), encoding="utf-8"
    )
    for path in (path for paths in by_kind.values() for path in paths):
        path.unlink()


def _indented(text: str) -> str:
    return text.strip().removeprefix("- ").replace("\n", "\n  ")


def _version_file(root: Path) -> Path:
    return root / "lightlib" / "version.py"


# checks of the tree
def check_tree(version: str, dry_run: bool, root: Path = ROOT) -> None:
    """Check the sources of a release: a clean tree, its version, its notes, and a free tag."""
    changed = run("git", "status", "--porcelain", cwd=root).splitlines()
    if changed:
        raise Refused(f"{len(changed)} files are not committed, such as {changed[0][3:]}. Fix: commit them.")
    if f'"{version}"' not in _version_file(root).read_text(encoding="utf-8"):
        raise Refused(f"lightlib/version.py has another version. Fix: python scripts/release.py notes {version}")
    notes = section(version, root)
    dated = re.match(r"## \[[^]]+\] - \d{4}-\d\d-\d\d\n", notes)
    if not notes or not (dated or dry_run):
        missing = "no date for" if notes else "no section"
        raise Refused(f"CHANGELOG.md has {missing} [{version}]. Fix: python scripts/release.py notes {version}")
    left = [path for paths in fragments(root).values() for path in paths]
    if left:
        raise Refused(f"changes/ has {len(left)} notes. Fix: python scripts/release.py notes {version}")
    if run("git", "tag", "--list", f"v{version}", cwd=root):
        raise Refused(f"the tag v{version} exists. Fix: release another version.")


def check_green() -> None:
    """Run the checks and the tests, which print their results."""
    if subprocess.run([".ci/run"], cwd=ROOT, check=False).returncode:
        raise Refused(".ci/run has failed. Fix: what it names above.")


# checks of the files
def build(folder: Path, tools: Path) -> tuple[Path, Path]:
    """Build wheel and sdist into a folder, and return them."""
    run(tools, "-m", "hatchling", "build", "-d", folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def problems_of_wheel(names: Sequence[str]) -> Iterator[str]:
    """Yield the mistakes in the files of a wheel."""
    for name in names:
        if not name.startswith(PACKAGES) and ".dist-info/" not in name:
            yield f"it has {name}, which belongs to no package"
        elif "__pycache__" in name or re.search(r"(^|/)(tests|conftest\.py)(/|$)", name):
            yield f"it has {name}"
    for name in NEEDED:
        if name not in names:
            yield f"it lacks {name}"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield "it lacks the licence"
    if not any(name.endswith(".dist-info/entry_points.txt") for name in names):
        yield "it lacks the command `lightlib`"


def doubles(wheel: zipfile.ZipFile) -> list[str]:
    """Return templates that have the content of another one."""
    seen: dict[bytes, str] = {}
    names = [name for name in wheel.namelist() if "/templates/" in name and not name.endswith("/")]
    return [f"{name} = {other}" for name in names if (other := seen.setdefault(wheel.read(name), name)) != name]


def check_files(wheel: Path, sdist: Path, tools: Path) -> None:
    """Check the content of wheel and sdist, their metadata, and that the sdist builds the same wheel."""
    run(tools, "-m", "twine", "check", "--strict", wheel, sdist)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        wrong = [*problems_of_wheel(names), *(f"it has a double: {pair}" for pair in doubles(archive))]
    if wrong:
        raise Refused(f"{wheel.name}: {'; '.join(wrong[:5])}.")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as source:
            source.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        run(tools, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=unpacked)
        (again,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(again) as archive:
            differing = set(names) ^ set(archive.namelist())
    if differing:
        raise Refused(f"{sdist.name} builds another wheel: {', '.join(sorted(differing)[:5])}.")


def program_of_readme(root: Path = ROOT) -> str:
    """Return the first program of README.md."""
    found = re.search(r"```python\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise Refused("README.md has no program.")
    return found[1]


def check_installed(wheel: Path, interpreter: str, torch: str) -> None:
    """Install the wheel into a new environment, torch first, and use it as the README does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(interpreter, "-m", "venv", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", torch)
        run(python, "-m", "pip", "install", "--quiet", wheel)
        run(python, "-m", "pip", "check")
        run(python, "-W", "error", "-c", "import lightlib", cwd=folder)
        (folder / "program.py").write_text(program_of_readme(), encoding="utf-8")
        run(python, "-W", "error", "program.py", cwd=folder)
        run(python, "-m", "lightlib", "init", "project", cwd=folder)
        run(
            python,
            "-m",
            "lightlib",
            "fit",
            "--config",
            "config.yaml",
            "--trainer.max_epochs",
            "1",
            cwd=folder / "project",
        )


def interpreters(names: Sequence[str], dry_run: bool) -> list[str]:
    """Return the interpreters that are there. A release needs all of them, a dry run one."""
    found = [name for name in names if shutil.which(name)]
    missing = [name for name in names if name not in found]
    if missing and not (dry_run and found):
        raise Refused(f"{', '.join(missing)}: not installed here. Fix: install them, or shorten --pythons.")
    if missing:
        print(f"  not tried: {', '.join(missing)}: not installed here", flush=True)
    return found


def check(version: str, *, dry_run: bool, pythons: Sequence[str], torch: str, tests: bool) -> None:
    """Do all checks, print each, and tag."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("tree, version, notes, tag", lambda: check_tree(version, dry_run))
        if tests:
            step("checks and tests (.ci/run)", check_green)
        else:
            print("  left out: checks and tests", flush=True)
        venv.create(folder / "tools", with_pip=True)
        tools = folder / "tools" / "bin" / "python"
        run(tools, "-m", "pip", "install", "--quiet", *TOOLS)
        wheel, sdist = build(folder / "dist", tools)
        step(f"{wheel.name}, {sdist.name}", lambda: check_files(wheel, sdist, tools))
        for interpreter in interpreters(pythons, dry_run):
            step(f"installed in {interpreter}", lambda: check_installed(wheel, interpreter, torch))  # noqa: B023
        if dry_run:
            print(f"Dry run: v{version} was not tagged, and nothing is left.", flush=True)
            return
        shutil.copytree(folder / "dist", ROOT / "dist", dirs_exist_ok=True)
    run("git", "tag", "-a", f"v{version}", "-m", f"lightlib {version}")
    print(f"Tagged v{version}; the files are in dist/. Next: git push origin v{version}", flush=True)


def step(name: str, function: Callable[[], object]) -> None:
    """Run one check and print its name."""
    print(f"  {name} …", end=" ", flush=True)
    function()
    print("ok", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if a check fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    notes = commands.add_parser("notes", help="write the version and CHANGELOG.md from the files in changes/")
    checks = commands.add_parser("check", help="check, build, install, try and tag")
    for command in (notes, checks):
        command.add_argument("version", help="such as 0.2.0")
    checks.add_argument("--dry-run", action="store_true", help="do not tag")
    checks.add_argument("--no-tests", dest="tests", action="store_false", help="leave out .ci/run")
    checks.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="PYTHON", help="interpreters to install for")
    checks.add_argument("--torch", default=_pinned_torch(), help="what is installed first (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not VERSION.fullmatch(options.version):
        parser.error(f"{options.version!r} is no version; three numbers are, such as 0.2.0, or 0.2.0rc1")
    try:
        if options.command == "notes":
            write_notes(options.version, datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat())
        else:
            check(
                options.version,
                dry_run=options.dry_run,
                pythons=options.pythons,
                torch=options.torch,
                tests=options.tests,
            )
    except Refused as error:
        print(f"\nNot released: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _pinned_torch() -> str:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


if __name__ == "__main__":
    sys.exit(main())
