"""Which methods a user's class defines itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["method_of", "overrides"]


def overrides(instance: object, base: type, name: str) -> bool:
    """Whether `instance` or its class defines `name`, and does not just inherit it from `base`.

    A method that is set to None is not defined: ``module.validation_step = None`` switches it off.
    """
    held: dict[str, Any] = getattr(instance, "__dict__", {})
    if name in held:
        return held[name] is not None
    own = getattr(type(instance), name, None)
    return own is not None and own is not getattr(base, name, None)


def method_of(instance: Any, base: type, name: str) -> Callable[..., Any]:
    """Return a method of `instance`; one that is set to None is not defined, so it is that of `base`."""
    found: Callable[..., Any] | None = getattr(instance, name, None)
    return partial(getattr(base, name), instance) if found is None else found
