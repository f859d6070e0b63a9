"""Merge one fit configuration over another, and set values by dotted key; a new class drops arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from lightlib.errors import MisconfigurationException

BUILT = ("model", "data", "optimizer", "lr_scheduler")  # the sections that name a class
_OF_CLASS = ("class_path", "init_args", "dict_kwargs")
_FILES = (".yaml", ".yml", ".json")


def merged(below: Any, above: Any) -> Any:
    """Return one value merged over another: mappings at every level; any other value replaces the one below.

    If both name a class and the classes differ, the arguments below are dropped.

    Args:
        below: Plain values, which stay as they are.
        above: Likewise; its values win. None is a value.

    Example:
        >>> merged({"trainer": {"max_epochs": 3, "logger": True}}, {"trainer": {"logger": False}})
        {'trainer': {'max_epochs': 3, 'logger': False}}
        >>> merged({"class_path": "SGD", "init_args": {"momentum": 0.9}}, {"class_path": "Adam"})
        {'class_path': 'Adam'}
    """
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return copy.deepcopy(above)
    kept = dict(copy.deepcopy(below))
    if "class_path" in above:
        _drop_arguments(kept, above["class_path"])
    return {**kept, **{key: merged(kept.get(key), value) for key, value in above.items()}}


def put_all(fit: dict[str, Any], values: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Set values by their dotted keys, classes before their arguments.

    Args:
        fit: The configuration of a fit, which is changed.
        values: By dotted key. The value of a section is merged into it; any other replaces the earlier value.
        where: Returns the file and line of a dotted key, for errors.

    Raises:
        MisconfigurationException: A key is below a single value, or it is no item of a list.

    Example:
        >>> fit = {"model": {"class_path": "model.Net"}, "trainer": {"callbacks": [{"class_path": "EarlyStopping"}]}}
        >>> put_all(fit, {"model.width": 8, "trainer.callbacks.0.patience": 3}, lambda key: "")
        >>> fit["model"]
        {'class_path': 'model.Net', 'init_args': {'width': 8}}
        >>> fit["trainer"]["callbacks"]
        [{'class_path': 'EarlyStopping', 'init_args': {'patience': 3}}]
    """
    texts = {str(key): value for key, value in values.items()}  # a file may have a number as a key
    for key in sorted(texts, key=_order):
        _put(fit, key, texts[key], where(key))


def _order(key: str) -> tuple[int, int]:
    depth = key.count(".")
    return int(depth > 0 and not key.endswith(".class_path")), depth


def _put(fit: dict[str, Any], key: str, value: Any, where: str) -> None:
    named = f"{key!r} ({where})" if where else repr(key)
    node: Any = fit
    parts, path = key.split("."), ""
    while True:
        if isinstance(node, dict) and "class_path" in node and parts[0] not in _OF_CLASS:
            parts.insert(0, "init_args")
        name: Any = parts.pop(0)
        if isinstance(node, list):
            name = _index(node, name, named, path)
        path = f"{path}.{name}" if path else str(name)
        if not parts:
            break
        below = _as_class(path, node[name] if isinstance(node, list) else node.get(name))
        if below is not None and not isinstance(below, (dict, list)):
            raise MisconfigurationException(
                f"{named} sets a value below {path!r}, which is of type {type(below).__name__}.",
                expected=f"a mapping or a list as {path!r}.",
                fix=f"write out the keys of {path!r} in `fit`, or set {path!r} itself.",
            )
        node[name] = {} if below is None else below
        node = node[name]
    if node is fit:
        value = merged(_as_class(path, fit.get(name)), _as_class(path, value))
    elif name == "class_path" and isinstance(node, dict):
        _drop_arguments(node, value)
    node[name] = copy.deepcopy(value)


def _as_class(path: str, value: Any) -> Any:
    """Return a mapping for a text that names a class, as the command line accepts it."""
    if (
        not isinstance(value, str)
        or value.endswith(_FILES)
        or not all(word.isidentifier() for word in value.split("."))
    ):
        return value
    return {"class_path": value} if path in BUILT or value.rpartition(".")[2][0].isupper() else value


def _drop_arguments(section: dict[str, Any], class_path: Any) -> None:
    """Remove the class and its arguments if another class takes its place."""
    if "class_path" in section and not _same_class(section["class_path"], class_path):
        for name in _OF_CLASS:
            section.pop(name, None)


def _same_class(path: Any, other: Any) -> bool:
    if not (isinstance(path, str) and isinstance(other, str)) or ("." in path and "." in other):
        return bool(path == other)
    return path.rpartition(".")[2] == other.rpartition(".")[2]


def _index(items: list[Any], name: str, named: str, path: str) -> int:
    if name.isdigit() and int(name) < len(items):
        return int(name)
    raise MisconfigurationException(
        f"{named} sets {name!r} in {path!r}, a list of {len(items)}.",
        expected=f"an index from 0 to {len(items) - 1}." if items else "an item; the list is empty.",
        fix=f"add the item to {path!r} in `fit`, or correct the index.",
    )
