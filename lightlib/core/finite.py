"""Weights that are no longer finite: looked for at the end of an epoch, and not per batch."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["are_finite"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def are_finite(parameters: Iterable[Tensor]) -> bool:
    """Whether what this process has of the trained parameters holds neither NaN nor infinity.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> are_finite([weight]), are_finite([weight, weight * math.nan])
        (True, False)
    """
    local = [p.to_local() if hasattr(p, "to_local") else p.detach() for p in parameters if p.requires_grad]
    numbers = [p.detach() for p in local if p.dtype in _DTYPES and p.numel()]
    # The largest of all: unlike a sum of squares it does not overflow in half precision, and a NaN stays one.
    return not numbers or math.isfinite(torch.nn.utils.get_total_norm(numbers, math.inf).item())
