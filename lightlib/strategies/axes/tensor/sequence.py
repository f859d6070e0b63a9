"""Activations between blocks that are split along the sequence, next to split matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.autograd_collectives import gathered, shard_of
from lightlib.strategies.axes.axis import AxisContext
from lightlib.strategies.axes.parallel_plan import blocks_of

TOKENS = 1  # the sequence dimension of the activations between blocks


def with_norms(module: nn.Module, styles: dict[str, Any], site: AxisContext) -> dict[str, Any]:
    """Return the styles with the norms in the blocks added.

    Raises:
        MisconfigurationException: Something in a block would see only a part of the tokens.
    """
    if site.sizes["pipeline"] > 1:
        raise MisconfigurationException(
            "sequence_parallel=True within a pipeline is not tested.",
            expected="one of the two.",
            fix="TensorParallelStrategy(sequence_parallel=False)",
        )
    blocks = blocks_of(module, site.plan)
    if not blocks:
        raise MisconfigurationException(
            f"sequence_parallel=True, but {type(module).__name__} has no blocks, between which the sequence is split.",
            expected="an nn.ModuleList or nn.Sequential of blocks, or their names.",
            fix='ParallelPlan(blocks=["blocks.*"], tensor={…})',
        )
    extended = dict(styles)
    for block, part in blocks.items():
        for key, child in part.named_modules(prefix=block):
            parameters = list(child.named_parameters(recurse=False))
            if not parameters or key in styles:
                continue
            if any(True for _ in child.children()) or any(parameter.ndim > 1 for _, parameter in parameters):
                raise MisconfigurationException(
                    f"sequence_parallel=True, but {key} ({type(child).__name__}) is not in the tensor plan: it would "
                    "see a part of the tokens only.",
                    expected="every layer of the blocks in the plan, except norms.",
                    fix=f'{{"{key}": "colwise"}} or {{"{key}": "rowwise"}}, or sequence_parallel=False.',
                )
            extended[key] = "sequence"
    return extended


def split_tokens(mesh: DeviceMesh, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Split the first argument of the first block, in a hook.

    Raises:
        MisconfigurationException: It is no batch of sequences, or its tokens do not divide.
    """
    stream = args[0] if args else None
    if not isinstance(stream, torch.Tensor) or stream.ndim <= TOKENS or not stream.is_floating_point():
        raise MisconfigurationException(
            "sequence_parallel=True, but the first argument of the first block is no batch of sequences.",
            expected="block(x, …) with x of shape (batch, tokens, …).",
            fix="sequence_parallel=False",
        )
    others = [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, torch.Tensor)]
    if any(other.ndim == stream.ndim and other.is_floating_point() and len(other) == len(stream) for other in others):
        raise MisconfigurationException(
            "sequence_parallel=True, but the blocks take two sequences (cross-attention).",
            expected="one: only that is split.",
            fix="sequence_parallel=False",
        )
    tokens = stream.shape[TOKENS]
    if tokens % mesh.size():
        raise MisconfigurationException(
            f"sequence_parallel=True: {tokens} tokens cannot be split over tensor={mesh.size()}.",
            expected=f"a multiple of {mesh.size()}.",
            fix="pad the sequences, or sequence_parallel=False",
        )
    return (shard_of(stream, TOKENS, mesh.get_group()), *args[1:]), kwargs


def join_tokens(mesh: DeviceMesh, _: nn.Module, __: Any, output: Any) -> Any:
    """Join the outputs of the last block, in a hook."""
    if isinstance(output, tuple):
        return gathered(output[0], TOKENS, mesh.get_group()), *output[1:]
    return gathered(output, TOKENS, mesh.get_group())
