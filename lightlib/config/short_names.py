"""Short and registered names become class paths."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from lightlib import registry, translations
from lightlib.errors import MisconfigurationException, UnknownNameError, is_ours
from lightlib.translations import kind_of

# The package that holds the classes of a group by name, and their base class.
GROUPS: dict[str, tuple[str, str]] = {
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

_SHAPE = ("class_path", "init_args", "dict_kwargs")


def class_path(group: str, name: str) -> str:
    """Return the import path of the class that a name stands for in a group of the registry, or in ``"profilers"``.

    The name is looked for in the registry (built-in names and entry points), then among the classes of our package
    for the group, then among the subclasses that the program has loaded; so a registered name always means the same.
    A class path is translated when it is one of another framework and returned as it is otherwise.
    """
    if "." in name:
        return translations.class_path(name)
    registered = registry.names(group) if group in registry.BUILT_IN else []
    package = GROUPS[group][0]
    if name in registered:
        registered_object = registry.get(group, name)
        if name in registry.BUILT_IN[group] and not isinstance(registered_object, type):
            raise _no_class(group, name)
        return registry.path(group, name).replace(":", ".")
    classes = classes_of(package)
    if name in classes:
        return kind_of(f"{package}.{name}")
    loaded = [path for path in _loaded(group) if path.rpartition(".")[2] == name]
    if len(loaded) > 1:
        raise MisconfigurationException(
            f"{name!r} is the name of several classes: {', '.join(loaded)}.",
            expected="a name that only one class has.",
            fix=f"write the class path, for instance {loaded[0]}.",
        )
    if loaded:
        return loaded[0]
    names = {*registered, *classes, *(path.rpartition(".")[2] for path in _loaded(group))}
    fix = "use one of these names, or a class path such as package.module.Class."
    raise UnknownNameError("strategy" if group == "strategies" else group.removesuffix("s"), name, names, fix=fix)


def plugin_path(name: str) -> str:
    """Return the import path of a precision or an environment that a name stands for; any other name as it is."""
    packages = (GROUPS[group][0] for group in ("precision", "environments"))
    return next((kind_of(f"{package}.{name}") for package in packages if name in classes_of(package)), name)


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


def _no_class(group: str, name: str) -> MisconfigurationException:
    argument = {"environments": "plugins", "strategies": "strategy"}.get(group, group)
    return MisconfigurationException(
        f"{name!r} is a name and not a class: it takes no arguments.",
        expected=f"one of the classes of {GROUPS[group][0]}: {', '.join(classes_of(GROUPS[group][0]))}.",
        fix=f"trainer.{argument}: {name}",
    )


def classes_of(package: str) -> list[str]:
    """Return the names of the classes of a package that a configuration may build."""
    module = importlib.import_module(package)
    base = next((resolve_name(base) for there, base in GROUPS.values() if there == package), object)
    kinds = {name: getattr(module, name) for name in sorted(module.__all__)}
    return [
        name
        for name, kind in kinds.items()
        if name in _ALSO or (isinstance(kind, type) and issubclass(kind, base) and _can_be_built(kind, base))
    ]


def _loaded(group: str) -> list[str]:
    """Return the paths of the subclasses, other than ours, that the program has imported and could build."""
    base = resolve_name(GROUPS[group][1])
    waiting: list[type] = type.__subclasses__(base)
    paths: set[str] = set()
    while waiting:
        kind = waiting.pop()
        waiting += type.__subclasses__(kind)
        path = f"{kind.__module__}.{kind.__qualname__}"
        hidden = is_ours(path) or "._" in path
        if (
            not hidden
            and _can_be_built(kind, base)
            and getattr(sys.modules.get(kind.__module__), kind.__qualname__, 0) is kind
        ):
            paths.add(path)
    return sorted(paths)


def _can_be_built(kind: type, base: type) -> bool:
    return kind is not base and not inspect.isabstract(kind)
