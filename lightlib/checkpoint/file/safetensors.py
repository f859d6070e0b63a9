"""Weights in a safetensors file, which cannot contain code and which many other programs read."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from lightlib import optional
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import CheckpointError, CheckpointWriteError

SUFFIX = ".safetensors"
NOTED = ("epoch", "global_step")  # values of a checkpoint that are written with the weights
DIGEST = "lightlib.sha256"  # of the tensors and the rest of the metadata; the format itself has no checksum
_MAX_HEADER = 100_000_000  # bytes; the limit of the format
_LARGEST = 2**63 - 1  # number that torch can have as a size
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def save(tensors: Mapping[str, Tensor], path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
    """Write tensors under their names; tensors that share memory are each written in full."""
    package = _package()
    name = os.fspath(path)
    strange = [key for key, tensor in tensors.items() if tensor.layout is not torch.strided or tensor.is_quantized]
    if strange:
        raise CheckpointWriteError(
            f"{strange[0]!r} cannot be written to {name!r}: it is not a dense tensor ({tensors[strange[0]].layout}).",
            expected="dense tensors.",
            fix="remove it, or keep the weights in a checkpoint file.",
        )
    taken: set[int] = set()
    alone = {key: _alone(tensor, taken) for key, tensor in tensors.items()}
    try:
        data = package.torch.save(alone, metadata={**metadata, DIGEST: _digest(alone, metadata)})
    except (ValueError, KeyError, package.SafetensorError) as error:
        raise CheckpointWriteError(
            f"The weights could not be written to {name!r}: {error}.",
            expected="dense tensors of a dtype that safetensors supports.",
            fix="export(…, dtype='float32'), or keep the weights in a checkpoint file.",
        ) from error

    filesystem.write(name, lambda file: cast("None", file.write(data)))


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and values of tensors, and of other metadata."""
    hashed = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        hashed.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _alone(tensor: Tensor, taken: set[int]) -> Tensor:
    """Return the tensor if it has its memory to itself, as the format requires, else a copy."""
    tensor = tensor.detach().cpu()
    storage = tensor.untyped_storage()
    full = tensor.is_contiguous() and storage.nbytes() == tensor.numel() * tensor.element_size()
    first = storage.data_ptr() not in taken
    taken.add(storage.data_ptr())
    return tensor if full and first else tensor.clone(memory_format=torch.contiguous_format)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the tensors as ``"state_dict"``, with the values that `export` noted, in the form of a checkpoint."""
    package = _package()
    _, metadata, _ = outline(path)
    name = os.fspath(path)
    try:
        if filesystem.is_remote(name):
            with filesystem.open_for_reading(name) as file:
                tensors = package.torch.load(file.read())
        else:
            tensors = package.torch.load_file(filesystem.local_path(name))
    except (OSError, ValueError, KeyError, package.SafetensorError) as error:
        raise _damaged(name, str(error)) from error
    digest = metadata.pop(DIGEST, None)  # None: another program wrote it
    if digest is not None and digest != _digest(tensors, metadata):
        raise _damaged(name, "its tensors differ from its checksum")
    noted = {key: metadata[key] for key in NOTED if re.fullmatch("[0-9]{1,18}", metadata.get(key, ""))}
    return {"state_dict": tensors, **{key: int(text) for key, text in noted.items()}}


def outline(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str], int]:
    """Return the tensors without values (on the device "meta"), the metadata, and the size of the file."""
    name = os.fspath(path)
    size = filesystem.size_of(name)
    with filesystem.open_for_reading(name) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise _damaged(name, f"its header has {length} bytes, the file {size}")
        text = file.read(length)
    try:
        header = json.loads(text)
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        tensors = {str(key): _described(entry, size - 8 - length) for key, entry in header.items()}
        ends = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise _damaged(name, f"its header cannot be read ({type(error).__name__}: {error})") from error
    if ends != size - 8 - length:
        raise _damaged(name, f"it should have {8 + length + ends} bytes but has {size}")
    return tensors, metadata, size


def _described(entry: Mapping[str, Any], room: int) -> Tensor:
    (start, end), shape, dtype = entry["data_offsets"], entry["shape"], _DTYPES[entry["dtype"]]
    plain = all(type(number) is int and 0 <= number <= _LARGEST for number in (start, end, *shape))
    # torch computes strides in 64 bits, even for empty tensors
    fits = plain and math.prod(max(1, size) for size in shape) * dtype.itemsize <= _LARGEST
    if not fits or not start <= end <= room or end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"bytes {start} to {end} for {entry['dtype']} {shape}")
    return torch.empty(shape, dtype=dtype, device="meta")


def _damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{name!r} could not be read as safetensors: {reason}.",
        expected="a complete file that safetensors wrote.",
        fix="use another file; this one is truncated, damaged, or not a safetensors file.",
    )


def _package() -> ModuleType:
    optional.load("safetensors.torch", "Reading and writing .safetensors files")
    return importlib.import_module("safetensors")
