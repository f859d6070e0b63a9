"""Log-probabilities of tokens and sequences, in at least float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lightlib.errors import MisconfigurationException, wrong_type


def token_log_probs(logits: Tensor, labels: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Return the log-probability of each label: ``log_softmax(logits)`` at `labels`, computed in at least float32.

    Labels are not shifted: pass ``logits[:, :-1]`` and ``tokens[:, 1:]``. Without all scores at once, it is
    ``-linear_cross_entropy(hidden, head.weight, labels, reduction="none")``.

    Args:
        logits: Scores: ``(…, classes)``.
        labels: The class of each token: ``(…)``.
        ignore_index: Tokens with this label have the log-probability 0. Default -100.

    Raises:
        ArgumentTypeError: An argument is no tensor, or labels are no whole numbers of 64 bits.
        MisconfigurationException: Shapes do not fit together.

    Example:
        >>> token_log_probs(torch.zeros(1, 3, 4), torch.tensor([[0, 3, -100]])).exp()
        tensor([[0.2500, 0.2500, 1.0000]])
    """
    owner = "token_log_probs"
    _check_tensors(owner, logits=logits, labels=labels)
    if labels.dtype != torch.int64:
        fix = f"{owner}(logits, labels.long())"
        raise wrong_type(owner, "labels", labels.dtype, "classes of dtype torch.int64", fix=fix)
    if labels.shape != logits.shape[:-1]:
        raise MisconfigurationException(
            f"{owner}: labels have the shape {tuple(labels.shape)}, with logits of {tuple(logits.shape)}.",
            expected=f"labels of {tuple(logits.shape[:-1])}, one for each row of scores.",
            fix=f"{owner}(logits[:, :-1], tokens[:, 1:]): the scores at a token are those of the next one.",
        )
    scores = in_float32(logits).flatten(0, -2) if logits.dim() > 1 else in_float32(logits)[None]
    losses = functional.cross_entropy(scores, labels.flatten(), ignore_index=ignore_index, reduction="none")
    return -losses.view(labels.shape)


def sequence_log_probs(
    logits: Tensor, labels: Tensor, mask: Tensor | None = None, *, average: bool = False, ignore_index: int = -100
) -> Tensor:
    """Return the log-probability of each sequence: the sum over its tokens, or with ``average=True`` their mean.

    A sequence without tokens has 0.

    Args:
        logits: Scores: ``(…, length, classes)``.
        labels: The class of each token, not shifted: ``(…, length)``.
        mask: Nonzero for tokens that count, such as those of the answer: ``(…, length)``. Default: all.
        average: Whether to return the mean. Default: the sum.
        ignore_index: Tokens with this label do not count. Default -100.

    Raises:
        ArgumentTypeError: An argument is no tensor, or labels are no whole numbers of 64 bits.
        MisconfigurationException: Shapes do not fit together.

    Example:
        >>> logits, labels = torch.zeros(2, 3, 4), torch.tensor([[1, 2, 3], [1, -100, -100]])
        >>> sequence_log_probs(logits, labels, labels != 3).exp()
        tensor([0.0625, 0.2500])
    """
    log_probs, counted = token_log_probs(logits, labels, ignore_index=ignore_index), labels != ignore_index
    if mask is not None:
        check_shapes("sequence_log_probs", labels=labels, mask=mask)
        counted = counted & (mask != 0)
    sums = log_probs.masked_fill(~counted, 0).sum(-1)
    return sums / counted.sum(-1).clamp(min=1) if average else sums


def in_float32(values: Tensor) -> Tensor:
    """Return values in float32, or as they are if they have more bits."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def check_shapes(owner: str, **tensors: Tensor | None) -> None:
    """Refuse tensors that do not have the shape of the first one; None is left out.

    Raises:
        ArgumentTypeError: One is no tensor.
        MisconfigurationException: One has another shape.
    """
    present = {name: value for name, value in tensors.items() if value is not None}
    _check_tensors(owner, **present)
    (first, expected), *rest = ((name, tuple(value.shape)) for name, value in present.items())
    for name, shape in rest:
        if shape != expected:
            raise MisconfigurationException(
                f"{owner}: {name} has the shape {shape}, and {first} has {expected}.",
                expected=f"{name} of the shape {expected}.",
                fix="pass tensors of the same sequences, in the same order and shape.",
            )


def _check_tensors(owner: str, **tensors: object) -> None:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise wrong_type(owner, name, value, "a tensor", f"torch.tensor({name})")
