"""Nested data: batches and states made of tensors, mappings, sequences and dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "children",
    "map_children",
    "map_tensors",
    "named_children",
    "split",
    "tensors_in",
    "to_device",
    "with_children",
]

_LEAVES = frozenset({Tensor, str, bytes, bool, int, float, complex, type(None)})


def map_children(function: Callable[[Any], Any], data: Any) -> Any:
    """Return a container like `data` with `function` applied to each direct child; any other object is returned as is.

    Containers are mappings, lists, tuples, named tuples and dataclasses. The copy has their type and the order of their
    keys. A function that walks a tree handles its leaves, and passes itself to this function for any other object.

    Example:
        >>> def doubled(data):
        ...     return data * 2 if isinstance(data, int) else map_children(doubled, data)
        >>> doubled({"a": 1, "b": [2, (3, "x")]})
        {'a': 2, 'b': [4, (6, 'x')]}
    """
    kind = type(data)
    if kind in _LEAVES:
        return data
    if kind is dict:
        return {key: function(value) for key, value in data.items()}
    if kind is list:
        return list(map(function, data))
    if kind is tuple:
        return tuple(map(function, data))
    if isinstance(data, (list, tuple)):
        values = map(function, data)
        return kind(*values) if hasattr(data, "_fields") else kind(values)
    if isinstance(data, Mapping):
        return _mapping_like(data, {key: function(value) for key, value in data.items()})
    if not (names := _field_names(data)):
        return data
    copied = copy.copy(data)
    for name in names:
        object.__setattr__(copied, name, function(getattr(data, name)))  # it may be frozen
    return copied


def _mapping_like(data: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    if not isinstance(data, MutableMapping):
        return type(data)(values)  # type: ignore[call-arg]
    copied = copy.copy(data)  # a defaultdict needs more than its items
    for key, value in values.items():
        copied[key] = value
    return copied


def named_children(data: Any) -> Iterable[tuple[Any, Any]]:
    """Return the direct children of a container with their keys, indices or names; none for any other object."""
    if isinstance(data, (list, tuple)):
        return enumerate(data)
    if isinstance(data, Mapping):
        return data.items()
    return [(name, getattr(data, name)) for name in _field_names(data)]


def children(data: Any) -> Iterable[Any]:
    """Return the direct children of a container; none for any other object."""
    if isinstance(data, (list, tuple)):
        return data
    return data.values() if isinstance(data, Mapping) else [getattr(data, name) for name in _field_names(data)]


def _field_names(data: Any) -> list[str]:
    """Return the names of a dataclass's fields that have a value; none for any other object."""
    if not hasattr(type(data), "__dataclass_fields__"):
        return []
    return [field.name for field in fields(data) if hasattr(data, field.name)]


def with_children(data: Any, new: Iterable[Any]) -> Any:
    """Return a container like `data` with other children, in the order of `children`."""
    values = iter(new)
    return map_children(lambda _: next(values), data)


def map_tensors(function: Callable[[Tensor], Any], data: Any) -> Any:
    """Return `data` with `function` applied to each tensor in it.

    Example:
        >>> map_tensors(torch.Tensor.tolist, {"x": torch.ones(2), "name": "a"})
        {'x': [1.0, 1.0], 'name': 'a'}
    """
    if isinstance(data, Tensor):
        return function(data)
    return data if type(data) in _LEAVES else map_children(partial(map_tensors, function), data)


def tensors_in(data: Any) -> Iterator[Tensor]:
    """Yield the tensors in `data`, in the order of its children."""
    if isinstance(data, (list, tuple)):  # the usual batch, without a call of `children`
        values: Iterable[Any] = data
    else:
        values = (data,) if isinstance(data, Tensor) else children(data)
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif type(value) not in _LEAVES:
            yield from tensors_in(value)


def to_device(data: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """Return `data` with everything that has a method `to` moved to `device`; containers keep their types.

    With `non_blocking`, tensors in pinned memory are copied asynchronously.
    """
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=non_blocking)
    if callable(getattr(data, "to", None)) and not isinstance(data, type):
        return data.to(device)
    return map_children(partial(to_device, device=device, non_blocking=non_blocking), data)


def split(data: Any, number: int, size: int | None) -> list[Any]:
    """Return `data` in `number` parts: tensors, and lists of `size` values, are cut along their first dimension.

    Args:
        data: A batch.
        number: How many parts.
        size: Samples in the batch; a list of so many values without tensors has one for each sample.

    Example:
        >>> split({"x": torch.arange(4), "names": list("abcd"), "scale": 2}, 2, 4)
        [{'x': tensor([0, 1]), 'names': ['a', 'b'], 'scale': 2}, {'x': tensor([2, 3]), 'names': ['c', 'd'], 'scale': 2}]
    """
    if isinstance(data, Tensor) and not data.ndim:
        return [data] * number
    is_list = isinstance(data, list) and len(data) == size and not any(tensor.ndim for tensor in tensors_in(data))
    if is_list or isinstance(data, Tensor):
        length = len(data)
        return [data[index * length // number : (index + 1) * length // number] for index in range(number)]
    parts = [split(child, number, size) for child in children(data)]
    return [with_children(data, [part[index] for part in parts]) for index in range(number)]
