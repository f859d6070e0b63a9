"""The key `entrypoint`: a class, the YAML file of a fit, or a command line."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any, NamedTuple

from lightlib.experiment.file.place import Place

_CLASS = re.compile(r"((?P<module>[A-Za-z_][\w.]*)?:)?(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_SHELL = re.compile(r"[;&|<>$`*?~(){}\n]")
_LAUNCHERS = "determined.launch."
_TORCH = f"{_LAUNCHERS}torch_distributed"
_EXPECTED = "module:Class, the YAML file of a fit, or a command line (a list, or text)."
_INSTEAD = {  # of Determined's launch modules
    "horovod": (
        "starts processes of Horovod, which lightlib does not use",
        "python3 -m determined.launch.torch_distributed SCRIPT, or module:Class: both train with DDP",
    ),
    "deepspeed": (
        "starts processes of DeepSpeed's launcher",
        "module:Class with fit.trainer.strategy: deepspeed, or python3 -m determined.launch.torch_distributed SCRIPT",
    ),
    "tensorflow": (
        "starts TensorFlow, and trials of lightlib are fits of PyTorch modules",
        "the command line of your program as a list: [python3, train.py]",
    ),
}


class Entrypoint(NamedTuple):
    """The program of a trial: exactly one of `class_path`, `file` and `command`.

    Attributes:
        written: As in the file.
        class_path: ``"module:Class"`` of a `lightlib.Module`; without a module, ``":Class"`` of the context itself.
        file: The YAML file of a fit.
        command: A command line.
        per_slot: Whether the command runs once per slot, with ranks; else once per trial.
    """

    written: str | tuple[str, ...]
    class_path: str = ""
    file: str = ""
    command: tuple[str, ...] = ()
    per_slot: bool = False

    def plain(self) -> Any:
        """Return it as it is written."""
        return list(self.written) if isinstance(self.written, tuple) else self.written


def entrypoint(value: Any, place: Place) -> Entrypoint:
    """Check an entrypoint.

    Example:
        >>> place = Place("entrypoint", {})
        >>> entrypoint("model_def:MNistTrial", place).class_path
        'model_def:MNistTrial'
        >>> entrypoint("python3 -m determined.launch.torch_distributed train.py --lr 1", place).command
        ('python3', 'train.py', '--lr', '1')
    """
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(word, str) for word in value):
            fix = place.line([str(word) for word in value] or ["python3", "train.py"])
            place.wrong(value, "a list of texts; numbers need quotes.", fix)
        return _command(tuple(value), tuple(value), place)
    if not isinstance(value, str) or not value.strip():
        place.wrong(value, _EXPECTED, place.line("model:Classifier"))
    text = value.strip()
    if re.fullmatch(r"\S+\.ya?ml", text):
        return Entrypoint(value, file=text)
    match = _CLASS.fullmatch(text)
    if match:
        return Entrypoint(value, class_path=f"{match['module'] or ''}:{match['name']}")
    if ":" in text and " " not in text and "/" not in text:
        place.wrong(value, _EXPECTED, place.line("model:Classifier"))
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        place.wrong(value, f"a command line; {str(error).lower().removesuffix('.')}.", "close the quote.")
    launched = any(word.startswith(_LAUNCHERS) for word in words)
    if _SHELL.search(text) and not launched:
        words = ("sh", "-c", text)
    return _command(value, words, place)


def _command(written: str | tuple[str, ...], words: tuple[str, ...], place: Place) -> Entrypoint:
    """Return a command line, or the program behind a launch module of Determined."""
    index = next((at for at, word in enumerate(words) if word.startswith("determined.")), 0)
    if index < 2 or words[index - 1] != "-m":
        return Entrypoint(written, command=words)
    module, rest = words[index], list(words[index + 1 :])
    if module != _TORCH:
        name = module.removeprefix(_LAUNCHERS)
        why, instead = _INSTEAD.get(name, ("is a module of Determined", "the command line of your own program"))
        place.refuse(f"runs {module}, which {why}.", _EXPECTED, f"{place.key}: {instead}")
    if "--" in rest and rest[0].startswith("-") and not rest[0].startswith(("--trial", "-m")):
        options, rest = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
        if options:
            shown_options, fix = " ".join(options), f"{place.key}: {' '.join(words[: index + 1])} {' '.join(rest)}"
            place.refuse(f"has options of torchrun: {shown_options}.", "no options: resources sets the processes.", fix)
    if not rest:
        place.refuse(f"ends after {module}.", "a script after it.", f"{place.key}: {' '.join(words)} train.py")
    if rest[0] == "--trial" or rest[0].startswith("--trial="):
        return _trial(written, rest, place)
    if rest[0].startswith("-") and rest[0] != "-m":
        place.refuse(
            f"has the option {rest[0]} before the script.",
            "the script right after the launch module.",
            f"{place.key}: {' '.join(words[: index + 1])} train.py",
        )
    runs_python = os.path.basename(rest[0]).startswith("python")
    needs_python = not runs_python and (rest[0] == "-m" or rest[0].endswith(".py"))
    return Entrypoint(written, command=(*(words[: index - 1] if needs_python else ()), *rest), per_slot=True)


def _trial(written: str | tuple[str, ...], rest: list[str], place: Place) -> Entrypoint:
    """Return the class that follows ``--trial``."""
    name = rest[0].partition("=")[2] or (rest[1] if len(rest) > 1 else "")
    match = _CLASS.fullmatch(name)
    if not match:
        place.refuse(f"has {name!r} after --trial.", "module:Class.", f"{place.key}: model_def:MyTrial")
    return Entrypoint(written, class_path=f"{match['module'] or ''}:{match['name']}")
