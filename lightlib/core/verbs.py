"""verb: the entry of `fit`, `validate`, `test` and `predict`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from lightlib.core import spawned
from lightlib.core.setup.trainer_call import refuse_unknown

Method = TypeVar("Method", bound=Callable[..., Any])


def verb(method: Method) -> Method:
    """Let a method of the Trainer refuse unknown arguments, and run in processes that the strategy spawns."""
    signature = inspect.signature(method)

    @wraps(method)
    def call(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        unknown = {name: value for name, value in kwargs.items() if name not in signature.parameters}
        owner = next(kind for kind in type(trainer).__mro__ if vars(kind).get(method.__name__) is call)
        refuse_unknown(unknown, call, owner)
        if not spawned.wanted(trainer):
            return method(trainer, *args, **kwargs)
        bound = signature.bind(trainer, *args, **kwargs)
        bound.apply_defaults()
        return spawned.call(trainer, method.__name__, bound.arguments)

    return cast("Method", call)
