"""Micro-batches: how a batch is cut, and how the outputs of its parts are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightlib.errors import MisconfigurationException
from lightlib.torch_private import flattened
from lightlib.tree import children, split, tensors_in

_SPLIT_BATCH = "define split_batch(self, batch, n) in the module, which returns a list of n batches."


def parts_of(batch: Any, number: int, module: nn.Module) -> list[Any]:
    """Return a batch in micro-batches, by the module's `split_batch` if it has one.

    Raises:
        MisconfigurationException: The module returns another number of them.
    """
    split_batch = getattr(module, "split_batch", None)
    parts = list(split_batch(batch, number)) if split_batch is not None else _cut(batch, number)
    if len(parts) != number:
        raise MisconfigurationException(
            f"{type(module).__name__}.split_batch(batch, {number}) returned {len(parts)} micro-batches.",
            expected=f"{number} of equal shapes.",
            fix="return batch.chunk(n)",
        )
    return parts


def _cut(batch: Any, number: int) -> list[Any]:
    if not _is_list_of_samples(batch):
        return split(batch, number, size_of(batch))
    size = len(batch)
    return [batch[index * size // number : (index + 1) * size // number] for index in range(number)]


def size_of(batch: Any, required: bool = False) -> int | None:
    """Return the number of samples: the entries of a list of samples, or the first dimension that all tensors have."""
    sizes = [int(tensor.shape[0]) for tensor in tensors_in(batch) if tensor.ndim]
    if _is_list_of_samples(batch):
        if required and {*sizes, len(batch)} != {len(batch)} and _may_be_batches(batch, sizes):
            kind = type(batch[0]).__name__
            raise MisconfigurationException(
                f"The batch is a list of {len(batch)} objects ({kind}), and each tensor in them has {sizes[0]} rows.",
                expected=f"a batch that is clearly either {len(batch)} samples or {len(batch)} batches of {sizes[0]}.",
                fix=_SPLIT_BATCH,
            )
        return len(batch)
    if required and len(set(sizes)) != 1:
        content = f"tensors with {sorted(set(sizes))} as their first dimensions" if sizes else "no tensor to cut"
        raise MisconfigurationException(
            f"The batch ({type(batch).__name__}) has {content}.",
            expected="the same number of samples first in each tensor.",
            fix=_SPLIT_BATCH,
        )
    return sizes[0] if sizes else None


def _is_list_of_samples(batch: Any) -> bool:
    """Return whether a batch is a list with one mapping, tuple or dataclass for each sample."""
    if not isinstance(batch, list) or not batch or isinstance(batch[0], (list, Tensor)) or not children(batch[0]):
        return False
    return all(type(sample) is type(batch[0]) for sample in batch)


def _may_be_batches(batch: list[Any], sizes: Sequence[int]) -> bool:
    """Return whether the entries may as well be batches, of several loaders: all values are tensors of one length."""
    leaves, _ = flattened(batch)
    return len(set(sizes)) == 1 and all(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves)


def loss_and_weight(output: Any) -> tuple[Any, Any]:
    """Return the loss of a step's output, and its weight; None where there is none."""
    if isinstance(output, Mapping):
        return output.get("loss"), output.get("weight")
    return output, None


def merged(outputs: Sequence[Any], weighted: bool, shares: Sequence[float] = ()) -> Any:
    """Return the outputs of all micro-batches, joined as if they had been one batch.

    Args:
        outputs: Of the step, by micro-batch.
        weighted: Whether losses are sums with weights.
        shares: The part of the batch's samples that each micro-batch has. Default: all the same.
    """
    losses = torch.stack([loss_and_weight(output)[0].detach().reshape(()) for output in outputs])
    of_all = losses.sum() if weighted else losses.mean() if not shares else (losses * losses.new_tensor(shares)).sum()
    if not isinstance(outputs[0], Mapping):
        return {"loss": of_all}
    joined = {key: _joined([output.get(key) for output in outputs]) for key in outputs[0]}
    joined["loss"] = of_all
    if weighted:
        joined["weight"] = sum(output["weight"] for output in outputs)
    return joined


def _joined(values: list[Any]) -> Any:
    if all(isinstance(value, Tensor) for value in values):
        detached = [value.detach() for value in values]
        if all(value.ndim and value.shape[1:] == detached[0].shape[1:] for value in detached):
            return torch.cat(detached)
        return torch.stack(detached) if all(value.shape == detached[0].shape for value in detached) else detached
    return values
