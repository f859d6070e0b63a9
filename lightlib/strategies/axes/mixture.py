"""MixtureOfExperts: a layer that sends each token to a few of many networks, local or on other ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.autograd_collectives import all_to_all, scaled_gradient


class MixtureOfExperts(nn.Module):
    """Each token goes through the `top_k` experts that the router scores highest, and the results are added up.

    The same layer works on one device and, with ``MeshStrategy(expert=n)``, with the experts sharded over n processes.
    No token is dropped.

    Args:
        router: Returns a score per expert: (tokens, width) to (tokens, experts), such as a Linear layer.
        experts: Modules from (tokens, width) to (tokens, anything); or one module whose parameters are stacked along
            their first dimension, one entry per expert, and whose forward takes ``(tokens, counts)``: the tokens in the
            order of the experts, and how many each has, as a list. Under the expert axis it meets a part of the stack,
            so it goes by the sizes that it sees.
        top_k: Experts per token. Default 2.
        normalize: Whether the weights of a token's experts add up to 1. Default: True, unless `top_k` is 1, where the
            router would have no gradient.

    Attributes:
        balance: Of the last forward, with its gradient: 1 if all experts get as much, more if some get more, at most
            the number of experts (Fedus et al., 2021: arXiv 2101.03961, equation 4). Add a little of it to the loss.

        group: The processes that have a part of the experts each; None is one device. Set by the expert axis.

    Raises:
        MisconfigurationException: `top_k` is not between 1 and the number of experts, or there are none.

    Example:
        >>> layer = MixtureOfExperts(nn.Linear(4, 3), [nn.Linear(4, 4) for _ in range(3)], top_k=2)
        >>> layer(torch.ones(2, 5, 4)).shape
        torch.Size([2, 5, 4])
    """

    balance: Tensor | None = None

    def __init__(
        self, router: nn.Module, experts: nn.Module | Iterable[nn.Module], top_k: int = 2, normalize: bool | None = None
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = experts if isinstance(experts, nn.Module) else nn.ModuleList(experts)
        self.top_k = top_k
        self.normalize = top_k > 1 if normalize is None else normalize
        self.count = _count(self.experts)
        if not 1 <= top_k <= self.count:
            raise MisconfigurationException(
                f"MixtureOfExperts(top_k={top_k}) of {self.count} experts.",
                expected=f"between 1 and {self.count}.",
                fix="top_k=1",
            )
        self.group: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out tensors with a graph, which cannot be copied."""
        return {key: value for key, value in self.__dict__.items() if key != "balance"}

    def shard_over(self, group: Any) -> None:
        """Send tokens to the processes of `group`, each of which keeps some of the experts."""
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """Return for each token (last dimension: its features) the weighted sum of its experts' outputs."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self._routed(tokens)
        order = chosen.flatten().argsort(stable=True)  # the pairs of token and expert, expert by expert
        counts = chosen.flatten().bincount(minlength=self.count)
        routed = tokens[order // self.top_k]
        results = self._on_one(routed, counts) if self.group is None else self._on_several(routed, counts)
        weighted = results * weights.flatten()[order].unsqueeze(-1).to(results.dtype)
        total = weighted.new_zeros(len(tokens), weighted.shape[-1]).index_add(0, order // self.top_k, weighted)
        return total.view(*x.shape[:-1], total.shape[-1])

    def _routed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = self.router(tokens).softmax(-1, dtype=torch.float32)
        if probabilities.shape[-1] != self.count:
            raise MisconfigurationException(
                f"The router of a MixtureOfExperts returns {probabilities.shape[-1]} scores for {self.count} experts.",
                expected="one score per expert.",
                fix=f"nn.Linear(width, {self.count})",
            )
        weights, chosen = probabilities.topk(self.top_k, -1)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        share = chosen.flatten().bincount(minlength=self.count) / max(1, chosen.numel())
        self.balance = self.count * (share * probabilities.mean(0)).sum()
        return weights, chosen

    def _on_one(self, tokens: Tensor, counts: Tensor) -> Tensor:
        if not isinstance(self.experts, nn.ModuleList):
            result: Tensor = self.experts(tokens, counts.tolist())
            return result
        parts: Any = torch.split(tokens, counts.tolist())
        return torch.cat([expert(part) for expert, part in zip(self.experts.children(), parts, strict=True)])

    def _on_several(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Send each token to the process of its expert, compute there, and send the result back."""
        size = distributed.get_world_size(self.group)
        theirs = torch.empty_like(counts)
        distributed.all_to_all_single(theirs, counts, group=self.group)
        here = theirs.view(size, -1)  # by sending process and local expert
        sent, taken = counts.view(size, -1).sum(1).tolist(), here.sum(1).tolist()
        received = all_to_all(tokens, sent, taken, self.group)
        experts = torch.arange(here.shape[1], device=here.device).repeat(size).repeat_interleave(here.flatten())
        order = experts.argsort(stable=True)
        # Every process differentiates its own loss. An expert's gradient is the sum over all of them, and one device
        # would have the mean.
        inputs = scaled_gradient(received[order], size)
        results = scaled_gradient(self._on_one(inputs, here.sum(0)), 1 / size)
        return all_to_all(results[order.argsort()], taken, sent, self.group)


def _count(experts: nn.Module) -> int:
    if isinstance(experts, nn.ModuleList):
        if len(experts):
            return len(experts)
        raise MisconfigurationException("MixtureOfExperts has no experts.", expected="at least one.", fix="experts=[…]")
    counts = {name: len(p) if p.ndim else 0 for name, p in experts.named_parameters()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise MisconfigurationException(
            f"The experts of a MixtureOfExperts are one {type(experts).__name__}, whose parameters have different "
            f"first dimensions: {counts}.",
            expected="parameters of shape (experts, …), or a list of modules.",
            fix="nn.Parameter(torch.empty(experts, width, hidden))",
        )
    return next(iter(counts.values()))
