"""Attributes of the user's classes and functions, and hooks on modules, which a run may change."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from lightlib.core.values.attributes import attributes_of, dict_of, of_class
from lightlib.core.values.class_source import LIBRARIES, root_of

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_MUTABLE = (list, dict, set)


def users_classes(kind: type) -> Iterator[type]:
    """Yield a class and its bases, those that the user wrote."""
    for base in kind.__mro__:
        if root_of(base) not in LIBRARIES:
            yield base


def data_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class that are data, and its functions that have attributes or containers as defaults.

    Methods, properties and other descriptors are no data, and neither are classes and modules.
    """
    without = of_class(kind, "not_in_checkpoint", ())
    without = (without,) if isinstance(without, str) else without
    for name, value in list(vars(kind).items()):
        if name.startswith(("__", "_abc_")) or name == "not_in_checkpoint" or name in without:
            continue
        if type(value) is FunctionType:
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            if attributes_of(value) or any(type(default) in _MUTABLE for default in defaults):
                yield name, value
        elif not hasattr(type(value), "__get__") and not issubclass(type(value), (type, ModuleType)):
            yield name, value


def functions_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions of a class."""
    return ((name, value) for name, value in vars(kind).items() if type(value) is FunctionType)


def hooks_on(module: nn.Module) -> dict[str, list[str]]:
    """Return the names of the functions that the user registered as hooks on each part and parameter of a module."""
    hooks_by_place: dict[str, list[str]] = {}
    for place, part in module.named_modules():
        hooks_by_place[place] = [name for hooks in _HOOKS for name in _names(dict_of(part).get(hooks))]
    for place, parameter in module.named_parameters():
        hooks_by_place.setdefault(place, []).extend(
            name for hooks in _TENSOR_HOOKS for name in _names(getattr(parameter, hooks))
        )
    return {place: sorted(names) for place, names in hooks_by_place.items() if names}


def _names(hooks: Any) -> Iterator[str]:
    for hook in list((hooks or {}).values()):
        function = _inner(hook)
        if str(function.__module__).partition(".")[0] not in LIBRARIES:
            yield str(function.__qualname__)


def _inner(hook: Any) -> Any:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook if hasattr(hook, "__qualname__") else type(hook)
