"""Nested data: batches and states made of tensors, mappings, sequences and dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["to_device"]


def to_device(data: Any, device: torch.device) -> Any:
    """Return `data` with everything that has a method `to` moved to `device`; containers keep their types.

    Tensors in pinned memory are copied without waiting.
    """
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=device.type == "cuda")
    if callable(getattr(data, "to", None)) and not isinstance(data, type):
        return data.to(device)
    if isinstance(data, Mapping):
        moved = {key: to_device(value, device) for key, value in data.items()}
        if type(data) is dict or not isinstance(data, MutableMapping):
            return moved if type(data) is dict else type(data)(moved)  # type: ignore[call-arg]
        changed = copy.copy(data)  # a defaultdict is not made of another dict alone
        changed.update(moved)
        return changed
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(to_device(value, device) for value in data)
    if is_dataclass(data) and not isinstance(data, type):
        like = copy.copy(data)
        for field in fields(data):
            if hasattr(data, field.name):
                object.__setattr__(like, field.name, to_device(getattr(data, field.name), device))
        return like
    return data
