"""ByHand: a module that its own `configure_model` has spread over processes, with torch's functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axis import Axis, Site, Step
from lightlib.strategies.materialize import fill

__all__ = ["ByHand", "is_by_hand"]

_OTHERS = ("pipeline", "context")


def is_by_hand(module: nn.Module) -> bool:
    """Return whether `configure_model` has made DTensors of parameters already."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


class ByHand(Axis):
    """Stands for the axes that spread parameters, where `configure_model` did it: it changes no layer.

    What was built on the meta device gets its memory and first values, and gradients are reduced at the end of an
    accumulation window. The precision is applied by autocast, as on one device.
    """

    lockstep = True

    def __init__(self) -> None:
        self._roots: list[FSDPModule] = []

    def check(self, module: nn.Module, site: Site) -> None:
        other = next((name for name in _OTHERS if site.sizes[name] > 1), None)
        if other is not None:
            raise MisconfigurationException(
                f"{type(module).__name__}.configure_model has spread parameters, and {other}={site.sizes[other]}.",
                expected="shard, replicate and tensor alone, when configure_model spreads parameters itself.",
                fix=f"{other}=1, or say it in parallel_plan() in place of configure_model.",
            )
        processes = site.sizes["replicate"] * site.sizes["shard"]
        left = [name for name, p in module.named_parameters() if p.requires_grad and not _averaged(p, site)]
        if processes > 1 and left:
            raise MisconfigurationException(
                f"configure_model of {type(module).__name__} left the parameter {left[0]!r} out when it spread the "
                f"others, and {processes} processes read different data: nobody would average its gradients.",
                expected="every parameter that is trained in a module to which fully_shard was applied.",
                fix='fully_shard(self, mesh=self.device_mesh["data_parallel"]) as the last line of configure_model.',
            )

    def apply(self, module: nn.Module, site: Site) -> None:
        if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
            fill(module, site.device, site.collectives.broadcast(torch.get_rng_state()))
        for tensor in (*module.parameters(), *module.buffers()):
            if not isinstance(tensor, DTensor):
                distributed.broadcast(tensor.detach(), 0)
        sharded = [part for part in module.modules() if isinstance(part, FSDPModule)]
        inner = {id(part) for root in sharded for part in root.modules() if part is not root}  # type: ignore[attr-defined]
        self._roots = [root for root in sharded if id(root) not in inner]

    def enter(self, name: str, method: Step) -> Step:
        """Return the step with FSDP2's hooks around it, when `fully_shard` was applied to the whole module."""
        root = next((root for root in self._roots if hasattr(root, "training_step")), None)
        return method if root is None else entered(root, name, method)  # type: ignore[arg-type]

    def around(self, step: Step) -> Step:
        roots = self._roots

        def synced_at_the_end(batch: Any, batch_idx: int, backward: Any, sync: bool) -> Any:
            for root in roots:
                root.set_requires_gradient_sync(sync)
                root.set_is_last_backward(sync)
            return step(batch, batch_idx, backward, sync)

        return synced_at_the_end if roots else step
