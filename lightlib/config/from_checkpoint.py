"""Hyperparameters of the checkpoint that a command line names: defaults for the model that it builds."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.config.errors.invocation import Invocation
from lightlib.config.hyperparameters import BY_COMMAND_LINE
from lightlib.config.yaml.file import Sources
from lightlib.errors import LightlibError
from lightlib.translations import translated

_MARKS = (BY_COMMAND_LINE, "lightning.pytorch.cli.instantiate_module")


def with_hyperparameters(
    words: Sequence[str], parser: argparse.ArgumentParser, kind: Any, subclasses: bool, sources: Sources
) -> list[str]:
    """Return a command line with the model's hyperparameters from the checkpoint of its ``--ckpt_path``.

    They come first, so values in files and options take precedence. No class is taken from a checkpoint: if the class
    of the model is part of the configuration (`subclasses`), the arguments are used for that class only.
    """
    words = list(words)
    invocation = _settings(words, parser, sources)
    path = next((setting.written for setting in reversed(invocation.settings) if setting.key == "ckpt_path"), "")
    if invocation.verb is None or not path or not Path(path).exists():
        return words
    saved = dict(_saved(path))
    made_by, name = saved.pop("_instantiator", None), saved.pop("_class_path", None)
    hyperparameters = _plain(saved)
    classes = (translated(setting.written) for setting in invocation.settings if setting.key == "model")
    if not subclasses:
        parameters = inspect.signature(kind).parameters
        model = {key: value for key, value in hyperparameters.items() if key in parameters}
    elif made_by in _MARKS and name is not None and {name, name.rpartition(".")[2]}.intersection(classes):
        model = {"class_path": name, "dict_kwargs": hyperparameters}  # the parser knows which are init_args
    else:
        return words
    arguments = {setting.key.split(".")[1] for setting in invocation.settings if setting.key.startswith("model.")}
    left = sorted(saved.keys() - hyperparameters.keys() - arguments)
    if left:
        report.warn(
            f"--ckpt_path: {', '.join(map(repr, left))} of {path!r} is ignored, because it would import or read "
            f"something that only the file names. --model.{left[0]}=… gives it.",
            report.PossibleUserWarning,
        )
    if not model:
        return words
    after = words.index(invocation.verb) + 1
    return [*words[:after], f"--config={json.dumps({'model': model})}", *words[after:]]


def _settings(words: Sequence[str], parser: argparse.ArgumentParser, sources: Sources) -> Invocation:
    """Return a command line with its configuration files; the parser reads them again and reports their errors."""
    files, invocation = Sources(sources.verbs), Invocation(parser, argv=words)
    for config in (flag.value for flag in invocation.flags if flag.key == "config" and flag.value):
        with contextlib.suppress(OSError, ValueError):
            inline = config.lstrip().startswith("{")
            files.add(sources.document(config) if inline else sources.look_ahead(config))
    return Invocation(parser, files, words)


def _saved(path: str) -> Mapping[str, Any]:
    try:
        content = formats.load(path, "meta")
    except (LightlibError, OSError):  # the Trainer reads it again and reports the error
        return {}
    hyperparameters = content.get("hyper_parameters")
    return hyperparameters if isinstance(hyperparameters, Mapping) else {}


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
