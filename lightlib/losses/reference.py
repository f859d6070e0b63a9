"""ReferenceModel: a frozen copy of a model, which a policy is compared with."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from lightlib.errors import check_type


class ReferenceModel(nn.Module):
    """A frozen copy of a model: without gradients, and in eval mode whatever mode its module gets.

    Make it where the module is built, from weights that the program loads. ``ModelCheckpoint(save="trainable")`` then
    leaves it out of checkpoints.

    Args:
        model: The model to copy; it stays as it is.

    Raises:
        ArgumentTypeError: `model` is no `torch.nn.Module`.

    Example:
        >>> policy = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
        >>> reference = ReferenceModel(policy)
        >>> reference.train().training, reference(torch.ones(2)).requires_grad
        (False, False)
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        fix = "ReferenceModel(self.model)"
        self.model = copy.deepcopy(
            check_type("ReferenceModel", "model", model, nn.Module, "a torch.nn.Module", fix=fix)
        )
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> ReferenceModel:
        """Keep eval mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the copy, without gradients."""
        return self.model(*args, **kwargs)
