"""Short names, registered names and class paths of Lightning become our class paths."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from lightlib import registry
from lightlib.compat import absent, missing, objects
from lightlib.compat.finder import ROOTS, canonical
from lightlib.conventions import active
from lightlib.errors import MisconfigurationException, UnknownNameError, nearest

# The package that holds the classes of a group by name, and their base class.
_GROUPS: dict[str, tuple[str, str]] = {
    "accelerators": ("lightlib.accelerators", "lightlib.accelerators:Accelerator"),
    "callbacks": ("lightlib.callbacks", "lightlib.callbacks:Callback"),
    "environments": ("lightlib.launch", "lightlib.launch:Environment"),
    "loggers": ("lightlib.loggers", "lightlib.loggers:Logger"),
    "optimizers": ("lightlib.optim", "torch.optim:Optimizer"),
    "precision": ("lightlib.precision", "lightlib.precision:Precision"),
    "profilers": ("lightlib.profilers", "lightlib.profilers:Profiler"),
    "schedulers": ("torch.optim.lr_scheduler", "torch.optim.lr_scheduler:LRScheduler"),
    "strategies": ("lightlib.strategies", "lightlib.strategies:Strategy"),
}
_ALSO = ("Environment", "SLURMEnvironment")  # plugins with no common base class

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
_SHAPE = ("class_path", "init_args", "dict_kwargs")


def class_path(group: str, name: str) -> str:
    """Return the import path of the class that a name stands for in a group of the registry, or in ``"profilers"``.

    The name is looked for in the registry (built-in names and entry points), then among the classes of our package
    for the group, then among the subclasses that the program has loaded; so a registered name always means the same.
    A class path is translated when it is one of Lightning's and returned as it is otherwise.
    """
    if "." in name:
        return translate(name)
    registered = registry.names(group) if group in registry.BUILT_IN else []
    package = _GROUPS[group][0]
    if name in registered:
        found = registry.get(group, name)
        if name in registry.BUILT_IN[group] and not isinstance(found, type):
            raise _no_class(group, name)
        return registry.path(group, name).replace(":", ".")
    classes = _classes(package)
    if name in classes:
        return _switched(f"{package}.{name}")
    loaded = [path for path in _loaded(group) if path.rpartition(".")[2] == name]
    if len(loaded) > 1:
        raise MisconfigurationException(
            f"{name!r} is the name of several classes: {', '.join(loaded)}.",
            expected="a name that only one class has.",
            fix=f"write the class path, for instance {loaded[0]}.",
        )
    if loaded:
        return loaded[0]
    known = {*registered, *classes, *(path.rpartition(".")[2] for path in _loaded(group))}
    fix = "use one of these names, or a class path such as package.module.Class."
    raise UnknownNameError("strategy" if group == "strategies" else group.removesuffix("s"), name, known, fix=fix)


def plugin_path(name: str) -> str:
    """Return the import path of a precision or an environment that a name stands for; any other name as it is."""
    packages = (_GROUPS[group][0] for group in ("precision", "environments"))
    return next((_switched(f"{package}.{name}") for package in packages if name in _classes(package)), name)


def _switched(path: str) -> str:
    """Return the class of Lightning's kind for one of ours; under compat programs ask for their type."""
    package, _, name = path.rpartition(".")
    theirs = {"lightlib.precision": "plugins", "lightlib.strategies": "strategies"}.get(package)
    target = objects.provided(canonical(f"lightning.pytorch.{theirs}"), name) if theirs and active().lenient else None
    return target.replace(":", ".") if target else path


def check_shape(group: str, value: Mapping[str, Any]) -> None:
    """Raise if a mapping for an object of a group has its class as a key, or for a scheduler when it steps.

    Its keys are ``class_path``, ``init_args`` and ``dict_kwargs``, or arguments of a class given before.
    """
    if group == "schedulers" and "class_path" in value and (more := [key for key in value if key not in _SHAPE]):
        raise MisconfigurationException(
            f"{more[0]!r} is written next to the class of a scheduler.",
            expected="the arguments of the class below init_args, and when it steps below lr_scheduler_config.",
            fix="write\n    lr_scheduler_config:\n" + "\n".join(f"      {key}: {value[key]}" for key in more),
        )
    name, arguments = next(iter(value.items()), ("", None))
    if len(value) != 1 or not isinstance(arguments, (dict, type(None))) or not _is_class(group, name):
        return
    inside = arguments or {}
    lines = [f"class_path: {name}", *(["init_args:"] if inside else []), *(f"  {key}: {inside[key]}" for key in inside)]
    raise MisconfigurationException(
        f"{name!r} is written as a key, which is the name of a class.",
        expected="the class below class_path, and its arguments below init_args.",
        fix="write\n" + "\n".join(f"    {line}" for line in lines),
    )


def _is_class(group: str, name: object) -> bool:
    if not isinstance(name, str) or name in _SHAPE:
        return False
    try:
        return bool(class_path(group, name))
    except UnknownNameError:
        return False


def translate(path: str) -> str:
    """Return our path for one of Lightning's, also by its defining file; any other path as it is."""
    place, _, name = path.rpartition(".")
    if not _is_module(place):
        return path
    where = canonical(place)
    target = objects.provided(where, name)
    if target is not None:
        package = _package(where)
        ours = not objects.has_own_row(where, name) and name in importlib.import_module(package).__all__
        return _switched(f"{package}.{name}") if ours else target.replace(":", ".")
    if _is_public(path):
        raise _lacking(path, where, name)
    if elsewhere := missing.place_of(place, name):
        raise MisconfigurationException(
            f"{path!r} is not where the class is: {elsewhere} has it.",
            expected="the path of a class.",
            fix=f"{elsewhere}.{name}",
        )
    known = [f"{place}.{one}" for one in objects.names()[where].split()]
    raise MisconfigurationException(
        f"{path!r} is no class of Lightning 2.6.{nearest(path, known)}",
        expected=f"a class of Lightning, or one of ours from {_package(where)}.",
        fix="correct the name.",
    )


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
        return _name(value) or (translate(value) if _is_public(value) else value)
    if isinstance(value, list):
        return [translated(one) for one in value]
    if not isinstance(value, dict):
        return value
    path = value.get("class_path")
    if not isinstance(path, str):
        return {key: translated(one) for key, one in value.items()}
    if _name(path) and not value.get("init_args") and not value.get("dict_kwargs"):
        return _name(path)
    found: dict[str, Any] = {key: translated(one) for key, one in value.items() if key != "class_path"}
    found = {"class_path": translate(path), **found}
    if _is_public(path) and isinstance(found.get("init_args"), dict):
        found["init_args"] = _without_empty(found["class_path"], found["init_args"])
    return found


def _without_empty(path: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Leave out null arguments that only Lightning's class takes; its printed configurations have many of them."""
    package, _, name = path.rpartition(".")
    known = inspect.signature(resolve_name(f"{package}:{name}")).parameters
    return {key: value for key, value in arguments.items() if value is not None or key in known}


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
    return name if any(name == package for package, _ in _GROUPS.values()) else "lightlib"


def _lacking(path: str, where: str, name: str) -> MisconfigurationException:
    package = _package(where)
    return MisconfigurationException(
        f"{path!r} is a Lightning class with no counterpart in lightlib.",
        expected=f"one of {package}: {', '.join(_classes(package)) or 'none'}.",
        fix=absent.INSTEAD.get(name) or "leave it out, or write one of these.",
    )


def _no_class(group: str, name: str) -> MisconfigurationException:
    argument = {"environments": "plugins", "strategies": "strategy"}.get(group, group)
    return MisconfigurationException(
        f"{name!r} is a name and not a class: it takes no arguments.",
        expected=f"one of the classes of {_GROUPS[group][0]}: {', '.join(_classes(_GROUPS[group][0]))}.",
        fix=f"trainer.{argument}: {name}",
    )


def _classes(package: str) -> list[str]:
    """Return the names of the classes of a package that a configuration may build."""
    module = importlib.import_module(package)
    base = next((resolve_name(base) for there, base in _GROUPS.values() if there == package), object)
    kinds = {name: getattr(module, name) for name in sorted(module.__all__)}
    return [
        name
        for name, kind in kinds.items()
        if name in _ALSO or (isinstance(kind, type) and issubclass(kind, base) and _can_be_built(kind, base))
    ]


def _loaded(group: str) -> list[str]:
    """Return the paths of the subclasses, other than ours, that the program has imported and could build."""
    base = resolve_name(_GROUPS[group][1])
    waiting: list[type] = type.__subclasses__(base)
    found: set[str] = set()
    while waiting:
        kind = waiting.pop()
        waiting += type.__subclasses__(kind)
        path = f"{kind.__module__}.{kind.__qualname__}"
        hidden = path.startswith("lightlib.") or "._" in path
        if (
            not hidden
            and _can_be_built(kind, base)
            and getattr(sys.modules.get(kind.__module__), kind.__qualname__, 0) is kind
        ):
            found.add(path)
    return sorted(found)


def _can_be_built(kind: type, base: type) -> bool:
    return kind is not base and not inspect.isabstract(kind)
