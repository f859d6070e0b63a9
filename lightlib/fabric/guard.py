"""BypassGuard: warns when the original module is called in place of the one from Fabric.setup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightlib import report
from lightlib.strategies.state_by_name import has_dtensors
from lightlib.torch_private import is_in_backward

if TYPE_CHECKING:
    from torch import nn

    from lightlib.fabric.placement import Placement


class BypassGuard:
    """A forward pre-hook of the user's module. It warns once, when a call would not reduce gradients over ranks.

    Calls of a module that torch.compile has compiled are not seen.

    Args:
        placement: The module on its strategy.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement: Placement | None = placement  # None when the user has been warned

    @staticmethod
    def is_needed(placement: Placement) -> bool:
        """Whether only calls through the strategy reduce gradients.

        Sharded modules gather and reduce by hooks of their own; in manual optimization each step reduces.
        """
        module = placement.module
        automatic = getattr(module, "automatic_optimization", True)
        return placement.strategy.world_size > 1 and automatic and not has_dtensors(module)

    def __call__(self, module: nn.Module, args: Any) -> None:
        placement = self._placement
        if placement is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if placement.is_running or is_in_backward():
            return
        self._placement = None
        kind = type(module).__name__
        report.warn(
            f"The {kind} that was given to fabric.setup was called itself, with gradients: they are not reduced over "
            f"the {placement.strategy.world_size} processes, so the replicas of its weights become different.\n"
            "  Expected: calls of the module that fabric.setup returned.\n"
            "  Fix: model = fabric.setup(model), and call that; within torch.no_grad() the original may be called."
        )
