"""Trial of a split on one process, with random weights: do the shards give the same outputs?"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lightlib.strategies.axes.tensor.trace import Group, structure_of
from lightlib.tree import tensors_in

_TOLERANCE = 1e-4  # of the largest value, in float32
_TOKENS = 6
Heads = Sequence[tuple[str, str, int]]  # (name of a module, attribute, number of heads)


def objection(part: nn.Module, group: Group, heads: Heads, size: int) -> str:
    """Return why `group` cannot be split over `size` processes; empty if a trial shows that it can.

    `part` runs in evaluation mode with random weights, first in full, then with the shard of each process. Each layer
    of `group.second` must get its shard of the inputs, and with the sum as its output the rest of `part` must give
    the same results.
    """
    empty = inspect.Parameter.empty
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(part.forward).parameters.values()
    required = [parameter.name for parameter in parameters if parameter.default is empty and parameter.kind in kinds]
    if len(required) != 1:
        return f"{type(part).__name__}.forward takes {', '.join(required)}, for which a trial has no values"
    try:
        copied = structure_of(part).eval()  # dropout would draw numbers
        values = _random_values(part)
        width = int(getattr(part.get_submodule(group.first[0]), "in_features"))  # noqa: B009  an nn.Linear
    except Exception as error:  # noqa: BLE001  a module may be impossible to copy
        return f"a trial failed: {_short(error)}"
    failure = ""
    for shape in ((2, _TOKENS, width), (_TOKENS, width)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1), device="cpu")
        try:
            full = _Run(copied, group, values, x)
        except Exception as error:  # noqa: BLE001  its forward is any code; the next shape may suit it
            failure = failure or f"a trial failed: {_short(error)}"
            continue
        return _differs(copied, group, heads, size, values, x, full)
    return failure


def _differs(
    part: nn.Module, group: Group, heads: Heads, size: int, values: dict[str, Tensor], x: Tensor, full: _Run
) -> str:
    for name, key, count in heads:
        setattr(part.get_submodule(name), key, count // size)
    for rank in range(size):
        try:
            sharded = _Run(part, group, {**values, **_shards(group, values, rank, size)}, x, full.sums)
        except Exception as error:  # noqa: BLE001  likewise
            return f"a trial with the shard of one process failed: {_short(error)}"
        for name in group.second:
            expected = [tensor.chunk(size, -1)[rank] for tensor in full.inputs[name]]
            if not _same(expected, sharded.inputs[name]):
                return f"in a trial, the shards of the inputs of {name} were not those of the full layers"
        if not _same(full.outputs, sharded.outputs):
            return "in a trial, shards gave other results than the full layers"
    return ""


class _Run:
    """One forward of a part: the inputs of the second layers, and its outputs."""

    def __init__(
        self,
        part: nn.Module,
        group: Group,
        values: dict[str, Tensor],
        x: Tensor,
        sums: dict[str, list[Tensor]] | None = None,
    ) -> None:
        self.inputs: dict[str, list[Tensor]] = {name: [] for name in group.second}
        self.sums: dict[str, list[Tensor]] = {name: [] for name in group.second}
        self._given = sums
        handles = [part.get_submodule(name).register_forward_hook(partial(self._note, name)) for name in group.second]
        try:
            with torch.no_grad(), torch.device("cpu"):
                self.outputs = list(tensors_in(functional_call(part, values, (x,))))
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, name: str, _: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        call = len(self.inputs[name])
        self.inputs[name].append(args[0].clone())
        output = output if self._given is None else self._given[name][call].clone()  # the sum over processes
        self.sums[name].append(output.clone())
        return output


def _random_values(part: nn.Module) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    values: dict[str, Tensor] = {}
    for name, parameter in part.named_parameters():
        scale = 1 / math.sqrt(max(1, parameter[0].numel())) if parameter.ndim > 1 else 1.0
        values[name] = torch.randn(parameter.shape, generator=random, device="cpu") * scale
    for name, buffer in part.named_buffers():
        values[name] = torch.zeros_like(buffer, device="cpu") if buffer.is_meta else buffer.detach().cpu().clone()
    return values


def _shards(group: Group, values: dict[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    shards = {f"{name}.weight": values[f"{name}.weight"].chunk(size, 0)[rank] for name in group.first}
    shards |= {key: values[key].chunk(size, 0)[rank] for name in group.first if (key := f"{name}.bias") in values}
    return shards | {f"{name}.weight": values[f"{name}.weight"].chunk(size, 1)[rank] for name in group.second}


def _same(expected: Sequence[Tensor], received: Sequence[Tensor]) -> bool:
    if len(expected) != len(received):
        return False
    for tensor, other in zip(expected, received, strict=True):
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            return False
        scale = float(tensor.abs().max()) if tensor.numel() else 0.0
        if not torch.allclose(tensor, other, rtol=0.0, atol=_TOLERANCE * max(scale, 1e-3)):
            return False
    return True


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
