"""Methods of Lightning's that a user's class overrides; completes classes without a base of ours."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from lightlib import strategies as ours
from lightlib.errors import MisconfigurationException, is_ours

__all__ = ["HOOKS", "STEPS", "STORING", "check_same", "complete", "overridden", "refuse"]

STEPS = ("training_step", "validation_step", "test_step", "predict_step")
STORING = ("save_checkpoint", "load_checkpoint", "remove_checkpoint")
HOOKS = (
    *(f"on_{stage}_{moment}" for stage in ("train", "validation", "test", "predict") for moment in ("start", "end")),
    "on_train_batch_start",
    "on_exception",
)


def overridden(instance: object, names: Iterable[str]) -> list[str]:
    """Return those of `names` that the class of `instance` overrides outside of lightlib.

    Example:
        >>> from collections import Counter
        >>> overridden(Counter(), ["update", "pop"])
        ['update']
    """
    return [name for name in names if _is_by_user(type(instance), name)]


def _is_by_user(kind: type, name: str) -> bool:
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    return owner is not None and owner.__module__ != "builtins" and not is_ours(owner.__module__)


def refuse(kind: type, name: str, instead: str) -> MisconfigurationException:
    """Return the error for an override that cannot be honoured."""
    return MisconfigurationException(
        f"{kind.__name__} overrides `{name}`, which lightlib does not call.",
        expected=f"a subclass that leaves `{name}` to lightlib.",
        fix=instead,
    )


def check_same(given: Any, module: Any, method: str, owner: Any) -> None:
    """Raise if a method of the user replaces the module, which lightlib does not do."""
    if given is not module:
        raise MisconfigurationException(
            f"{type(owner).__name__}.{method} returned another module, a {type(given).__name__}.",
            expected="the same module, changed in place.",
            fix="change the layers of the module and return it.",
        )


@functools.cache
def complete(kind: type) -> type:
    """Return a subclass of a strategy that was written from scratch, with lightlib's part of one device or of DDP."""
    if is_ours(kind.__module__):
        raise TypeError(f"{kind.__name__} is abstract: make an object of a subclass, such as DDPStrategy")
    base = ours.DDPStrategy if hasattr(kind, "is_parallel") else ours.SingleDeviceStrategy
    members: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    members["from_scratch"] = True
    return type(kind.__name__, (kind, base), {**members, "__reduce__": lambda self: _pickled(self, kind)})


def _pickled(strategy: Any, kind: type) -> tuple[Any, ...]:
    return _empty, (kind,), strategy.__getstate__()


def _empty(kind: type) -> Any:
    return object.__new__(complete(kind))
