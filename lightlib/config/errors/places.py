"""Add the place of the arguments in the configuration to errors of constructors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jsonargparse import Namespace

from lightlib.config.errors.invocation import Invocation, imported, plain, with_value
from lightlib.errors import LightlibError

_PLAIN = (bool, int, float, str)
_CALL = re.compile(r"\bTrainer\((\w+=(?:'[^'()]*'|[\w.+-]+)(?:, \w+=(?:'[^'()]*'|[\w.+-]+))*)\)")
_WORDS, _QUOTES = {"True": "true", "False": "false", "None": "null"}, "'"


class Places(NamedTuple):
    """The places of an object and its arguments, as text, so that other processes can receive them."""

    arguments: dict[str, str]
    object_place: str

    def add_to(self, error: Exception) -> None:
        """Add to an error the places of the arguments that it names; if it names none, that of the object."""
        problem, expected, rest = str(error).partition("\n  Expected: ")
        named = [place for name, place in self.arguments.items() if re.search(rf"\b{re.escape(name)}\b", problem)]
        if not named and not self.object_place:
            return
        note = f"  Configured: {', '.join(named) or self.object_place}."
        if isinstance(error, LightlibError):
            error.args = (f"{problem}\n{note}{expected}{_CALL.sub(_configured, rest)}",)
        else:
            vars(error).setdefault("__notes__", []).append(note)  # as `add_note` does, from Python 3.11 on


def _configured(call: re.Match[str]) -> str:
    """Return ``trainer.precision: 16-mixed`` for ``Trainer(precision='16-mixed')``."""
    pairs = (pair.partition("=") for pair in call[1].split(", "))
    return ", ".join(f"trainer.{name}: {_WORDS.get(value, value.strip(_QUOTES))}" for name, _, value in pairs)


def places_of(class_path: str, key: str, arguments: Mapping[str, Any], invocation: Invocation) -> Places:
    """Return where an object of a class and its arguments were given.

    The key is the one above its arguments: ``"trainer.callbacks.0.init_args"``, or nothing.
    """
    places = {}
    for name, value in arguments.items():
        at = f"{key}.{name}" if key else name
        place = _of_argument(at, value, invocation)
        if place:
            places[name] = f"{plain(at)} ({place})"
    object_place = _of_object(key.removesuffix(".init_args"), class_path, invocation) if key else ""
    return Places(places, f"{plain(key)} ({object_place})" if object_place else "")


def _of_argument(key: str, value: Any, invocation: Invocation) -> str:
    """Return where an argument was given; in lists, only by the item that has its value."""
    text = str(value) if isinstance(value, _PLAIN) else None
    settings = invocation.given(key)
    files = [setting for setting in settings if setting.in_file]
    if text is None and 0 < len(files) < len(settings):
        return f"{files[-1].place}, and on the command line"
    if text is not None and settings and not with_value(settings, text) and any(map(str.isdigit, key.split("."))):
        return ""
    location = invocation.location(key, text)
    return location.place if location.key == plain(key) else ""


def _of_object(key: str, class_path: str, invocation: Invocation) -> str:
    """Return where an object was given; the list that contains it, if several of its items have the class."""
    above, _, index = key.rpartition(".")
    named = with_value(invocation.given(key), class_path)
    clear = len(named) == 1 or any(setting.path in (key, f"{key}.class_path") for setting in named)
    location = invocation.location(above) if index.isdigit() and not clear else invocation.location(key, class_path)
    return location.place


def key_of(kind: Any, arguments: Mapping[str, Any], config: Any, groups: Mapping[str, Any]) -> str | None:
    """Return the key below which a configuration has the arguments of an object, or None if it is not clear.

    `groups` has the classes of the keys that need no class path.
    """
    candidates = [(key, config.get(key) or {}) for key, group_class in groups.items() if group_class is kind]
    candidates += [(f"{key}.init_args", init_args) for key, path, init_args in _named(config) if imported(path) is kind]
    return next((key for key, values in candidates if _agree(values, arguments)), None)


def _named(config: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the classes that a configuration names, in their order: key, class path and arguments."""
    below: Any = enumerate(config) if isinstance(config, (list, tuple)) else ()
    if isinstance(config, (dict, Namespace)):
        items = config if isinstance(config, dict) else vars(config)
        if isinstance(items.get("class_path"), str):
            yield prefix.removesuffix("."), items["class_path"], items.get("init_args") or {}
        below = items.items()
    for name, value in below:
        yield from _named(value, f"{prefix}{name}.")


def _agree(values: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether the configured arguments and those of the call agree, as far as both are plain values."""
    both = ((values[name], value) for name, value in arguments.items() if name in values)
    return all(value == other for value, other in both if isinstance(value, _PLAIN) and isinstance(other, _PLAIN))
