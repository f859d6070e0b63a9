"""Empty initialization: weights of new modules are allocated and not filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _NoFilling(TorchFunctionMode):
    """Makes the functions of `torch.nn.init` return their tensor as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def without_initialization(context: AbstractContextManager[Any]) -> Iterator[None]:
    """Return `context`, inside of which modules do not initialize their weights."""
    with context, _NoFilling():
        yield
