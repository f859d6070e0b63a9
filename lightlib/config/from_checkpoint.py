"""Hyperparameters of the checkpoint that a command line names: defaults for the model that it builds."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.config.hyperparameters import BY_COMMAND_LINE
from lightlib.config.names import translated
from lightlib.config.yaml.file import Sources, load
from lightlib.errors import LightlibError

__all__ = ["with_hyperparameters"]

Part = dict[str, Any]
_MARKS = (BY_COMMAND_LINE, "lightning.pytorch.cli.instantiate_module")


def with_hyperparameters(
    words: Sequence[str], verbs: Iterable[str], kind: Any, subclasses: bool, sources: Sources
) -> list[str]:
    """Return a command line with the model's hyperparameters from the checkpoint of its ``--ckpt_path``.

    They come first, so values in files and options take precedence. No class is taken from a checkpoint: if the class
    of the model is part of the configuration, the arguments are used for that class only.

    Args:
        words: The command line.
        verbs: The sub-commands.
        kind: The class of the model, or a function that returns one.
        subclasses: Whether it is part of the configuration.
        sources: Reads the configuration files, for the parser too.
    """
    words = list(words)
    at = next((i for i, word in enumerate(words) if word in set(verbs)), None)
    parts = list(_parts(words, sources))
    path = _checkpoint_of(words, parts)
    if at is None or path is None or not Path(path).exists():
        return words
    saved = dict(_saved(path))
    made_by, name = saved.pop("_instantiator", None), saved.pop("_class_path", None)
    found = _plain(saved)
    if not subclasses:
        known = inspect.signature(kind).parameters
        model = {key: value for key, value in found.items() if key in known}
    elif made_by in _MARKS and name is not None and any(_same(name, given) for given in _classes(words, parts)):
        model = {"class_path": name, "dict_kwargs": found}  # the parser knows which are init_args
    else:
        return words
    left = sorted(saved.keys() - found.keys() - _given(words, parts))
    if left:
        report.warn(
            f"--ckpt_path: {', '.join(map(repr, left))} of {path!r} is ignored, because it would import or read "
            f"something that only the file names. --model.{left[0]}=… gives it.",
            report.PossibleUserWarning,
        )
    if not model:
        return words
    return [*words[: at + 1], f"--config={json.dumps({'model': model})}", *words[at + 1 :]]


def _saved(path: str) -> Mapping[str, Any]:
    try:
        content = formats.load(path, "meta")
    except (LightlibError, OSError):  # the Trainer reads it again and reports the error
        return {}
    found = content.get("hyper_parameters")
    return found if isinstance(found, Mapping) else {}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are plain and do not make the parser import or read anything."""
    kept = {}
    for name, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue
        if not _names_code(value):
            kept[name] = value
    return kept


def _names_code(value: Any) -> bool:
    """Whether a value is or holds a class to build, the path of anything that can be imported, or a file."""
    if isinstance(value, Mapping):
        return "class_path" in value or any(map(_names_code, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_names_code, value))
    if not isinstance(value, str):
        return False
    parts = value.split(".")
    importable = len(parts) > 1 and all(part.isidentifier() for part in parts) and find_spec(parts[0]) is not None
    return importable or Path(value).is_file()


def _value_of(option: str, words: Sequence[str]) -> str | None:
    found = None
    for word, following in zip(words, [*words[1:], None], strict=False):
        if word == option:
            found = following
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def _checkpoint_of(words: Sequence[str], parts: Iterable[Part]) -> str | None:
    """Return the checkpoint of the option, or of the last file that has one."""
    named = [part["ckpt_path"] for part in parts if isinstance(part.get("ckpt_path"), str)]
    return _value_of("--ckpt_path", words) or (named[-1] if named else None)


def _classes(words: Sequence[str], parts: Iterable[Part]) -> Iterator[str]:
    """Yield the class paths that the command line and its files give for the model."""
    for option in ("--model", "--model.class_path"):
        value = _value_of(option, words)
        if value is not None:
            yield value
    for part in parts:
        model = part.get("model")
        named = model.get("class_path") if isinstance(model, dict) else model
        if isinstance(named, str):
            yield translated(named)


def _given(words: Sequence[str], parts: Iterable[Part]) -> set[str]:
    """Return the arguments of the model that the command line or its files give."""
    options = (
        word.removeprefix("--model.").removeprefix("init_args.") for word in words if word.startswith("--model.")
    )
    found = {option.partition("=")[0].partition(".")[0] for option in options}
    for part in parts:
        model = part.get("model")
        if isinstance(model, dict):
            found |= {*model, *(model.get("init_args") or {})}
    return found


def _parts(words: Sequence[str], sources: Sources) -> Iterator[Part]:
    """Yield the configurations of a command line, and their section of each sub-command."""
    for option, following in zip(words, [*words[1:], ""], strict=False):
        name, _, value = option.partition("=")
        if name in ("-c", "--config"):
            content = _content(value or following, sources)
            yield from (part for part in (content, *content.values()) if isinstance(part, dict))


def _content(config: str, sources: Sources) -> Part:
    try:
        inline = config.lstrip().startswith("{")
        content = load(config, mapping=True) if inline else sources.look_ahead(config).value
    except (OSError, ValueError):  # the parser reads it again and reports the error
        return {}
    return cast(Part, content)


def _same(saved: str, given: str) -> bool:
    return given in (saved, saved.rpartition(".")[2])
