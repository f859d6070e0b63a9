"""Short names, registered names and class paths of Lightning become our class paths."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Mapping
from importlib import resources
from pkgutil import resolve_name
from typing import Any

from lightlib import registry
from lightlib.config.yaml.file import load
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

_TABLE = "lightning_classes.yaml"
# Each root of Lightning's class paths, with the sections of the table that are below it.
_ROOTS = {
    "lightning": ("pytorch", "fabric"),  # only what has no package there
    "lightning.fabric": ("both", "fabric"),
    "lightning.pytorch": ("both", "pytorch"),
    "lightning_fabric": ("both", "fabric"),
    "pytorch_lightning": ("both", "pytorch"),
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
        return f"{package}.{name}"
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


def check_shape(group: str, value: Mapping[str, Any]) -> None:
    """Raise if a mapping for an object of a group has its class as a key.

    Its keys are ``class_path``, ``init_args`` and ``dict_kwargs``, or arguments of a class given before.
    """
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
    """Return our class path for one of Lightning's, also by its defining file; any other path as it is."""
    if path in _lightning():
        package, name = _lightning()[path]
        if name in importlib.import_module(package).__all__:
            return f"{package}.{name}"
        raise _lacking(path, package, name)
    place = path.rpartition(".")[0]
    next_to_it = [known for known in _lightning() if known.rpartition(".")[0] == place]
    if next_to_it and ".demos." not in path:
        package = _lightning()[next_to_it[0]][0]
        raise MisconfigurationException(
            f"{path!r} is no class of Lightning 2.6.{nearest(path, next_to_it)}",
            expected=f"a class of Lightning, or one of ours from {package}.",
            fix="correct the name.",
        )
    return path


def translated(value: Any) -> Any:
    """Return a configuration, as read from a file or a command line, in which all class paths of Lightning are ours.

    Every ``class_path`` is translated, and every other string that is exactly the path of a class of Lightning. An
    environment that is a class in Lightning and a name here becomes that name. Arguments of Lightning's classes that
    ours have not are left out where they are null. All else stays as it is, and `value` itself is not changed.
    """
    if isinstance(value, str):
        return _name(value) or (translate(value) if value in _lightning() else value)
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
    if path in _lightning() and isinstance(found.get("init_args"), dict):
        found["init_args"] = _without_empty(found["class_path"], found["init_args"])
    return found


def _without_empty(path: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Leave out null arguments that only Lightning's class takes; its printed configurations have many of them."""
    package, _, name = path.rpartition(".")
    known = inspect.signature(resolve_name(f"{package}:{name}")).parameters
    return {key: value for key, value in arguments.items() if value is not None or key in known}


@functools.cache
def _table() -> dict[str, Any]:
    """Lightning's classes, by section of the data file."""
    table: dict[str, Any] = load(resources.files(__package__).joinpath(_TABLE).read_text(encoding="utf-8"), _TABLE)
    return table


@functools.cache
def _lightning() -> dict[str, tuple[str, str]]:
    """Map every path by which a class of Lightning may be named to our package and the name of the class."""
    classes: dict[str, tuple[str, str]] = {}
    for root, sections in _ROOTS.items():
        for area, content in (item for section in sections for item in _table()[section].items()):
            if root == "lightning" and area:
                continue
            package = f"{root}.{area}".removesuffix(".")
            for file, names in content["classes"].items():
                for place in itertools.accumulate(filter(None, file.split(".")), "{}.{}".format, initial=package):
                    classes.update({f"{place}.{name}": (content["package"], name) for name in names.split()})
    return classes


def _name(path: str) -> str:
    """Return the name that stands for a class of Lightning, or an empty string."""
    name: str = _table()["names"].get(_lightning().get(path, ("", ""))[1], "")
    return name


def _lacking(path: str, package: str, name: str) -> MisconfigurationException:
    registered, instead = _table()["names"].get(name), _table()["instead"].get(name)
    other = f"write instead: {instead}" if instead else "leave it out, or write one of these."
    return MisconfigurationException(
        f"{path!r} is a Lightning class with no counterpart in lightlib.",
        expected=f"one of {package}: {', '.join(_classes(package)) or 'none'}.",
        fix=f"trainer.plugins: {registered}" if registered else other,
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
