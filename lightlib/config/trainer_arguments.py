"""Arguments of the Trainer that no configuration holds: default objects and added callbacks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

from jsonargparse import Namespace

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.config.parser import LightningArgumentParser
from lightlib.core.setup.callbacks import callbacks_in

_PLAIN = (bool, int, float, str, Enum, Mapping, Namespace, os.PathLike, timedelta)


def is_object(value: Any) -> bool:
    """Return whether a default is or contains an object that no configuration can hold."""
    if isinstance(value, (list, tuple, set)):
        return any(map(is_object, value))
    return not (value is None or isinstance(value, _PLAIN) or hasattr(value, "lazy_get_init_args"))


def with_objects(
    arguments: Mapping[str, Any], configured: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the Trainer's arguments with default objects wherever the configuration leaves the Trainer's own default.

    `configured` has that default for each key with an object as default: ``{"trainer.logger": None}``.
    """
    names = {key.removeprefix("trainer."): default for key, default in configured.items()}
    return {
        **arguments,
        **{name: defaults[name] for name, argument in names.items() if arguments.get(name) == argument},
    }


def with_callbacks(arguments: Mapping[str, Any], added: list[Any], trainer_class: Any) -> dict[str, Any]:
    """Return the Trainer's arguments with added callbacks; a Trainer without the argument gives a warning."""
    if "callbacks" in arguments:
        return {**arguments, "callbacks": [*callbacks_in(arguments["callbacks"]), *added]}
    if added:
        report.warn(
            f"{trainer_class.__qualname__} has no argument `callbacks`, so these are left out: "
            f"{', '.join(type(callback).__name__ for callback in added)}.",
            report.PossibleUserWarning,
        )
    return dict(arguments)


def build_callbacks(given: Any, parser_class: type[LightningArgumentParser]) -> list[Any]:
    """Return default callbacks as objects; those given as a class path or by `lazy_instance` are built."""
    callbacks = [
        callback.lazy_get_init_data().as_dict() if hasattr(callback, "lazy_get_init_data") else callback
        for callback in callbacks_in(given)
    ]
    described = [callback for callback in callbacks if isinstance(callback, Mapping)]
    if not described:
        return callbacks
    parser = parser_class()
    parser.add_argument("--trainer.callbacks", type=list[Callback])
    config = parser.parse_object({"trainer": {"callbacks": described}})
    built = iter(parser.instantiate(config).trainer.callbacks)
    return [next(built) if isinstance(callback, Mapping) else callback for callback in callbacks]
