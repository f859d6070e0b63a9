"""Losses that train a policy by preferences (DPO) and by rewards (GRPO)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from lightlib.errors import MisconfigurationException, check_flag, check_int, check_number, check_word
from lightlib.losses.log_probs import check_shapes, in_float32


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """Return the loss of direct preference optimization: ``-logsigmoid(beta · margin)`` of pairs of answers.

    The margin of a pair is ``(policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)``. Rafailov et
    al. 2023, "Direct Preference Optimization" (arXiv 2305.18290), equation 7.

    Args:
        policy_chosen: Log-probability of each preferred answer, by `sequence_log_probs`: ``(pairs,)``.
        policy_rejected: That of each other answer.
        reference_chosen: The same of the reference model, without gradients.
        reference_rejected: The same of the reference model, without gradients.
        beta: How strongly a policy is kept at its reference. Default 0.1.
        label_smoothing: The share of pairs whose preference is taken to be the opposite. Default 0.
        reduction: ``"mean"`` over pairs (default), ``"sum"``, or ``"none"``.

    Raises:
        ArgumentTypeError: An argument has another type.
        MisconfigurationException: Shapes differ, there is not one number for each answer, or a value is out of range.
        UnknownNameError: There is no such reduction.

    Example:
        >>> chosen, rejected = torch.tensor([-4.0, -5.0]), torch.tensor([-4.0, -9.0])
        >>> dpo_loss(chosen, rejected, torch.full((2,), -4.0), torch.full((2,), -4.0), reduction="none")
        tensor([0.6931, 0.5130])
    """
    owner = "dpo_loss"
    check_number(owner, "beta", beta, above=0, example=0.1)
    check_number(owner, "label_smoothing", label_smoothing, least=0, below=0.5, example=0.1)
    check_word(owner, "reduction", reduction, ("mean", "sum", "none"))
    check_shapes(
        owner, policy_chosen=policy_chosen, policy_rejected=policy_rejected, reference_chosen=reference_chosen,
        reference_rejected=reference_rejected,
    )  # fmt: skip
    if policy_chosen.dim() != 1:
        raise MisconfigurationException(
            f"{owner}: policy_chosen has the shape {tuple(policy_chosen.shape)}.",
            expected="one log-probability for each answer: (pairs,).",
            fix="sequence_log_probs(logits, labels, mask), which sums over the tokens of each answer.",
        )
    scaled = beta * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected))
    losses = -functional.logsigmoid(scaled)
    if label_smoothing:
        losses = (1 - label_smoothing) * losses - label_smoothing * functional.logsigmoid(-scaled)
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def group_advantages(rewards: Tensor, group_size: int, *, scale: bool = True, epsilon: float = 1e-4) -> Tensor:
    """Return how much better each answer is than the mean of its prompt: ``(reward - mean) / (std + epsilon)``.

    A group of equal rewards has advantages of 0. Shao et al. 2024, "DeepSeekMath" (arXiv 2402.03300), section 4.1.

    Args:
        rewards: Of all answers, those to one prompt next to each other: ``(prompts · group_size,)``.
        group_size: Answers to each prompt: 2 or more.
        scale: Whether to divide by the standard deviation of the group. Default: True.
        epsilon: Added to the standard deviation. Default 1e-4.

    Raises:
        ArgumentTypeError: An argument has another type.
        MisconfigurationException: Rewards have another shape, or groups do not divide them.

    Example:
        >>> group_advantages(torch.tensor([1.0, 0.0, 5.0, 5.0]), 2, scale=False)
        tensor([ 0.5000, -0.5000,  0.0000,  0.0000])
    """
    owner = "group_advantages"
    check_int(owner, "group_size", group_size, 2, example=8)
    check_flag(owner, "scale", scale)
    check_number(owner, "epsilon", epsilon, least=0, example=1e-4)
    check_shapes(owner, rewards=rewards)
    if rewards.dim() != 1 or len(rewards) % group_size:
        raise MisconfigurationException(
            f"{owner}: rewards have the shape {tuple(rewards.shape)}, with group_size={group_size}.",
            expected=f"one reward for each answer, and {group_size} answers to each prompt.",
            fix=f"rewards of (prompts · {group_size},), in the order of prompts.repeat_interleave({group_size}, 0).",
        )
    groups = in_float32(rewards).view(-1, group_size)
    advantages = groups - groups.mean(1, keepdim=True)
    if scale:
        advantages = advantages / (groups.std(1, keepdim=True) + epsilon)
    are_equal = groups.amax(1, keepdim=True) == groups.amin(1, keepdim=True)  # a mean of equal numbers is rounded
    return advantages.masked_fill(are_equal, 0).flatten()


def token_kl(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """Return an estimate of the KL divergence from the reference at each sampled token, which is never negative.

    It is ``exp(d) - d - 1`` with ``d = reference_log_probs - log_probs``: without bias for tokens that the policy has
    sampled. Shao et al. 2024 (arXiv 2402.03300), equation 4.

    Args:
        log_probs: Log-probability of each token by the policy.
        reference_log_probs: The same by the reference model.

    Raises:
        ArgumentTypeError: An argument is no tensor.
        MisconfigurationException: Shapes differ.

    Example:
        >>> token_kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0]))
        tensor([0.0000, 0.7183])
    """
    check_shapes("token_kl", log_probs=log_probs, reference_log_probs=reference_log_probs)
    difference = reference_log_probs - log_probs
    return difference.exp() - difference - 1


def grpo_loss(
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    old_log_probs: Tensor | None = None,
    reference_log_probs: Tensor | None = None,
    beta: float = 0.04,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    reduction: Literal["sequence", "token", "none"] = "sequence",
) -> Tensor:
    """Return the loss of group relative policy optimization: the clipped loss of PPO with advantages of groups.

    Shao et al. 2024, "DeepSeekMath" (arXiv 2402.03300), equation 3. Tokens outside of the mask do not count, even if
    their log-probabilities are infinite; an answer without tokens has a loss of 0.

    Args:
        log_probs: Log-probability of each token of the answers: ``(answers, length)``.
        advantages: Of each answer, by `group_advantages`: ``(answers,)``.
        mask: Nonzero for tokens up to the end of each answer: ``(answers, length)``. Default: all.
        old_log_probs: `log_probs` of the weights that sampled the answers. Default: those are the current weights.
        reference_log_probs: `log_probs` of the reference model. Default: the policy may leave it at no cost.
        beta: Factor of `token_kl`, if there is a reference. Default 0.04.
        epsilon: The ratio to the old probability has no gradient below ``1 - epsilon`` for a negative advantage, and
            above ``1 + epsilon`` for a positive one. Default 0.2.
        epsilon_high: In place of `epsilon` for the upper bound. Default: the same.
        reduction: ``"sequence"``: the mean over the tokens of each answer, then over answers (default); ``"token"``:
            the mean over all tokens; or ``"none"``: the loss of each token.

    Raises:
        ArgumentTypeError: An argument has another type.
        MisconfigurationException: Shapes do not fit together, or a value is out of range.
        UnknownNameError: There is no such reduction.

    Example:
        >>> log_probs = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]], requires_grad=True)
        >>> grpo_loss(log_probs, torch.tensor([1.0, -1.0]), torch.tensor([[1, 1], [1, 0]])).backward()
        >>> log_probs.grad
        tensor([[-0.2500, -0.2500],
                [ 0.5000,  0.0000]])
    """
    owner = "grpo_loss"
    check_word(owner, "reduction", reduction, ("sequence", "token", "none"))
    check_number(owner, "beta", beta, least=0, example=0.04)
    check_number(owner, "epsilon", epsilon, above=0, below=1, example=0.2)
    high = epsilon if epsilon_high is None else check_number(owner, "epsilon_high", epsilon_high, above=0, example=0.28)
    _check_answers(owner, log_probs, advantages)
    check_shapes(
        owner, log_probs=log_probs, mask=mask, old_log_probs=old_log_probs, reference_log_probs=reference_log_probs
    )
    counted = torch.ones_like(log_probs, dtype=torch.bool) if mask is None else mask != 0

    def zero_uncounted(values: Tensor) -> Tensor:
        return values.masked_fill(~counted, 0)

    policy = zero_uncounted(log_probs)
    ratio = (policy - (policy.detach() if old_log_probs is None else zero_uncounted(old_log_probs))).exp()
    gain = advantages[:, None]
    losses = -torch.minimum(ratio * gain, ratio.clamp(1 - epsilon, 1 + high) * gain)
    if reference_log_probs is not None and beta:
        losses = losses + beta * token_kl(policy, zero_uncounted(reference_log_probs))
    losses = zero_uncounted(losses)
    if reduction == "none":
        return losses
    if reduction == "token":
        return losses.sum() / counted.sum().clamp(min=1)
    return (losses.sum(1) / counted.sum(1).clamp(min=1)).mean()


def _check_answers(owner: str, log_probs: Tensor, advantages: Tensor) -> None:
    check_shapes(owner, log_probs=log_probs)
    check_shapes(owner, advantages=advantages)
    if log_probs.dim() != 2 or advantages.shape != log_probs.shape[:1]:
        raise MisconfigurationException(
            f"{owner}: log_probs have the shape {tuple(log_probs.shape)}, advantages have {tuple(advantages.shape)}.",
            expected="log_probs of (answers, length), and advantages of (answers,).",
            fix=f"{owner}(token_log_probs(logits, labels), group_advantages(rewards, group_size), mask)",
        )
