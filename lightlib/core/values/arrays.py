"""NumPy arrays and scalars of every kind as plain values: with fields, masks or objects, and matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lightlib.core.values.attributes import ABSENT, SnapshotContext, Unsaveable, dict_of


def encoded_array(value: Any, context: SnapshotContext, path: str, each: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Return an array or a scalar of NumPy as plain values, which `restored_array` reverses.

    Args:
        value: The array.
        context: The run's own parts; its room shrinks.
        path: Its name.
        each: Encodes one object of an array of objects, by its name.
    """
    import numpy  # optional: numpy

    kind: type = type(value)
    if not issubclass(kind, numpy.ndarray):
        if value.dtype.hasobject:
            raise Unsaveable("it is a record of objects")
        context.take(value.nbytes)
        return {"array": value.tobytes(), "dtype": _plain_dtype(value.dtype), "shape": [], "kind": "scalar"}
    if isinstance(value, numpy.ma.MaskedArray):
        parts = {"data": value.data, "mask": numpy.ma.getmaskarray(value), "fill": numpy.asarray(value.fill_value)}
        encoded = {name: encoded_array(numpy.asarray(part), context, path, each) for name, part in parts.items()}
        return {"masked": encoded, "has_mask": value.mask is not numpy.ma.nomask, "hard": bool(value.hardmask)}
    if kind not in (numpy.ndarray, numpy.matrix, numpy.recarray) and context.types.get(path) is not kind:
        raise Unsaveable(f"it is a {kind.__name__}")
    if kind not in (numpy.ndarray, numpy.matrix, numpy.recarray, numpy.memmap) and dict_of(value):
        raise Unsaveable(f"it is a {kind.__name__} with attributes")
    about = {"shape": list(value.shape), "kind": kind.__name__}
    base = numpy.asarray(value)
    if value.dtype.hasobject:
        if value.dtype.names is not None:
            raise Unsaveable("it is an array with fields of objects")
        items = [each(item, f"{path}[{number}]") for number, item in enumerate(base.reshape(-1).tolist())]
        return {"objects": items, **about}
    context.take(value.nbytes)
    flat = numpy.ascontiguousarray(base).reshape(-1)
    raw = flat.view(numpy.uint8) if flat.size else numpy.zeros(0, numpy.uint8)
    content = torch.from_numpy(raw if raw.flags.writeable else raw.copy())
    return {"array": content, "dtype": _plain_dtype(value.dtype), **about}


def _plain_dtype(dtype: Any) -> Any:
    """Return a dtype as plain values: a string, or the names and dtypes of its fields."""
    from numpy.lib import format as numpy_format  # optional: numpy

    described = numpy_format.dtype_to_descr(dtype)
    if numpy_format.descr_to_dtype(described) != dtype:
        raise Unsaveable(f"its dtype {dtype} cannot be written as plain values")
    return described


def restored_array(encoded: Any, current: Any, same: bool, each: Callable[[Any, Any], Any]) -> Any:
    """Return the array that `encoded_array` encoded, in place of `current` if it has its shape and dtype.

    Args:
        encoded: The plain values.
        current: The current value.
        same: Whether the saved array was the one from the start of training.
        each: Restores one object, given the current one.
    """
    import numpy  # optional: numpy
    from numpy.lib import format as numpy_format  # optional: numpy

    if "masked" in encoded:
        return _restored_masked(encoded, current, same, each)
    shape, kind = encoded["shape"], encoded.get("kind")
    if "objects" in encoded:
        saved: Any = numpy.empty(len(encoded["objects"]), dtype=object)
        fits = isinstance(current, numpy.ndarray) and current.size == len(saved) and current.dtype == object
        present = current.reshape(-1).tolist() if fits else [ABSENT] * len(saved)
        for number, item in enumerate(encoded["objects"]):
            saved[number] = each(item, present[number])
    else:
        content = encoded["array"]
        data = content.numpy() if isinstance(content, torch.Tensor) else numpy.frombuffer(content, numpy.uint8)
        dtype = numpy_format.descr_to_dtype(encoded["dtype"])
        saved = data.view(dtype) if data.size else numpy.zeros(shape, dtype)
    saved = saved.reshape(shape)
    if same and _fits(current, saved):
        numpy.asarray(current)[...] = saved
        return current
    if kind == "scalar" or (kind is None and not shape and not isinstance(current, numpy.ndarray)):
        return saved.copy()[()]
    if kind in ("matrix", "recarray"):
        return saved.copy().view(getattr(numpy, kind))
    if kind not in (None, "ndarray"):
        raise Unsaveable(f"it was a {kind} of another shape or type")
    return saved.copy()


def _fits(current: Any, saved: Any) -> bool:
    import numpy  # optional: numpy

    return (
        isinstance(current, numpy.ndarray)
        and (current.shape, current.dtype) == (saved.shape, saved.dtype)
        and bool(current.flags.writeable)
    )


def _restored_masked(encoded: Any, current: Any, same: bool, each: Callable[[Any, Any], Any]) -> Any:
    import numpy  # optional: numpy

    parts = {name: restored_array(part, ABSENT, False, each) for name, part in encoded["masked"].items()}
    if same and isinstance(current, numpy.ma.MaskedArray) and _fits(current.data, parts["data"]):
        current.soften_mask()
        current.data[...] = parts["data"]
        current.mask = parts["mask"] if encoded["has_mask"] else numpy.ma.nomask
    else:
        mask = parts["mask"] if encoded["has_mask"] else numpy.ma.nomask
        current = numpy.ma.MaskedArray(parts["data"], mask)
    current.fill_value = parts["fill"][()]
    if encoded["hard"]:
        current.harden_mask()
    return current
