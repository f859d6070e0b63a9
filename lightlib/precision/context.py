"""Casts of nested data, and a context with another default dtype."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lightlib.tree import map_children


def cast_floating(batch: Any, dtype: torch.dtype) -> Any:
    """Return `batch` with every floating tensor in it cast to `dtype`; whatever else is in it stays."""
    if isinstance(batch, Tensor):
        return batch.to(dtype) if batch.is_floating_point() else batch
    return map_children(functools.partial(cast_floating, dtype=dtype), batch)


class DefaultDtype:
    """Within this context new floating tensors have `dtype`."""

    __slots__ = ("before", "dtype")

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self.before)
