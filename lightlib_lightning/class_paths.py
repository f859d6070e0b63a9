"""Class paths of Lightning in configurations become ours."""

from __future__ import annotations

import importlib
import inspect
from pkgutil import resolve_name
from typing import Any

from lightlib.config.short_names import GROUPS, classes_of
from lightlib.conventions import leniency
from lightlib.errors import MisconfigurationException, nearest
from lightlib_lightning import absent, missing, objects
from lightlib_lightning.finder import ROOTS, canonical

__all__ = ["class_path", "kind_of", "translated"]

# Our package for each of Lightning's, where an error lists what may be written instead.
_PACKAGES = {"plugins.environments": "launch", "plugins": "precision", "": ""}
# Environments that are classes in Lightning and may be written as names here: `trainer.plugins: lsf`.
_NAMED = {
    "KubeflowEnvironment": "kubeflow",
    "LSFEnvironment": "lsf",
    "LightningEnvironment": "local",
    "MPIEnvironment": "mpi",
    "TorchElasticEnvironment": "torchrun",
}


def class_path(path: str) -> str:
    """Return our path for one of Lightning's, also by its defining file; any other path as it is."""
    place, _, name = path.rpartition(".")
    if not _is_module(place):
        return path
    where = canonical(place)
    target = objects.provided(where, name)
    if target is not None:
        package = _package(where)
        ours = not objects.has_own_row(where, name) and name in importlib.import_module(package).__all__
        return kind_of(f"{package}.{name}") if ours else target.replace(":", ".")
    if _is_public(path):
        raise _lacking(path, where, name)
    if elsewhere := missing.place_of(place, name):
        raise MisconfigurationException(
            f"{path!r} is not where the class is: {elsewhere} has it.",
            expected="the path of a class.",
            fix=f"{elsewhere}.{name}",
        )
    paths = [f"{place}.{name}" for name in objects.names()[where].split()]
    raise MisconfigurationException(
        f"{path!r} is no class of Lightning 2.6.{nearest(path, paths)}",
        expected=f"a class of Lightning, or one of ours from {_package(where)}.",
        fix="correct the name.",
    )


def kind_of(path: str) -> str:
    """Return the class that has Lightning's methods for one of ours: programs ask for its type."""
    package, _, name = path.rpartition(".")
    theirs = {"lightlib.precision": "plugins", "lightlib.strategies": "strategies"}.get(package)
    target = objects.provided(canonical(f"lightning.pytorch.{theirs}"), name) if theirs and leniency().warns else None
    return target.replace(":", ".") if target else path


def _is_module(path: str) -> bool:
    return path.partition(".")[0] in ROOTS and canonical(path) in objects.names()


def _is_public(path: str) -> bool:
    """Whether a path is that of a public name of Lightning."""
    place, _, name = path.rpartition(".")
    return _is_module(place) and name in objects.names()[canonical(place)].split()


def translated(value: Any) -> Any:
    """Return a configuration, as read from a file or a command line, in which all class paths of Lightning are ours.

    Every ``class_path`` is translated, and every other string that is exactly the path of a class of Lightning. An
    environment that is a class in Lightning and a name here becomes that name. Arguments of Lightning's classes that
    ours have not are left out where they are null. All else stays as it is, and `value` itself is not changed.
    """
    if isinstance(value, str):
        if value.partition(".")[0] not in ROOTS:
            return value
        return _name(value) or (class_path(value) if _is_public(value) else value)
    if isinstance(value, list):
        return [translated(element) for element in value]
    if not isinstance(value, dict):
        return value
    path = value.get("class_path")
    if not isinstance(path, str):
        return {key: translated(entry) for key, entry in value.items()}
    if _name(path) and not value.get("init_args") and not value.get("dict_kwargs"):
        return _name(path)
    entries: dict[str, Any] = {key: translated(entry) for key, entry in value.items() if key != "class_path"}
    entries = {"class_path": class_path(path), **entries}
    if _is_public(path) and isinstance(entries.get("init_args"), dict):
        entries["init_args"] = _without_empty(entries["class_path"], entries["init_args"])
    return entries


def _without_empty(path: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Leave out null arguments that only Lightning's class takes; its printed configurations have many of them."""
    package, _, name = path.rpartition(".")
    parameters = inspect.signature(resolve_name(f"{package}:{name}")).parameters
    return {key: value for key, value in arguments.items() if value is not None or key in parameters}


def _name(path: str) -> str:
    """Return the name that stands for a class of Lightning, or an empty string."""
    return _NAMED.get(path.rpartition(".")[2], "") if _is_public(path) else ""


def _package(where: str) -> str:
    """Return the package of ours for a module of Lightning, given below ``lightning``."""
    area = where.partition(".")[2]
    for theirs, ours in _PACKAGES.items():
        if area == theirs or (theirs and area.startswith(f"{theirs}.")):
            return f"lightlib.{ours}".rstrip(".")
    name = f"lightlib.{area.partition('.')[0]}"
    return name if any(name == package for package, _ in GROUPS.values()) else "lightlib"


def _lacking(path: str, where: str, name: str) -> MisconfigurationException:
    package = _package(where)
    return MisconfigurationException(
        f"{path!r} is a Lightning class with no counterpart in lightlib.",
        expected=f"one of {package}: {', '.join(classes_of(package)) or 'none'}.",
        fix=absent.INSTEAD.get(name) or "leave it out, or write one of these.",
    )
