"""Checksums of tensors, arrays and plain values, which show whether their content has changed."""

from __future__ import annotations

import marshal
import zlib
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from lightlib.core.values.attributes import SnapshotContext
from lightlib.torch_private import version_of

LARGE = 2**26  # a tensor or array of up to so many bytes is compared in full
MOST = 2**28  # and all of them together, in one look at the user's objects
_SAMPLE = 2**20  # so many bytes of any other are compared, in evenly spaced blocks
_BLOCK = 2**12
_CHUNK = 10_000
_PLAIN_TENSORS = (Tensor, nn.Parameter, nn.Buffer)


def is_plain_tensor(value: Tensor) -> bool:
    """Whether a tensor is strided, holds data, and is of none of the classes that combine tensors."""
    return type(value) in _PLAIN_TENSORS and value.layout is torch.strided and not value.is_meta


def content_of_tensor(value: Tensor, context: SnapshotContext) -> Any:
    """Return a value that differs if the content of a tensor has changed, also by ``.data`` or through a NumPy view.

    Beyond the limits, and for subclasses of tensors, this is torch's count of writes, and a sample.
    """
    about = tuple(value.shape), str(value.dtype)
    if type(value) not in _PLAIN_TENSORS or value.is_meta:
        return "tensor", *about, id(value), _writes(value)
    if value.layout is not torch.strided:
        parts = [getattr(value.detach(), name)() for name in _PARTS.get(value.layout, ())]
        return "tensor", *about, [content_of_tensor(part, context) for part in parts] or (id(value), _writes(value))
    full = context.compare_in_full(value.nbytes, MOST) and value.nbytes <= LARGE
    flat = value.detach().resolve_conj().resolve_neg()
    if not full:
        return "tensor", *about, id(value), _writes(value), _numbers(_sample(flat))
    return "tensor", *about, _numbers(flat)


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
}


def _writes(value: Tensor) -> int | None:
    return None if value.is_inference() else version_of(value)


def _sample(value: Tensor) -> Tensor:
    if not value.is_contiguous():
        return value[:: max(1, value.nbytes // _SAMPLE)]
    size = max(1, _BLOCK // value.element_size())
    flat = value.view(-1)
    blocks = flat[: flat.numel() // size * size].view(-1, size)
    return torch.cat([blocks[:: max(1, blocks.nbytes // _SAMPLE)].reshape(-1), flat[-size:]])


def _numbers(value: Tensor) -> int:
    """Return a checksum of the content of a strided tensor."""
    if not value.numel():
        return 0
    flat = value.contiguous().view(-1).view(torch.uint8)
    return checksum(flat.numpy()) if value.device.type == "cpu" else checksum_on_device(flat)


def checksum(data: Any) -> int:
    """Return a checksum of bytes."""
    return zlib.crc32(data)


def checksum_on_device(flat: Tensor) -> int:
    """Return a checksum of bytes on a device: the sum of its words, each times another odd number."""
    words = flat.numel() // 8
    whole = flat[: 8 * words]
    numbers = whole.view(torch.int64) if whole.storage_offset() % 8 == 0 else whole.clone().view(torch.int64)
    factors = torch.arange(1, 2 * words + 1, 2, device=flat.device)
    rest = [int(number) for number in flat[8 * words :].tolist()]
    return hash((int((numbers * factors).sum()), *rest))


def content_of_array(value: Any, context: SnapshotContext) -> Any:
    """Return a value that differs if the content of a NumPy array or scalar without objects has changed."""
    import numpy  # optional: numpy

    about = getattr(value, "shape", ()), str(value.dtype)
    if not isinstance(value, numpy.ndarray):
        return "number", *about, value.tobytes()
    if not context.compare_in_full(value.nbytes, MOST) or value.nbytes > LARGE:
        value = (
            value.reshape(-1)[:: max(1, value.nbytes // _SAMPLE)] if value.flags.c_contiguous else value.flat[:_BLOCK]
        )
    data = numpy.ascontiguousarray(value)
    return "array", *about, checksum(data.view(numpy.uint8) if data.size else b"")


def content_of_plain(values: Iterable[Any]) -> bytes | None:
    """Return a digest of many plain values, None if one is not plain."""
    total, left = blake2b(digest_size=16), iter(values)
    try:
        while chunk := list(islice(left, _CHUNK)):
            total.update(marshal.dumps(chunk, 2))  # later versions than 2 write references
    except ValueError:
        return None
    return total.digest()
