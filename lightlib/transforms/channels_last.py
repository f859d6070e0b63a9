"""Channels last: the memory format in which many convolutions are faster."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightlib.errors import MisconfigurationException
from lightlib.tree import map_tensors


def to_channels_last(data: Any) -> Any:
    """Return a module, or nested data, with its tensors of four dimensions in `torch.channels_last`.

    The values are the same, and so are the parameters of a module, which is changed in place. Other tensors stay as
    they are.

    Args:
        data: A module, a tensor, or a container of tensors.

    Raises:
        MisconfigurationException: A module without parameters of four dimensions.

    Example:
        >>> to_channels_last({"image": torch.ones(2, 3, 4, 4)})["image"].stride()
        (48, 1, 12, 3)
    """
    if not isinstance(data, nn.Module):
        return map_tensors(_changed, data)
    if not any(parameter.ndim == 4 for parameter in data.parameters()):
        raise MisconfigurationException(
            f"{type(data).__name__} has no parameter of four dimensions.",
            expected="a module with two-dimensional convolutions, which channels_last is made for.",
            fix="leave it out.",
        )
    return data.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it


def _changed(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
