"""Lookup of methods: whether the user's class defines one, and which to call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def overrides(instance: object, base: type, name: str) -> bool:
    """Whether `instance` or its class defines `name` rather than inheriting it from `base`.

    A method that is set to None is not defined: ``module.validation_step = None`` turns it off. Neither is one that is
    set to the method of `base`: ``self.val_dataloader = super().val_dataloader``.
    """
    attributes: dict[str, Any] = getattr(instance, "__dict__", {})
    if name in attributes:
        attribute = attributes[name]
        return attribute is not None and getattr(attribute, "__func__", attribute) is not getattr(base, name, None)
    method = getattr(type(instance), name, None)
    return method is not None and method is not getattr(base, name, None)


def method_of(instance: Any, base: type, name: str) -> Callable[..., Any]:
    """Return a method of `instance`, or the one of `base` if the instance's is set to None."""
    method: Callable[..., Any] | None = getattr(instance, name, None)
    return partial(getattr(base, name), instance) if method is None else method


def with_stage(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call`, a `setup` or `teardown`; one that takes the stage only by name gets it so."""
    parameters = fixed_parameters(call) or ()
    only_named = any(p.kind is p.KEYWORD_ONLY and p.name == "stage" for p in parameters)
    if not only_named and [p.kind for p in parameters] != [inspect.Parameter.VAR_KEYWORD]:
        return call

    def named(stage: Any) -> Any:
        return call(stage=stage)

    return named


def fixed_parameters(call: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Return the parameters of a callable; None if it has no signature or takes any number of arguments."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature
        return None
    return None if any(p.kind is p.VAR_POSITIONAL for p in parameters) else parameters
