"""The accumulation window: how the losses of several batches become one gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightlib.core.optim import gradients
from lightlib.errors import MisconfigurationException

__all__ = ["Window"]


class Window:
    """The batches between two optimizer steps.

    A plain loss is divided by the window's true size, which is known when it opens. A loss that comes with a weight is
    divided by the first weight at once and, before the step, the gradients by what the weights add up to in the end.

    Attributes:
        planned: How many batches the window is going to have.
        taken: How many losses it has had; a step that returned None is none.
        stepped: Whether an optimizer stepped during the last batch.
        loss: The last loss as the user returned it, detached.
    """

    __slots__ = ("loss", "planned", "stepped", "taken", "unit", "weight")

    def __init__(self) -> None:
        self.stepped = False
        self.loss: Tensor | None = None
        self.open(1)

    def open(self, planned: int) -> None:
        self.planned = planned
        self.taken = 0
        self.weight: Any = None
        self.unit: Any = None

    def loss_of(self, output: Any) -> Tensor | None:
        """Return the loss to be differentiated, or None when the step asks to be skipped."""
        if type(output) is Tensor:
            loss = output
        elif output is None:
            return None
        elif isinstance(output, Mapping):
            if "weight" in output:
                return self._weighted(output)
            loss = _loss_in(output)
        elif isinstance(output, Tensor):
            loss = output
        else:
            raise _no_loss(output)
        if not loss.requires_grad or loss.numel() != 1:
            raise _unusable(loss)
        self.taken += 1
        self.loss = loss.detach()
        return loss if self.planned == 1 else loss / self.planned

    def _weighted(self, output: Mapping[str, Any]) -> Tensor | None:
        loss, weight = _loss_in(output), output["weight"]
        if not loss.requires_grad or loss.numel() != 1:
            raise _unusable(loss)
        if self.taken and self.unit is None:
            raise MisconfigurationException(
                "training_step returned a weighted loss after a plain one within one accumulation window.",
                expected="every batch of a window with a weight, or none.",
                fix="return {'loss': sum, 'weight': n} from every step.",
            )
        if isinstance(weight, Tensor):
            weight = weight.detach().clamp(min=torch.finfo(torch.float32).tiny)
        elif weight == 0:
            return None
        if self.unit is None:
            self.unit, self.weight = weight, weight
        else:
            self.weight = self.weight + weight
        self.taken += 1
        self.loss = loss.detach() / weight
        scaled: Tensor = loss / self.unit
        return scaled

    def close(self, optimizers: Sequence[Optimizer]) -> bool:
        """Correct the gradients for what was not known when the window opened. Return whether there are any."""
        if self.taken == 0:
            return False
        factor: Any = None
        if self.unit is not None:
            factor = None if self.taken == 1 else self.unit / self.weight
        elif self.taken != self.planned:
            factor = self.planned / self.taken
        if factor is not None:
            for gradient in gradients(optimizers):
                gradient.mul_(factor)
        return True


def _loss_in(output: Mapping[str, Any]) -> Tensor:
    loss = output.get("loss")
    if not isinstance(loss, Tensor):
        raise _no_loss(output)
    return loss


def _no_loss(output: Any) -> MisconfigurationException:
    if isinstance(output, Mapping):
        found = f"a dict with the keys {sorted(map(str, output))}" + (
            f" whose 'loss' is {output['loss']!r:.60}" if "loss" in output else ""
        )
    else:
        found = f"{output!r:.80} ({type(output).__name__})"
    return MisconfigurationException(
        f"training_step returned {found}.",
        expected="the loss (a tensor with one element and a gradient), a dict with 'loss', or None to skip the batch.",
        fix="return loss, or return {'loss': loss, …}.",
    )


def _unusable(loss: Tensor) -> MisconfigurationException:
    if loss.numel() != 1:
        return MisconfigurationException(
            f"training_step returned a loss of shape {tuple(loss.shape)}.",
            expected="a tensor with exactly one element.",
            fix="return loss.mean()",
        )
    return MisconfigurationException(
        "training_step returned a loss without a gradient.",
        expected="a loss that depends on parameters with requires_grad=True.",
        fix="look for .detach(), .item(), torch.no_grad() or only frozen parameters on the way to the loss.",
    )
