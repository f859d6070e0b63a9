"""linear_cross_entropy: the loss of a language model, a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lightlib import optional
from lightlib.errors import MisconfigurationException, check_int, check_number, check_word, wrong_type

_NAME = "linear_cross_entropy"
_FIX = f"{_NAME}(hidden, head.weight, following), with hidden (batch, length, width) and following (batch, length)"


def linear_cross_entropy(
    input: Tensor,  # noqa: A002  torch's name
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    label_smoothing: float = 0.0,
    token_weights: Tensor | None = None,
    chunk_size: int = 1024,
    implementation: Literal["chunks", "liger"] = "chunks",
) -> Tensor:
    """Return ``cross_entropy(linear(input, weight, bias), target)`` without the scores of all tokens at once.

    The scores of a chunk are computed, reduced to its losses, and dropped; backward computes them again. Value and
    gradients are those of the two functions. `weight` may be that of an embedding, or be split over its classes by the
    tensor axis (``"vocab"``): then each process has the scores of its classes.

    Args:
        input: What the output layer would get: ``(…, width)``.
        weight: Of the output layer: ``(classes, width)``.
        target: The class of each token: ``(…)``.
        bias: Of the output layer: ``(classes,)``. Default: none.
        ignore_index: Tokens with this target have a loss of 0 and do not count. Default -100.
        reduction: ``"mean"`` over tokens (default), ``"sum"``, or ``"none"``, which returns the loss of each token.
        label_smoothing: The share of the target that all classes have equally. Default 0.
        token_weights: A factor for each token's loss: ``(…)``; the mean is divided by their sum. Default: 1.
        chunk_size: Tokens at once. Default 1024.
        implementation: ``"chunks"`` (default), or ``"liger"``, the kernel of the package liger-kernel, for GPUs.

    Raises:
        ArgumentTypeError: An argument has another type or dtype.
        MisconfigurationException: Shapes or values do not fit together, or the weight is split in another way.
        UnknownNameError: There is no such reduction or implementation.

    Example:
        >>> hidden, head = torch.randn(2, 8, 4), torch.nn.Linear(4, 50)
        >>> following = torch.randint(50, (2, 8))
        >>> loss = linear_cross_entropy(hidden, head.weight, following, bias=head.bias, chunk_size=5)
        >>> loss.allclose(torch.nn.functional.cross_entropy(head(hidden).flatten(0, 1), following.flatten()))
        True
    """
    check_word(_NAME, "reduction", reduction, ("mean", "sum", "none"))
    check_word(_NAME, "implementation", implementation, ("chunks", "liger"))
    check_number(_NAME, "label_smoothing", label_smoothing, least=0, most=1, example=0.1)
    check_int(_NAME, "chunk_size", chunk_size, 1, example=1024)
    _check_tensors(input, weight, target, bias, token_weights)
    tokens, targets = input.reshape(-1, input.shape[-1]), target.flatten()
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if implementation == "liger":
        return _by_liger(tokens, weight, targets, bias, token_weights, options | {"reduction": reduction})
    losses_of: Callable[..., Tensor] = partial(_losses, **options)
    if isinstance(weight, DTensor):
        mesh, classes = _mesh_of(weight), weight.shape[0]
        losses_of = partial(_losses_of_shard, **options, mesh=mesh, classes=classes)
        tokens = _on_each(tokens, mesh)
        weight, bias = weight.to_local(), bias.to_local() if isinstance(bias, DTensor) else bias
    chunks = list(zip(torch.split(tokens, chunk_size), torch.split(targets, chunk_size), strict=True))
    if len(chunks) > 1:
        losses_of = partial(checkpoint, losses_of, use_reentrant=False, preserve_rng_state=False)
    try:
        losses = torch.cat([losses_of(some, weight, their, bias) for some, their in chunks])
    except IndexError as error:
        raise _unknown_class(error, weight.shape[0]) from error
    kept = (targets != ignore_index).to(losses.dtype)
    if token_weights is not None:
        kept = kept * token_weights.flatten()
    losses = losses * kept
    if reduction == "none":
        return losses.view_as(target)
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


def _losses(
    tokens: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *, ignore_index: int, label_smoothing: float
) -> Tensor:
    return functional.cross_entropy(
        _scores(tokens, weight, bias), target, ignore_index=ignore_index, label_smoothing=label_smoothing,
        reduction="none",
    )  # fmt: skip


def _losses_of_shard(
    tokens: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *, ignore_index: int, label_smoothing: float,
    mesh: DeviceMesh, classes: int,
) -> Tensor:  # fmt: skip
    """Return the losses by three numbers of each process for each token: of all its scores two, and the target's."""
    scores = _scores(tokens, weight, bias)
    here = target - mesh.get_local_rank() * -(-classes // mesh.size())
    absent = (here < 0) | (here >= len(weight))
    target_scores = scores.gather(1, here.masked_fill(absent, 0)[:, None])[:, 0].masked_fill(absent, -torch.inf)
    numbers = torch.stack([scores.logsumexp(1), target_scores, scores.sum(1)])[None]
    every = DTensor.from_local(numbers, mesh, [Shard(0)], run_check=False).full_tensor()
    chosen = (1 - label_smoothing) * every[:, 1].amax(0) + label_smoothing / classes * every[:, 2].sum(0)
    return (every[:, 0].logsumexp(0) - chosen).masked_fill(target == ignore_index, 0)


def _scores(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return scores in at least float32: a sum over classes in 16 bits would not be exact."""
    scores = functional.linear(tokens, weight, bias)
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _on_each(tokens: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the tokens on each process of the tensor axis; their gradient is the sum over the processes."""
    if not isinstance(tokens, DTensor):
        tokens = DTensor.from_local(tokens, mesh, [Replicate()], run_check=False)
    return tokens.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def _by_liger(
    tokens: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, token_weights: Tensor | None,
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    user, otherwise = f"{_NAME}(implementation='liger')", "implementation='chunks'"
    kernels = optional.load("liger_kernel.transformers.functional", user, otherwise=otherwise)
    lacks = {
        "weights of tokens": token_weights is not None,
        "reduction='none'": options["reduction"] == "none",
        "a weight that is split over processes": isinstance(weight, DTensor),
        "tensors on the CPU": tokens.device.type == "cpu",
    }
    for description in (description for description, is_given in lacks.items() if is_given):
        raise MisconfigurationException(
            f"{user} got {description}.",
            expected="what the kernel has: full tensors on a GPU, a mean or a sum over tokens that count the same.",
            fix=f"{_NAME}(…, {otherwise})",
        )
    loss: Tensor = kernels.liger_fused_linear_cross_entropy(tokens, weight, target, bias=bias, **options)
    return loss


# Refusals
def _check_tensors(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    token_weights: Tensor | None,
) -> None:
    tensors = {"input": input, "weight": weight, "target": target, "bias": bias, "token_weights": token_weights}
    for name, value in tensors.items():
        if isinstance(value, nn.Module):
            raise wrong_type(_NAME, name, type(value), "a tensor", fix=f"{_NAME}(hidden, head.weight, following)")
        if not isinstance(value, Tensor) and (name in ("input", "weight", "target") or value is not None):
            raise wrong_type(_NAME, name, value, "a tensor", fix=_FIX)
    if target.dtype != torch.int64:
        raise wrong_type(
            _NAME, "target", target.dtype, "classes of dtype torch.int64; probabilities have no form without scores",
            fix=f"{_NAME}(hidden, head.weight, following.long())",
        )  # fmt: skip
    shapes = {name: tuple(value.shape) for name, value in tensors.items() if value is not None}
    expected: dict[str, tuple[Any, ...]] = dict.fromkeys(("target", "token_weights"), shapes["input"][:-1])
    if len(shapes["weight"]) == 2:
        expected |= {"weight": (shapes["weight"][0], *shapes["input"][-1:]), "bias": shapes["weight"][:1]}
    else:
        expected["weight"] = ("classes", *shapes["input"][-1:])
    for name, shape in shapes.items():
        if shape != expected.get(name, shape):
            raise MisconfigurationException(
                f"{_NAME}: {name} has the shape {shape}, with an input of {shapes['input']}"
                f"{'' if name == 'weight' else ' and a weight of ' + str(shapes['weight'])}.",
                expected=f"{name} of {str(expected[name]).replace(chr(39), '')}.",
                fix=_FIX,
            )


def _mesh_of(weight: DTensor) -> DeviceMesh:
    mesh = weight.device_mesh
    if mesh.mesh_dim_names == ("tensor",) and weight.placements == (Shard(0),):
        return mesh
    raise MisconfigurationException(
        f"{_NAME}: the weight is a shard over {mesh.mesh_dim_names}, placed {tuple(weight.placements)}.",
        expected="the full weight, or one that the tensor axis splits over its classes.",
        fix="under FSDP, leave its layer out of the blocks (ParallelPlan(blocks=[…])), so that the step gathers it; "
        "under the tensor axis, ParallelPlan(tensor={'head': 'vocab'}) with mode='1d'.",
    )


def _unknown_class(error: IndexError, classes: int) -> MisconfigurationException:
    return MisconfigurationException(
        f"{_NAME}: {str(error).rstrip('.')}.",
        expected=f"targets from 0 to {classes - 1}, one for each row of the weight, or ignore_index.",
        fix="a weight with a row for each class (after a tokenizer has grown), or other targets.",
    )
