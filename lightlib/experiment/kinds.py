"""The types of hyperparameter in a file, and how a mapping with a `type` is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.experiment.parameters import Categorical, Const, Parameter
from lightlib.experiment.ranges import Double, Int, Log, LogInt

__all__ = ["KINDS", "parameter"]

# Names of other tools, and ours.
_MEANT = {"float": "double", "uniform": "double", "integer": "int", "loguniform": "log", "choice": "categorical"}
KINDS: dict[str, type[Parameter]] = {kind.kind: kind for kind in (Const, Int, Double, Log, LogInt, Categorical)}


def parameter(key: str, given: Mapping[str, Any]) -> Parameter:
    """Return the hyperparameter that a mapping with a `type` describes.

    Args:
        key: Its dotted key, for errors.
        given: The mapping, as YAML gives it.

    Raises:
        MisconfigurationException: The mapping lacks a key, or a value is wrong.
        UnknownNameError: The type or a key is unknown.

    Example:
        >>> parameter("lr", {"type": "log", "minval": -4, "maxval": -1}).value(-2)
        0.01
    """
    name = given["type"]
    if not isinstance(name, str) or name not in KINDS:
        meant = _MEANT.get(str(name))
        fix = f"{key}: {Double.example}, or for a constant named type: {{type: {{type: const, val: {name}}}}}"
        raise UnknownNameError(f"type of hyperparameter {key!r}", name, KINDS, fix=fix, meant=meant)
    kind = KINDS[name]
    fields_by_name = {each.name: each for each in fields(kind)}
    for setting in given:
        if setting != "type" and setting not in fields_by_name:
            fix = f"{key}: {kind.example}"
            raise UnknownNameError(f"key of hyperparameter {key!r} (type {name})", setting, fields_by_name, fix=fix)
    for each in fields_by_name.values():
        if not each.kw_only and each.name not in given:
            raise MisconfigurationException(
                f"Hyperparameter {key!r} of type {name} has no {each.name}.",
                expected=f"{each.name} in each hyperparameter of type {name}.",
                fix=f"{key}: {kind.example}",
            )
    built = kind(**{setting: value for setting, value in given.items() if setting != "type"})
    built.check(key)
    return built
