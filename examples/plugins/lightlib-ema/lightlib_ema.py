"""EMA: an exponential moving average of the parameters, used in their place in validations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import lightlib as L
from lightlib.errors import MisconfigurationException

__all__ = ["EMA"]


class EMA(L.Callback):
    """Averages the parameters after each optimizer step, and validates within `fit` with the average.

    Checkpoints hold the trained weights and, next to them, the average. It is kept in float32 if the parameters have
    fewer bits.

    Args:
        decay: The weight of the average so far; the current parameters have the rest.

    Attributes:
        average: The average by parameter name, placed as the parameters of this process are.

    Raises:
        MisconfigurationException: The decay is not between 0 and 1.
    """

    priority = "high"  # after an exception the trained weights are back before another callback saves

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise MisconfigurationException(
                f"EMA(decay={decay!r}).", expected="0 <= decay < 1.", fix="EMA(decay=0.999)"
            )
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        self._trained: dict[str, Tensor] = {}

    @contextmanager
    def averaged(self, pl_module: nn.Module) -> Iterator[None]:
        """Give the module the averaged parameters within the context, and the trained ones after it."""
        self._swap_in(pl_module)
        try:
            yield
        finally:
            self._swap_back(pl_module)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        parameters = {name: p for name, p in pl_module.named_parameters() if p.is_floating_point()}
        if {name: p.shape for name, p in parameters.items()} != {n: value.shape for n, value in self.average.items()}:
            self.average = {name: _precise(p.detach()).clone() for name, p in parameters.items()}

    @torch.no_grad()
    def on_accumulation_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        for name, parameter in pl_module.named_parameters():
            if name in self.average:
                self.average[name].lerp_(_precise(parameter.detach()), 1 - self.decay)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        if trainer.state.fn == "fit":
            self._swap_in(pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        if trainer.state.fn == "fit":
            self._swap_back(pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: L.Module, exception: BaseException) -> None:
        self._swap_back(pl_module)

    def sharded_state(self, trainer: L.Trainer, pl_module: L.Module) -> dict[str, dict[str, Tensor]]:
        return {"average": self.average}

    def load_sharded_state(self, trainer: L.Trainer, pl_module: L.Module, state: dict[str, Any]) -> None:
        self.average = state["average"]

    @torch.no_grad()
    def _swap_in(self, pl_module: nn.Module) -> None:
        for name, parameter in pl_module.named_parameters():
            if name in self.average:
                self._trained[name] = parameter.detach().clone()
                parameter.copy_(self.average[name])

    @torch.no_grad()
    def _swap_back(self, pl_module: nn.Module) -> None:
        for name, parameter in pl_module.named_parameters():
            if name in self._trained:
                parameter.copy_(self._trained[name])
        self._trained = {}


def _precise(tensor: Tensor) -> Tensor:
    """Return a tensor in at least float32: small changes are lost in fewer bits."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
