"""Overrides of an experiment file: ``KEY=VALUE`` with a dotted key, as in ``--config searcher.max_trials=64``."""

from __future__ import annotations

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
    value, rest, path = loader(written), name, ""
    above: Any = config
    while True:
        found = _next(above, rest)
        path = f"{path}.{found}" if path else found
        if found == rest:
            break
        rest = rest[len(found) + 1 :]
        if isinstance(above, dict) and above.get(found) is None:
            above[found] = {}
            entries[path] = Entry(f"--config {name}=…", {}, "")
        above = _section(above, found, Place(path, entries), name)
    _set(above, found, value, Place(path, entries), name)
    for one in [key for key in entries if key == name or key.startswith(f"{name}.")]:
        del entries[one]
    entries[name] = Entry(f"--config {name}=…", value, written)


def _shown(name: str, written: str) -> str:
    return repr(f"{name}={masked_at(name, written) if name else written}")


def _next(above: Any, rest: str) -> str:
    """Return the first part of a dotted key; a key that itself has dots counts as one part if it exists."""
    if isinstance(above, dict):
        parts = rest.split(".")
        joined = (".".join(parts[:end]) for end in range(len(parts), 1, -1))
        known = next((one for one in joined if one in above), None)
        if known is not None:
            return known
    return rest.partition(".")[0]


def _section(above: Any, name: str, place: Place, full: str) -> Any:
    if isinstance(above, list):
        return above[_index(above, name, place, full)]
    found = above.get(name)
    if not isinstance(found, (dict, list)):
        place.refuse(f"is no section, and --config {full}=… sets a key below it.", "a section.", _EXAMPLE)
    return found


def _set(above: Any, name: str, value: Any, place: Place, full: str) -> None:
    if isinstance(above, list):
        above[_index(above, name, place, full)] = value
    elif isinstance(above, dict):
        above[name] = value
    else:
        place.refuse(f"is no section, and --config {full}=… sets a key below it.", "a section.", _EXAMPLE)


def _index(items: list[Any], name: str, place: Place, full: str) -> int:
    if not name.isdigit() or int(name) >= len(items):
        above = full[: len(place.key) - len(name) - 1]
        place.refuse(
            f"is no item of {above}, a list of {len(items)}.",
            f"an index from 0 to {len(items) - 1}." if items else "an item; the list is empty.",
            f"--config '{above}=[…]' sets the list.",
        )
    return int(name)
