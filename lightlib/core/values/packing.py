"""Many values of one form, as a replay buffer has them: compared and saved as a few large tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from lightlib.core.values.attributes import (
    ABSENT,
    SCALARS,
    SnapshotContext,
    Unsaveable,
    attributes_of,
    dict_of,
    full_name,
    give,
    has_protocol,
    is_dataclass_type,
    record_class,
)
from lightlib.core.values.contents import MOST, checksum, checksum_on_device, content_of_plain

FEWEST = 16  # fewer values are handled one by one
_BYTES = 2**24  # so many are stacked at once for a checksum
_SMALL = 2**16  # a larger tensor costs little by itself
_DEEPEST = 3
_SCALARS, _NONE = frozenset(SCALARS), type(None)
_LIKE = attrgetter("shape", "dtype", "device", "layout", "requires_grad")
_LIKE_ARRAY = attrgetter("shape", "dtype")


@dataclass
class Columns:
    """Values of one form, as one list for each of their parts.

    Attributes:
        kind: ``"tuple"``, ``"dict"`` or the full name of a named tuple or dataclass.
        names: The keys of a dict, the attributes of a dataclass; the numbers of a tuple's items.
    """

    kind: str
    names: list[Any]
    parts: list[Sequence[Any]]


def _columns(items: Sequence[Any], context: SnapshotContext) -> Columns | None:
    """Return values as columns, None if they have several forms or one that is not saved by its parts."""
    kind = type(items[0])
    if kind is tuple or (issubclass(kind, tuple) and record_class(full_name(kind), context) is kind):
        if len(set(map(len, items))) > 1 or not items[0]:
            return None
        parts: list[Sequence[Any]] = list(zip(*items, strict=True))
        return Columns("tuple" if kind is tuple else full_name(kind), list(range(len(parts))), parts)
    if kind is dict:
        names = list(items[0])
        if not names or not _SCALARS.issuperset(map(type, names)) or len(set(map(tuple, items))) > 1:
            return None
        return Columns("dict", names, [[item[name] for item in items] for name in names])
    if not is_dataclass_type(kind) or has_protocol(items[0]) or record_class(full_name(kind), context) is not kind:
        return None
    rows = [attributes_of(item) for item in items]
    if not rows[0] or len(set(map(tuple, rows))) > 1:
        return None
    return Columns(full_name(kind), list(rows[0]), [[row[name] for row in rows] for name in rows[0]])


def content_of_many(items: Sequence[Any], context: SnapshotContext, depth: int = 0) -> Any:
    """Return a value that differs if one of many values of one form has changed; None if they have no common form."""
    kinds = set(map(type, items))
    if len(items) < FEWEST or depth > _DEEPEST:
        return None
    if kinds <= _SCALARS:
        return content_of_plain(items)
    if _NONE in kinds and len(kinds) == 2:
        present = [item for item in items if item is not None]
        content = content_of_many(present, context, depth + 1)
        return None if content is None else (content_of_plain(item is None for item in items), content)
    if len(kinds) > 1 or not context.names.keys().isdisjoint(map(id, items)):
        return None
    if kinds == {Tensor}:
        return _content_of_tensors(items, context)
    if kinds == {_array_kind()}:
        return _content_of_arrays(items, context)
    columns = _columns(items, context)
    if columns is None:
        return None
    contents = [content_of_many(part, context, depth + 1) for part in columns.parts]
    return None if None in contents else (columns.kind, columns.names, contents)


def _array_kind() -> Any:
    numpy: Any = sys.modules.get("numpy")
    return None if numpy is None else numpy.ndarray


def _content_of_tensors(items: Sequence[Tensor], context: SnapshotContext) -> Any:
    like = set(map(_LIKE, items))
    size = items[0].nbytes
    if len(like) > 1 or items[0].layout is not torch.strided or size > _SMALL:
        return None
    about = tuple(items[0].shape), str(items[0].dtype), str(items[0].device)
    if items[0].is_meta or not context.compare_in_full(size * len(items), MOST):
        return *about, hash(tuple(map(id, items))), hash(tuple(map(attrgetter("_version"), items)))

    def content(some: Sequence[Tensor]) -> int:
        with torch.no_grad():
            flat = torch.stack(list(some)).resolve_conj().resolve_neg().view(-1).view(torch.uint8)
        return checksum(flat.numpy()) if flat.device.type == "cpu" else checksum_on_device(flat)

    return *about, _by_blocks(items, size, content) if items[0].numel() else []


def _content_of_arrays(items: Sequence[Any], context: SnapshotContext) -> Any:
    import numpy  # optional: numpy

    size = items[0].nbytes
    if len(set(map(_LIKE_ARRAY, items))) > 1 or items[0].dtype.hasobject or size > _SMALL:
        return None
    about = items[0].shape, str(items[0].dtype)
    if not context.compare_in_full(size * len(items), MOST):
        return *about, hash(tuple(map(id, items)))
    return *about, _by_blocks(items, size, lambda some: checksum(numpy.stack(list(some)).reshape(-1).view("uint8")))


def _by_blocks(items: Sequence[Any], size: int, content: Callable[[Sequence[Any]], int]) -> list[int]:
    number = max(1, _BYTES // max(1, size))
    return [content(items[first : first + number]) for first in range(0, len(items), number)]


def packed(items: Sequence[Any], context: SnapshotContext, depth: int = 0) -> Any:
    """Return many values of one form as plain values, of which tensors are stacked; None if they have no common form.

    Args:
        items: The values.
        context: The run's own parts; its room shrinks.
        depth: How many records are around the values.
    """
    if len(items) < FEWEST or depth > _DEEPEST:
        return None
    kinds = set(map(type, items))
    if kinds <= _SCALARS:
        context.take(16 * len(items) + sum(len(item) for item in items if isinstance(item, (str, bytes))))
        return list(items)
    if _NONE in kinds and len(kinds) == 2:
        there = [number for number, item in enumerate(items) if item is not None]
        part = packed([items[number] for number in there], context, depth + 1)
        return None if part is None else {"there": torch.tensor(there), "of": len(items), "part": part}
    if len(kinds) > 1 or not context.names.keys().isdisjoint(map(id, items)):
        return None
    if kinds == {Tensor}:
        return _packed_tensors(items, context)
    if kinds == {_array_kind()}:
        return _packed_arrays(items, context)
    columns = _columns(items, context)
    if columns is None:
        return None
    context.take(16 * len(items))
    parts = [packed(part, context, depth + 1) for part in columns.parts]
    return None if None in parts else {"columns": columns.kind, "names": columns.names, "parts": parts}


def _packed_tensors(items: Sequence[Tensor], context: SnapshotContext) -> Any:
    like, first = set(map(_LIKE, items)), items[0]
    shapes, rest = {description[0] for description in like}, {description[1:] for description in like}
    if len(rest) > 1 or len({len(shape) for shape in shapes}) > 1 or first.layout is not torch.strided or first.is_meta:
        return None
    about = {"on_device": first.device.type != "cpu", "grad": first.requires_grad}
    with torch.no_grad():
        if len(shapes) == 1:
            context.take(first.nbytes * len(items))
            return {"stack": torch.stack(list(items)), **about}
        context.take(sum(item.nbytes for item in items))
        flat = torch.cat([item.reshape(-1) for item in items])
    return {"flat": flat, "shapes": torch.tensor([list(item.shape) for item in items]), **about}


def _packed_arrays(items: Sequence[Any], context: SnapshotContext) -> Any:
    import numpy  # optional: numpy

    like = set(map(_LIKE_ARRAY, items))
    if len(like) > 1 or items[0].dtype.hasobject or items[0].dtype.names is not None:
        return None
    context.take(items[0].nbytes * len(items))
    stacked = numpy.stack(list(items)).reshape(-1)
    content = torch.from_numpy(stacked.view("uint8")) if stacked.size else torch.zeros(0, dtype=torch.uint8)
    return {"arrays": content, "dtype": items[0].dtype.str, "shape": [len(items), *items[0].shape]}


def unpacked(encoded: Any, current: Sequence[Any], context: SnapshotContext) -> list[Any]:
    """Return the values that `packed` encoded, tensors in place of those in `current` where they fit."""
    if isinstance(encoded, list):
        return encoded
    if "there" in encoded:
        there, filled = encoded["there"].tolist(), [None] * int(encoded["of"])
        now = [current[number] if number < len(current) else ABSENT for number in there]
        for number, value in zip(there, unpacked(encoded["part"], now, context), strict=True):
            filled[number] = value
        return filled
    if "stack" in encoded:
        saved = encoded["stack"]
        return _tensors(list(saved.unbind()), encoded, current, context)
    if "flat" in encoded:
        shapes = encoded["shapes"].tolist()
        pieces = encoded["flat"].split([int(torch.Size(shape).numel()) for shape in shapes])
        shaped = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return _tensors(shaped, encoded, current, context)
    if "arrays" in encoded:
        saved = encoded["arrays"].numpy().view(encoded["dtype"]).reshape(encoded["shape"])
        return [_array(array, now) for array, now in zip(saved, _padded(current, len(saved)), strict=True)]
    names, kind, parts = encoded["names"], encoded["columns"], encoded["parts"]
    columns = [
        unpacked(part, [_part(record, kind, name) for record in current], context)
        for name, part in zip(names, parts, strict=True)
    ]
    return _records(kind, names, columns, context)


def _records(kind: str, names: list[Any], columns: list[list[Any]], context: SnapshotContext) -> list[Any]:
    rows = zip(*columns, strict=True)
    if kind == "tuple":
        return list(rows)
    if kind == "dict":
        return [dict(zip(names, row, strict=True)) for row in rows]
    record: Any = record_class(kind, context)
    if record is None:
        raise Unsaveable(f"it held a {kind.partition(':')[2]}, which this program does not have")
    if issubclass(record, tuple):
        return [tuple.__new__(record, row) for row in rows]
    records = []
    for row in rows:
        records.append(object.__new__(record))
        for name, value in zip(names, row, strict=True):
            give(records[-1], name, value)
    return records


def _part(value: Any, kind: str, name: Any) -> Any:
    if isinstance(value, tuple):
        return value[name] if kind != "dict" and isinstance(name, int) and name < len(value) else ABSENT
    if kind == "dict":
        return value.get(name, ABSENT) if type(value) is dict else ABSENT
    return dict_of(value).get(name, ABSENT) if isinstance(name, str) else ABSENT


def _padded(current: Sequence[Any], size: int) -> list[Any]:
    return [*current[:size], *([ABSENT] * (size - len(current)))]


def _tensors(
    saved: list[Tensor], encoded: dict[str, Any], current: Sequence[Any], context: SnapshotContext
) -> list[Any]:
    device = context.device if encoded["on_device"] else None
    tensors: list[Any] = []
    with torch.no_grad():
        for saved_tensor, now in zip(saved, _padded(current, len(saved)), strict=True):
            if isinstance(now, Tensor) and (now.shape, now.dtype) == (saved_tensor.shape, saved_tensor.dtype):
                tensors.append(now.copy_(saved_tensor))
            else:
                tensors.append(saved_tensor.clone() if device is None else saved_tensor.to(device, copy=True))
    return [tensor.requires_grad_() for tensor in tensors] if encoded["grad"] else tensors


def _array(saved: Any, current: Any) -> Any:
    fits = type(current) is type(saved) and (current.shape, current.dtype) == (saved.shape, saved.dtype)
    if fits and current.flags.writeable:
        current[...] = saved
        return current
    return saved.copy()
