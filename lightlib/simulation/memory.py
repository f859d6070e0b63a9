"""MemoryCounter: counts the bytes of all tensors that live, in a real or in a simulated run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from typing_extensions import Self

from lightlib.torch_private import TorchDispatchMode, flattened, identity, is_of_dtensors, local_shard
from lightlib.tree import tensors_in


class MemoryCounter(TorchDispatchMode):
    """Counts the storages that operations return until they are freed; `add` counts older ones.

    Kernels allocate more for themselves, and an allocator rounds up: neither is counted. Tensors on the meta device
    have no memory.

    Attributes:
        current: The bytes of all storages that live now.
        peak: The largest value of `current`.
        highest: The largest one since `restart`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = self.highest = 0
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._on_peak: Callable[[], None] | None = None
        self._threshold, self._slack = 0, 1.0
        self._resizing: Any = None

    def __enter__(self) -> Self:
        resize, counter = torch.UntypedStorage.resize_, self

        def counted(storage: Any, size: int) -> Any:  # FSDP2 frees and allocates storages without an operation
            result = resize(storage, size)
            if identity(storage) in counter._live:
                counter._see(storage)
            return result

        self._resizing = mock.patch.object(torch.UntypedStorage, "resize_", counted)
        self._resizing.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._resizing.__exit__(*error)
        self._live.clear()  # and with the references their callbacks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_of_dtensors(types):
            return NotImplemented  # their operations on local shards come here
        output = func(*args, **(kwargs or {}))
        if func.namespace == "_c10d_functional" and func.__name__.startswith("wait_tensor"):
            return args[0]  # the same tensor; of one without values torch makes another
        leaves = [output] if isinstance(output, Tensor) else flattened(output)[0]
        outputs = [local_shard(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        counted = [tensor for tensor in outputs if self._is_counted(tensor)]
        new = [tensor for tensor in counted if self._key(tensor) not in self._live]
        if new and func is not torch.ops.aten.lift_fresh.default:  # of a tensor that was made unseen
            keys_of_inputs = {self._key(tensor) for tensor in tensors_in(list(args)) if self._is_counted(tensor)}
            # views of tensors that were never counted: backends have such
            counted = [
                tensor
                for tensor in counted
                if self._key(tensor) in self._live or self._key(tensor) not in keys_of_inputs
            ]
        for tensor in counted:  # also known ones, which the operation may have resized
            self._see(tensor.untyped_storage())
        return output

    @staticmethod
    def _is_counted(tensor: Tensor) -> bool:
        return not tensor.is_meta and tensor.layout is torch.strided

    @staticmethod
    def _key(tensor: Tensor) -> int:
        return identity(tensor.untyped_storage())

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that existed before; of a DTensor, its local shard."""
        for tensor in map(local_shard, tensors):
            if self._is_counted(tensor):
                self._see(tensor.untyped_storage())

    def restart(self, threshold: int, on_peak: Callable[[], None], slack: float = 1.0) -> None:
        """Begin to look for a peak: `on_peak` is called whenever `current` exceeds this and all values since.

        Args:
            threshold: The bytes to exceed first.
            on_peak: Looks at the present moment.
            slack: By which factor a value must exceed the last one.
        """
        self._threshold, self._on_peak, self._slack, self.highest = threshold, on_peak, slack, self.current

    def bytes_of(self, tensors: Iterable[Any], without: set[int] | None = None) -> int:
        """Return the counted bytes of the storages of `tensors`, each storage once.

        Args:
            tensors: Also in lists and dicts.
            without: Storages that do not count; those that were counted are added to it.
        """
        keys = set() if without is None else without
        total = 0
        for tensor in tensors_in(list(tensors)):
            key = self._key(local_shard(tensor))
            if key not in keys and key in self._live:
                keys.add(key)
                total += self._live[key][1]
        return total

    def _see(self, storage: Any) -> None:
        key, size = identity(storage), storage.nbytes()
        live = self._live.get(key)
        if live is None:
            self._live[key] = weakref.ref(storage, lambda _: self._forget(key)), size
            self.current += size
        elif live[1] != size:
            self._live[key] = live[0], size
            self.current += size - live[1]
        else:
            return
        self.highest = max(self.highest, self.current)
        self.peak = max(self.peak, self.current)
        if self._on_peak is not None and self.current > self._threshold:
            self._threshold = int(self.current * self._slack)
            self._on_peak()

    def _forget(self, key: int) -> None:
        self.current -= self._live.pop(key)[1]
