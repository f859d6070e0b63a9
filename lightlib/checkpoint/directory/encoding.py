"""Encodes nested plain values and tensors as JSON and a table of tensors, and decodes them strictly."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from lightlib.checkpoint.directory.tensors import LazyTensor
from lightlib.errors import CheckpointError, CheckpointWriteError

DEPTH = 100  # levels of nested containers, when writing and when reading
T = TypeVar("T")
TAG, OF = "!", "of"  # an object with these two keys is not a dict of the user's
DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset", torch.Size: "Size"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter"}
_MAKES: dict[str, Callable[[Any], Any]] = {name: kind for kind, name in (_SEQUENCES | _MAPPINGS).items()}
_SAFE = 2**53  # larger ints are not exact for other readers of JSON
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_DEVICE = re.compile(r"[a-z]{2,20}(:\d{1,4})?")


def encode(content: Any, lenient: bool = False) -> tuple[Any, dict[str, Any]]:
    """Return `content` as values for JSON, and the tensors that these refer to, by name.

    A tensor's name is its path: ``state_dict/layer.weight``, ``optimizer_states/[0]/state/[3]/exp_avg``. Values that
    are neither plain, tensors (also `LazyTensor`), nor containers of them are an error, or omitted if `lenient`.

    Raises:
        CheckpointWriteError: A value has another type, or containers are nested too deeply; the message states where.

    Example:
        >>> encode({"steps": (1, 2), "ok": True})
        ({'steps': {'!': 'tuple', 'of': [1, 2]}, 'ok': True}, {})
    """
    tensors: dict[str, Any] = {}
    return _encoded(content, (), tensors, lenient), tensors


def _encoded(value: Any, path: tuple[Any, ...], tensors: dict[str, Any], lenient: bool) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    leaf = _leaf(value)
    if leaf is not None:
        return leaf
    refusal = _refusal(value, kind, len(path))
    if refusal is not None:
        if lenient:
            return None
        raise _refused(path, refusal)
    if isinstance(value, (Tensor, LazyTensor)):
        name = "/".join(map(_step, path))
        tensors[name] = value
        return {TAG: "tensor", OF: name}
    if kind is deque:
        return {TAG: "deque", OF: [value.maxlen, _encoded(list(value), path, tensors, lenient)]}
    if kind is SimpleNamespace:
        return {
            TAG: "namespace",
            OF: [[name, _encoded(part, (*path, name), tensors, lenient)] for name, part in vars(value).items()],
        }
    if kind is list or kind in _SEQUENCES:
        parts = [_encoded(part, (*path, index), tensors, lenient) for index, part in enumerate(value)]
        return parts if kind is list else {TAG: _SEQUENCES[kind], OF: parts}
    if kind is dict and TAG not in value and all(type(key) is str for key in value):
        return {key: _encoded(part, (*path, key), tensors, lenient) for key, part in value.items()}
    pairs = []
    for key, part in value.items():
        in_key: dict[str, Any] = {}
        encoded_key = _encoded(key, (*path, key), in_key, lenient)
        if in_key and not lenient:
            raise _refused((*path, key), "a tensor as a key")
        pairs.append([encoded_key, _encoded(part, (*path, key), tensors, lenient)])
    return {TAG: _MAPPINGS[kind], OF: pairs}


def _leaf(value: Any) -> Any:
    """Return the encoding of a plain value that is not a container; None for other values."""
    kind = type(value)
    if kind is int:
        return value if abs(value) <= _SAFE else {TAG: "int", OF: hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {TAG: "float", OF: repr(value)}
    if kind is complex:
        return {TAG: "complex", OF: [_leaf(value.real), _leaf(value.imag)]}
    if kind is bytes:
        return {TAG: "bytes", OF: base64.b64encode(value).decode()}
    if kind is torch.dtype:
        return {TAG: "dtype", OF: str(value).removeprefix("torch.")}
    return {TAG: "device", OF: str(value)} if kind is torch.device else None


def _refusal(value: Any, kind: type, level: int) -> str | None:
    """Return the reason why a container or tensor cannot be encoded; None if it can."""
    if isinstance(value, (Tensor, LazyTensor)):
        empty = isinstance(value, Tensor) and (is_lazy(value) or value.is_meta)
        return "a tensor without values (on the meta device, or of a lazy layer)" if empty else None
    if kind not in (list, deque, SimpleNamespace) and kind not in _SEQUENCES and kind not in _MAPPINGS:
        return f"an object of type {kind.__module__}.{kind.__qualname__}"
    return f"a container nested more than {DEPTH} levels deep" if level >= DEPTH else None


def _step(part: Any) -> str:
    """Return one step of a path as a part of a name; different steps have different names."""
    if type(part) is not str:
        shown = hex(part) if type(part) is int and abs(part) > _SAFE else repr(part)
        return f"[{shown}]".replace("/", "\\/")
    escaped = part.replace("\\", "\\\\").replace("/", "\\/")
    return f"\\{escaped}" if escaped.startswith("[") or not escaped else escaped


def _refused(path: tuple[Any, ...], description: str) -> CheckpointWriteError:
    where = "".join(f"[{part!r}]" for part in path[:8]) + ("[…]" if len(path) > 8 else "")
    return CheckpointWriteError(
        f"The checkpoint cannot be written as a directory: at {where or 'its top'} there is {description}.",
        expected="tensors, numbers, strings, bytes, and lists, tuples, sets and dicts of them.",
        fix="remove it from what on_save_checkpoint or state_dict returns, or save a file: format='file'.",
    )


def decode(encoded: Any, tensor: Callable[[str], Any]) -> Any:
    """Return the content that was given to `encode`. No name in the data is imported or looked up as a class.

    A `CheckpointError` means that a value is not one that `encode` writes.

    Example:
        >>> decode({"!": "tuple", "of": [1, {"!": "float", "of": "inf"}]}, lambda name: None)
        (1, inf)
    """
    try:
        return _decoded(encoded, tensor, 0)
    except (TypeError, ValueError, KeyError, RuntimeError, binascii.Error) as error:
        raise _strange(str(error)) from error


def _decoded(value: Any, tensor: Callable[[str], Any], depth: int) -> Any:
    if depth > DEPTH:
        raise _strange(f"a container nested more than {DEPTH} levels deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_decoded(part, tensor, depth + 1) for part in value]
    if type(value) is not dict:
        raise _strange(f"a value of type {type(value).__name__}")
    if TAG not in value:
        return {key: _decoded(part, tensor, depth + 1) for key, part in value.items()}
    tag, of = value[TAG], value.get(OF)
    if set(value) != {TAG, OF} or type(tag) is not str:
        raise _strange(f"an object with the keys {sorted(value)[:4]}")
    if tag == "tensor":
        return tensor(_checked(of, str))
    if tag in _SEQUENCES.values():
        return _MAKES[tag](_decoded(_checked(of, list), tensor, depth + 1))
    if tag == "deque":
        most, items = _checked(of, list)
        return deque(_decoded(_checked(items, list), tensor, depth + 1), None if most is None else _checked(most, int))
    if tag == "namespace":
        return SimpleNamespace(**{_checked(name, str): _decoded(part, tensor, depth + 1) for name, part in _pairs(of)})
    if tag in _MAPPINGS.values():
        pairs = [(_decoded(key, tensor, depth + 1), _decoded(part, tensor, depth + 1)) for key, part in _pairs(of)]
        if len(dict(pairs)) != len(pairs):
            raise _strange("a duplicate key")
        return _MAKES[tag](dict(pairs)) if tag == "Counter" else _MAKES[tag](pairs)
    return _decoded_leaf(tag, of)


def _decoded_leaf(tag: str, of: Any) -> Any:
    if tag == "int":
        return int(_checked(of, str), 16)
    if tag == "float":
        return _NOT_FINITE[_checked(of, str)]
    if tag == "complex":
        real, imag = map(_float, _checked(of, list))
        return complex(real, imag)
    if tag == "bytes":
        return base64.b64decode(_checked(of, str), validate=True)
    if tag == "dtype":
        return DTYPES[_checked(of, str)]
    if tag == "device":
        if not _DEVICE.fullmatch(_checked(of, str)):
            raise _strange(f"the device {of!r}")
        return torch.device(of)
    raise _strange(f"the unknown kind {tag!r}")


def _float(value: Any) -> float:
    if type(value) is dict and value.get(TAG) == "float" and set(value) == {TAG, OF}:
        return _NOT_FINITE[_checked(value[OF], str)]
    if type(value) is not float:
        raise _strange("a complex number whose parts are not floats")
    return value


def _checked(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise _strange(f"a value of type {type(value).__name__} instead of a {kind.__name__}")
    return value


def _pairs(value: Any) -> Iterator[list[Any]]:
    for pair in _checked(value, list):
        if type(pair) is not list or len(pair) != 2:
            raise _strange("a dict that is not a list of pairs")
        yield pair


def _strange(problem: str) -> CheckpointError:
    return CheckpointError(
        f"The plain values of a checkpoint could not be read: {problem[:200]}.",
        expected="values that lightlib writes.",
        fix="use another checkpoint; this one is damaged, or from another program or a newer version.",
    )


def merged(first: Any, second: Any) -> Any:
    """Return the union of the encoded values of two processes; if both have a value, the first one's."""
    if type(first) is list and type(second) is list:
        both = [merged(left, right) for left, right in zip(first, second, strict=False)]
        return both + (first[len(both) :] or second[len(both) :])
    if type(first) is not dict or type(second) is not dict:
        return first
    if TAG not in first and TAG not in second:
        joined = {key: merged(value, second[key]) if key in second else value for key, value in first.items()}
        return joined | {key: value for key, value in second.items() if key not in first}
    if first.get(TAG) != second.get(TAG) or first.get(TAG) not in _MAPPINGS.values():
        return second if first == {} else first
    pairs: dict[str, list[Any]] = {}
    for key, value in (*first[OF], *second[OF]):
        existing = pairs.get(repr(key))
        pairs[repr(key)] = [key, value if existing is None else merged(existing[1], value)]
    ordered = list(pairs.values())
    if all(type(key) is int for key, _ in ordered):
        ordered.sort(key=lambda pair: pair[0])
    return {TAG: first[TAG], OF: ordered}


def tensor_names(encoded: Any) -> Iterator[str]:
    """Yield the names of the tensors that encoded values refer to."""
    if type(encoded) is list:
        for part in encoded:
            yield from tensor_names(part)
    elif type(encoded) is dict:
        if encoded.get(TAG) == "tensor":
            yield encoded[OF]
        else:
            for part in encoded.values():
                yield from tensor_names(part)
