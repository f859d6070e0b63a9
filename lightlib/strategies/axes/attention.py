"""Attention over full sequences that are sharded over processes; it replaces torch's."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.autograd_collectives import gathered, to_heads, to_sequence
from lightlib.torch_private import ring_dispatch

_TORCHS = functional.scaled_dot_product_attention


class Attention(ABC):
    """Replacement of `F.scaled_dot_product_attention` on shards of sequences.

    Attributes:
        calls: How often it was called.
        lengths: The lengths of the local shards of the batch, to detect a step that has dropped a token.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.lengths: set[int] = set()

    def expect(self, lengths: Iterable[int]) -> None:
        """Set the lengths of the shards of the next batch."""
        self.lengths = set(lengths)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        self.calls += 1
        return self.attend([query, key, value], attn_mask, dropout_p, is_causal=is_causal, **options)

    @abstractmethod
    def attend(self, given: list[Tensor], mask: Tensor | None, dropout: float, **options: Any) -> Tensor:
        """Return the attention of a query, key and value."""


class Exchanged(Attention):
    """Exchanges heads for full sequences, and back, among the processes of `group`."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self._size, self._rank = distributed.get_world_size(group), distributed.get_rank(group)

    def attend(self, given: list[Tensor], mask: Tensor | None, dropout: float, **options: Any) -> Tensor:
        query, key, value = given
        self._check(query, key, value)
        mask = None if mask is None else self._full_mask(mask, query, key)
        if query.shape == key.shape == value.shape:  # one exchange for all three
            query, key, value = to_heads(torch.stack(given), self.group).unbind()
        else:
            query, key, value = (to_heads(x, self.group) for x in given)
        return to_sequence(_TORCHS(query, key, value, mask, dropout, **options), self.group)

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.ndim < 3 or x.shape[-3] % self._size:
                heads = f"{x.shape[-3]} heads" if x.ndim >= 3 else "no dimension of heads"
                raise MisconfigurationException(
                    f"The {name} of an attention has {heads} (shape {tuple(x.shape)}), which context={self._size} "
                    "cannot split.",
                    expected=f"shape (…, heads, length, width) with a multiple of {self._size} heads.",
                    fix=f"a number of heads that {self._size} divides, or a smaller context.",
                )
        length = query.shape[-2]
        near = next((candidate for candidate in self.lengths if abs(candidate - length) == 1), None)
        if near is not None and length not in self.lengths:
            raise MisconfigurationException(
                f"An attention sees {length} tokens, but this process's part of the batch has {near}: the step drops "
                "or adds one in each part, which is wrong at the borders of the parts.",
                expected="as many as the part has.",
                fix="Context(overlap=1), if the step shifts its targets itself (text[:, :-1] and text[:, 1:]); with "
                "overlap=1, that the step does so.",
            )

    def _full_mask(self, mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
        rows, columns, heads = query.shape[-2], key.shape[-2], query.shape[-3]
        split = [mask.shape[-2] == rows > 1, mask.shape[-1] == columns > 1]
        if all(split):
            raise MisconfigurationException(
                f"An attention mask has shape {tuple(mask.shape)}: that of this process's {rows} tokens alone.",
                expected=f"is_causal=True, a mask of the full sequence ({rows * self._size}, {columns * self._size}), "
                "or one of keys only (batch, 1, 1, length).",
                fix="is_causal=True in place of a causal mask.",
            )
        for dim, cut in zip((-2, -1), split, strict=True):
            if cut:
                numbers = mask.to(torch.uint8) if mask.dtype == torch.bool else mask
                mask = gathered(numbers, dim, self.group).to(mask.dtype)
        if mask.ndim >= 3 and mask.shape[-3] == heads > 1:
            mask = mask.chunk(self._size, -3)[self._rank]
        return mask


class Ring(Attention):
    """Torch's ring attention: keys and values go round the processes of `mesh`. On CUDA only."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh

    def attend(self, given: list[Tensor], mask: Tensor | None, dropout: float, **options: Any) -> Tensor:
        if mask is not None or dropout:
            option = "a mask" if mask is not None else f"dropout_p={dropout}"
            raise MisconfigurationException(
                f"An attention has {option}, which torch's ring attention cannot do.",
                expected="is_causal=True or no mask, and no dropout.",
                fix='Context(method="all_to_all")',
            )
        parts = [DTensor.from_local(x, self.mesh, [Shard(x.ndim - 2)], run_check=False) for x in given]
        with ring_dispatch():
            output: Any = _TORCHS(parts[0], parts[1], parts[2], **options)
        part: Tensor = output.to_local()
        return part


@contextmanager
def replaced(module: nn.Module, attention: Callable[..., Any]) -> Iterator[None]:
    """Let `attention` answer wherever torch and the files of `module` call `F.scaled_dot_product_attention`."""
    torch.overrides.get_overridable_functions()  # torch caches its own functions, so before one is replaced

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def scaled_dot_product_attention(*args: Any, **options: Any) -> Any:
        return attention(*args, **options)

    places = [vars(functional)] + [
        vars(sys.modules[name]) for name in {type(part).__module__ for part in module.modules()}
    ]
    occurrences = {id(place): (place, key) for place in places for key, value in place.items() if value is _TORCHS}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # a fused kernel for the full layer
    for place, key in occurrences.values():
        place[key] = scaled_dot_product_attention
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for place, key in occurrences.values():
            place[key] = _TORCHS


def require_fused(module: nn.Module) -> None:
    """Let `nn.MultiheadAttention` refuse to return its weights, for which it does not call the function."""
    for name, part in module.named_modules():
        if isinstance(part, nn.MultiheadAttention):
            part.register_forward_pre_hook(partial(_refuse_weights, name), with_kwargs=True)


def _refuse_weights(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args[4] if len(args) > 4 else kwargs.get("need_weights", True):
        raise MisconfigurationException(
            f"{name} (MultiheadAttention) is to return its weights, but each process has a part of the sequence.",
            expected="need_weights=False.",
            fix=f"self.{name}(query, key, value, need_weights=False)",
        )
