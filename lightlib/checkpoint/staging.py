"""Staging: copies a state to CPU memory, so that it can be written while training changes it."""

from __future__ import annotations

import contextlib
import copy
import mmap
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.lookup import of
from lightlib.checkpoint.directory.tensors import dtensor_type

ALIGNMENT = 64  # bytes; torch reads and writes full cache lines
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


class Buffers:
    """Memory for one copy of a state. It is reused for the next, because allocating costs more time than the copy."""

    def __init__(self) -> None:
        self.size = 0  # bytes: those of the largest state copied so far
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._pinned = False

    def reserve(self, size: int, by: Accelerator | None = None) -> None:
        """Allocate at least `size` bytes, pinned `by` an accelerator, and touch them: that takes longer than a copy."""
        pinned = by is not None
        if size <= self.size and (self._pinned or not pinned):
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # freed first: two never exist at once
        size = max(size, self.size)
        self._memory, self._pinned, self.size = _memory(size), pinned, size
        if by is not None:
            by.pin(self._memory)
        else:
            self._memory[::4096] = 0  # a byte of each page

    def part(self, start: int, size: int) -> torch.UntypedStorage:
        """Return `size` bytes from `start` on as a separate storage."""
        return self._memory.untyped_storage()[start : start + size]  # type: ignore[no-any-return]


def _memory(size: int) -> Tensor:
    """Return new memory, in huge pages if the system has them, and not shared with the workers of loaders."""
    if size == 0 or not hasattr(mmap, "MADV_DONTFORK"):
        return torch.empty(size, dtype=torch.uint8)
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        with contextlib.suppress(OSError, AttributeError):  # a system without huge pages
            mapped.madvise(getattr(mmap, advice))
    return torch.frombuffer(mapped, dtype=torch.uint8)


def staged(content: Any, buffers: Buffers) -> Any:
    """Return an independent copy of a state, with all tensors on the CPU; other objects are copied by `copy.deepcopy`.

    Tensors that share memory also share it in the copy. The copy is valid until the next call with the same buffers,
    which grow to the size of the state.

    Example:
        >>> weight = torch.ones(2)
        >>> copied = staged({"weight": weight, "epoch": 3}, buffers := Buffers())
        >>> weight.zero_(), copied["weight"], copied["epoch"], buffers.size
        (tensor([0., 0.]), tensor([1., 1.]), 3, 64)
    """
    copying = _StagedCopy()
    result = copying.copied(content)
    copying.fill(buffers)
    return result


class _StagedCopy:
    """One copy. Its tensors are created empty and get their memory once the total size is known."""

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}
        self._storages: dict[tuple[str, int, int], torch.UntypedStorage] = {}
        self._waiting: list[tuple[Tensor, Tensor, tuple[str, int, int]]] = []

    def copied(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        staged_copy: Any
        if isinstance(value, Tensor):
            staged_copy = self._tensor(value)
        elif kind in {dict, OrderedDict}:
            staged_copy = self._memo[id(value)] = kind()
            staged_copy.update((key, self.copied(part)) for key, part in value.items())
            if kind is OrderedDict:
                vars(staged_copy).update(
                    (key, self.copied(part)) for key, part in vars(value).items()
                )  # of module.state_dict
        elif kind is list:
            staged_copy = self._memo[id(value)] = []
            staged_copy.extend(self.copied(part) for part in value)
        elif kind in {tuple, set}:
            staged_copy = kind(self.copied(part) for part in value)
        else:
            staged_copy = copy.deepcopy(value)
        self._memo[id(value)] = staged_copy
        return staged_copy

    def _tensor(self, value: Tensor) -> Tensor:
        simple = type(value) in {Tensor, Parameter} and value.layout == torch.strided and not value.is_quantized
        if value.is_meta:
            return value
        if isinstance(value, dtensor_type()):
            local = self._tensor(value.to_local())  # it gets its memory later
            names, context = value.__tensor_flatten__()
            parts = {name: getattr(value, name) for name in names} | {"_local_tensor": local}
            staged_copy: Tensor = type(value).__tensor_unflatten__(parts, context, value.shape, value.stride())
            return staged_copy
        if not simple or value.is_conj() or value.is_neg() or vars(value):
            return value.detach().to("cpu", copy=True)
        storage = value.untyped_storage()
        key = (str(storage.device), storage.data_ptr(), storage.nbytes())
        if key[1]:
            self._storages.setdefault(key, storage)
        staged_copy = torch.empty(0, dtype=value.dtype)
        if type(value) is Parameter:
            staged_copy = Parameter(staged_copy, value.requires_grad)
        self._waiting.append((staged_copy, value, key))
        return staged_copy

    def fill(self, buffers: Buffers) -> None:
        """Copy the values of the tensors."""
        sizes = [-(-storage.nbytes() // ALIGNMENT) * ALIGNMENT for storage in self._storages.values()]
        devices = {storage.device.type: storage.device for storage in self._storages.values()}
        pinning = (accelerator for accelerator in map(of, devices.values()) if accelerator.pins_memory)
        buffers.reserve(sum(sizes), by=next(pinning, None))
        offset, parts = 0, dict[tuple[str, int, int], torch.UntypedStorage]()
        for (key, storage), size in zip(self._storages.items(), sizes, strict=True):
            parts[key] = buffers.part(offset, storage.nbytes())
            parts[key].copy_(storage, non_blocking=True)
            offset += size
        with torch.no_grad():
            for staged_copy, value, key in self._waiting:
                source = value if key[1] else torch.empty(value.shape, dtype=value.dtype)
                storage = parts[key] if key[1] else source.untyped_storage()
                staged_copy.set_(storage, source.storage_offset(), source.shape, source.stride())
        if devices.keys() - {"cpu"}:
            torch.accelerator.synchronize()
