"""Hyperparameters of the checkpoint that a command line or its files name: defaults for the model that it builds."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightlib.checkpoint import formats
from lightlib.config.hyperparameters import BY_COMMAND_LINE
from lightlib.config.names import translated
from lightlib.errors import LightlibError

__all__ = ["with_hyperparameters"]

_MARKS = (BY_COMMAND_LINE, "lightning.pytorch.cli.instantiate_module")


def with_hyperparameters(words: Sequence[str], verbs: Iterable[str], kind: Any, subclasses: bool) -> list[str]:
    """Return a command line which also has what the checkpoint of its ``--ckpt_path`` says of the model.

    It stands first, so that all that is given in files and options wins. No class is taken from a checkpoint: where
    the class of the model is part of the configuration, only the arguments of that very class are.

    Args:
        words: The command line.
        verbs: The sub-commands.
        kind: The class of the model, or a function that returns one.
        subclasses: Whether it is part of the configuration.
    """
    words = list(words)
    at = next((i for i, word in enumerate(words) if word in set(verbs)), None)
    path = _checkpoint_of(words)
    if at is None or path is None or not Path(path).exists():
        return words
    found = _plain(_saved(path))
    made_by = found.pop("_instantiator", None)
    name = found.pop("_class_path", None)
    if not subclasses:
        known = inspect.signature(kind).parameters
        model = {key: value for key, value in found.items() if key in known}
    elif made_by in _MARKS and name is not None and any(_same(name, given) for given in _classes(words)):
        model = {"class_path": name, "init_args": found}
    else:
        return words
    if not model:
        return words
    return [*words[: at + 1], f"--config={json.dumps({'model': model})}", *words[at + 1 :]]


def _saved(path: str) -> Mapping[str, Any]:
    try:
        content = formats.load(path, "meta")
    except (LightlibError, OSError):  # the Trainer reads it again, and says what is wrong
        return {}
    found = content.get("hyper_parameters")
    return found if isinstance(found, Mapping) else {}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be written down, without what names a class to build."""
    kept = {}
    for name, value in values.items():
        try:
            text = json.dumps(value)
        except (TypeError, ValueError):
            continue
        if '"class_path"' not in text:
            kept[name] = value
    return kept


def _value_of(option: str, words: Sequence[str]) -> str | None:
    found = None
    for word, following in zip(words, [*words[1:], None], strict=False):
        if word == option:
            found = following
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def _checkpoint_of(words: Sequence[str]) -> str | None:
    """Return the checkpoint that an option names, or the last of the files that name one."""
    named = [part["ckpt_path"] for part in _parts(words) if isinstance(part.get("ckpt_path"), str)]
    return _value_of("--ckpt_path", words) or (named[-1] if named else None)


def _classes(words: Sequence[str]) -> Iterator[str]:
    """Yield the class paths that the command line and its files give for the model."""
    for option in ("--model", "--model.class_path"):
        value = _value_of(option, words)
        if value is not None:
            yield value
    for part in _parts(words):
        model = part.get("model")
        named = model.get("class_path") if isinstance(model, dict) else model
        if isinstance(named, str):
            yield translated(named)


def _parts(words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the configurations that a command line names, and what they say of each sub-command."""
    for option, following in zip(words, [*words[1:], ""], strict=False):
        name, _, value = option.partition("=")
        if name in ("-c", "--config"):
            content = _content(value or following)
            yield from (part for part in (content, *content.values()) if isinstance(part, dict))


def _content(config: str) -> dict[str, Any]:
    try:
        text = config if config.lstrip().startswith("{") else Path(config).read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):  # the parser reads it again, and says what is wrong
        return {}
    return content if isinstance(content, dict) else {}


def _same(saved: str, given: str) -> bool:
    return given in (saved, saved.rpartition(".")[2])
