"""Average: running averages of the parameters and buffers of this process, by torch's AveragedModel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from lightlib.callbacks.summary.training_memory import local_part, reshard


class Average:
    """Averages of a module's tensors on this process: all of them, a pipeline stage's, or shards.

    An average is taken element by element, so that the shards of the average are the averages of the shards. Integer
    and boolean buffers, such as counters, are copied.

    Args:
        module: The module. Its present tensors are the first average, which counts as `count` of them.
        device: Where the averages are kept. Default: where the tensors are.
        use_buffers: Whether buffers of floating point are averaged; otherwise they are copied as well. None: the
            average has no buffers.
        options: `avg_fn` or `multi_avg_fn` of :class:`torch.optim.swa_utils.AveragedModel`.
        count: How many states of the module have been averaged.
    """

    def __init__(
        self, module: nn.Module, device: Any, use_buffers: bool | None, options: dict[str, Any], count: int = 1
    ) -> None:
        self._use_buffers = use_buffers
        averaged, copied = self._tensors(module)
        self._averaged = AveragedModel(_Tensors(averaged, device), device, use_buffers=True, **options)
        self._copied = [_clone(tensor, device) for tensor in copied]
        self._averaged.n_averaged.fill_(count)

    @property
    def count(self) -> int:
        """How many states of the module have been averaged."""
        return int(self._averaged.n_averaged)

    def update(self, module: nn.Module) -> None:
        """Take the present tensors of the module into the average."""
        averaged, copied = self._tensors(module)
        self._averaged.update_parameters(_Tensors(averaged))
        for kept, now in zip(self._copied, copied, strict=True):
            kept.copy_(now)

    @torch.no_grad()
    def swap(self, module: nn.Module) -> None:
        """Exchange the averages with the tensors of the module."""
        for kept, now in self._pairs(module):
            current = now.clone()
            now.copy_(kept)
            kept.copy_(current)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Give the module the averages."""
        for kept, now in self._pairs(module):
            now.copy_(kept)

    def _pairs(self, module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        averaged, copied = self._tensors(module)
        kept = cast("_Tensors", self._averaged.module)
        yield from zip(kept.tensors, averaged, strict=True)
        yield from zip(self._copied, copied, strict=True)

    def _tensors(self, module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors to average and those to copy; both share the memory of the module's."""
        reshard(module)
        parameters = [local_part(p.detach()) for p in module.parameters() if not p.is_meta]
        buffers = [local_part(b.detach()) for b in module.buffers() if not b.is_meta and self._use_buffers is not None]
        averaged = [b for b in buffers if self._use_buffers and (b.is_floating_point() or b.is_complex())]
        taken = {id(b) for b in averaged}
        return [*parameters, *averaged], [b for b in buffers if id(b) not in taken]


class _Tensors(nn.Module):
    """Tensors as the parameters of a module, for `AveragedModel`."""

    def __init__(self, tensors: list[Tensor], device: Any = None) -> None:
        super().__init__()
        self.tensors, self._device = tensors, device

    def __deepcopy__(self, memo: Any) -> _Tensors:  # torch's would copy all the storage of which a shard is a view
        return _Tensors([_clone(tensor, self._device) for tensor in self.tensors])

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        return iter(self.tensors)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Tensors:
        self.tensors = [fn(tensor) for tensor in self.tensors]
        return self


def _clone(tensor: Tensor, device: Any) -> Tensor:
    return tensor.to(device or tensor.device, copy=True)
