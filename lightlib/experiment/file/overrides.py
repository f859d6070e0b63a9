"""Dotted keys: `KEY=VALUE` overrides of an experiment file, and dotted keys at its top."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lightlib.config.yaml.document import ConfigError, Entry
from lightlib.config.yaml.file import loader
from lightlib.experiment.file.masks import masked_at
from lightlib.experiment.file.place import Place

_EXAMPLE = "--config searcher.max_trials=64"


def override(config: dict[str, Any], text: str, entries: dict[str, Entry]) -> None:
    """Set one key of an experiment, and remember its place.

    Args:
        config: Plain values, which are changed.
        text: ``KEY=VALUE``. The value is YAML; sections that do not exist are created. An item of a list has its index.
        entries: The places of the keys, which are changed.

    Raises:
        ConfigError: It has no ``=``, a part of the key is no section, or the value is no YAML.

    Example:
        >>> config = {"resources": {"slots_per_trial": 1}}
        >>> override(config, "resources.slots_per_trial=2", {})
        >>> config
        {'resources': {'slots_per_trial': 2}}
    """
    name, equals, written = text.partition("=")
    name = name.strip()
    if not equals or not name or "" in name.split("."):
        raise ConfigError(
            f"--config {_shown(name, written) if equals else repr(text)} is no setting.",
            expected="KEY=VALUE with a dotted key.",
            fix=_EXAMPLE,
        )
    value = loader(written)
    entry = Entry(f"--config {name}=…", value, written)
    _assign(config, name, value, entries, entry, f"--config {name}=…")
    for replaced in [key for key in entries if key == name or key.startswith(f"{name}.")]:
        del entries[replaced]
    entries[name] = entry


def nest(config: dict[str, Any], sections: Collection[str], entries: dict[str, Entry]) -> None:
    """Move dotted keys at the top of an experiment, such as ``searcher.max_trials: 64``, to their sections.

    Raises:
        ConfigError: The section has the key as well, or a part of the key is no section.

    Example:
        >>> config = {"searcher": {"name": "grid"}, "searcher.metric": "val_loss"}
        >>> nest(config, ["searcher"], {})
        >>> config
        {'searcher': {'name': 'grid', 'metric': 'val_loss'}}
    """
    for name in [dotted for dotted in config if "." in str(dotted) and str(dotted).partition(".")[0] in sections]:
        place, value = Place(name, entries), config.pop(name)
        entry = entries.get(name, Entry("", value, ""))
        if _assign(config, name, value, entries, entry, place.text) is not None:
            place.refuse("stands here again, below its section.", "each key once.", "delete one of the two.")


def _assign(above: Any, name: str, value: Any, entries: dict[str, Entry], entry: Entry, setter: str) -> Any:
    """Set a dotted key, create missing sections, and return the value that was there."""
    rest, path = name, ""
    while True:
        key = _next(above, rest)
        path = f"{path}.{key}" if path else key
        if key == rest:
            break
        rest = rest[len(key) + 1 :]
        if isinstance(above, dict) and above.get(key) is None:
            above[key] = {}
            if entry.place:
                entries[path] = entry._replace(value={})
        above = _section(above, key, Place(path, entries), setter)
    place = Place(path, entries)
    if isinstance(above, list):
        index = _index(above, key, place)
        before, above[index] = above[index], value
        return before
    before, above[key] = above.get(key), value
    return before


def _shown(name: str, written: str) -> str:
    return repr(f"{name}={masked_at(name, written) if name else written}")


def _next(above: Any, rest: str) -> str:
    """Return the first part of a dotted key; a key that itself has dots counts as one part if it exists."""
    if isinstance(above, dict):
        parts = rest.split(".")
        joined = (".".join(parts[:end]) for end in range(len(parts), 1, -1))
        joined_key = next((candidate for candidate in joined if candidate in above), None)
        if joined_key is not None:
            return joined_key
    return rest.partition(".")[0]


def _section(above: Any, name: str, place: Place, setter: str) -> Any:
    section = above[_index(above, name, place)] if isinstance(above, list) else above.get(name)
    if not isinstance(section, (dict, list)):
        place.refuse(f"is no section, and {setter} sets a key below it.", "a section.", _EXAMPLE)
    return section


def _index(items: list[Any], name: str, place: Place) -> int:
    if not name.isdigit() or int(name) >= len(items):
        above = place.key[: -len(name) - 1]
        place.refuse(
            f"is no item of {above}, a list of {len(items)}.",
            f"an index from 0 to {len(items) - 1}." if items else "an item; the list is empty.",
            f"--config '{above}=[…]' sets the list.",
        )
    return int(name)
