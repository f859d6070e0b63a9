"""`lightlib init`: writes a small project that runs and tests at once."""

from __future__ import annotations

import argparse
import os
import shlex
from contextlib import suppress
from pathlib import Path

from lightlib.errors import MisconfigurationException, UnknownNameError, closest

TEMPLATES = {
    "classifier": "a convolutional network that classifies drawn shapes",
    "lm": "a small transformer that writes text, character by character",
    "gan": "two networks that play against each other, with manual optimization",
    "search": "a network on digits, and a search for its hyperparameters",
}
_FOLDER = Path(__file__).parent / "templates"
_ENDING = "-tpl"  # so that no tool takes the templates for code of the package
EPILOG = """Nothing is ever overwritten. The projects need nothing but lightlib: their data is made here.

examples
  lightlib init
  lightlib init my_project --template lm
  lightlib init search my_search
"""
_FIRST = {"search": "lightlib experiment run search.yaml"}  # the first command of a project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lightlib init`."""
    parser.add_argument(
        "words",
        metavar="[TEMPLATE] FOLDER",
        nargs="*",
        help="where to; it is made if it does not exist (default: here). With a template before it: --template",
    )
    parser.add_argument(
        "--template",
        metavar="NAME",
        default="classifier",
        help="; ".join(f"{name}: {about}" for name, about in TEMPLATES.items()) + " (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the project and print the next steps."""
    folder, template = _place(options.words, options.template)
    files = write(folder, template)
    print(f"Wrote {TEMPLATES[template]}, to {folder.resolve()}:\n")
    for path in files:
        print(f"  {path.name}")
    print("\nNext:\n")
    if folder.resolve() != Path.cwd():
        print(f"  cd {shlex.quote(str(folder))}")
    print(f"  {_FIRST.get(template, 'lightlib fit --config config.yaml')}")
    print("  python -m pytest\n\nREADME.md has the rest.")
    return 0


def _place(words: list[str], template: str) -> tuple[Path, str]:
    """Return the folder and the template of ``[TEMPLATE] FOLDER``."""
    if len(words) > 2:
        raise MisconfigurationException(
            f"lightlib init got {len(words)} words: {' '.join(words)}.",
            expected="a folder, or a template and a folder.",
            fix=f"lightlib init {shlex.quote(words[0])}",
        )
    *first, folder = words or ["."]
    return Path(folder), first[0] if first else template


def write(folder: Path, template: str) -> list[Path]:
    """Write the files of a template, all or none, to a folder that is made if it does not exist; return their paths."""
    if template not in TEMPLATES:
        near = closest(template, TEMPLATES, "classifier")
        where = "" if folder == Path() else f"{shlex.quote(str(folder))} "
        raise UnknownNameError("template", template, TEMPLATES, fix=f"lightlib init {where}--template {near}")
    sources = sorted((*_FOLDER.glob(f".*{_ENDING}"), *(_FOLDER / template).iterdir()), key=lambda path: path.name)
    files = [folder / source.name.removesuffix(_ENDING) for source in sources]
    there = [path.name for path in files if os.path.lexists(path)]
    if there:
        raise MisconfigurationException(
            f"{str(folder.resolve())!r} already has {', '.join(there)}.",
            expected="a folder with none of the files of the project: nothing is ever overwritten.",
            fix="lightlib init my_project, or move your files away first. Nothing was written.",
        )
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    begun: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, path in zip(sources, files, strict=True):
            text = source.read_bytes()
            with path.open("xb") as file:
                begun.append(path)
                file.write(text)
    except OSError as error:
        for path in begun:
            path.unlink(missing_ok=True)
        for place in missing:
            with suppress(OSError):
                place.rmdir()
        chosen = "" if template == "classifier" else f" --template {template}"
        where = f" ({error.filename})" if error.filename else ""
        raise MisconfigurationException(
            f"The project cannot be written to {str(folder)!r}: {error.strerror or error}{where}.",
            expected="a folder in which files can be made, or a name for a new one.",
            fix=f"lightlib init my_project{chosen}, in a place that is yours. Nothing was written.",
        ) from error
    return files
