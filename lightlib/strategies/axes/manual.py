"""ByHand: a module that its own `configure_model` has sharded with torch's functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.axis import Axis, AxisContext, Step
from lightlib.strategies.axes.materialize import Construction, fill
from lightlib.strategies.axes.shard import Gathered, entered, synced_at_the_end

__all__ = ["ByHand"]


class ByHand(Axis):
    """Replaces the axes that shard parameters, where `configure_model` did it: it changes no layer.

    What was built on the meta device gets its memory and first values, and gradients are reduced at the end of an
    accumulation window. The precision is applied by autocast, as on one device.
    """

    lockstep = True

    def __init__(self, beside: Sequence[str] = ()) -> None:
        self._beside = beside
        self._roots: list[Any] = []
        self._module: nn.Module | None = None
        self._gathered = Gathered()

    def check(self, module: nn.Module, site: AxisContext) -> None:
        other = next(iter(self._beside), None)
        if other is not None:
            raise MisconfigurationException(
                f"{type(module).__name__}.configure_model has sharded parameters, and {other}={site.sizes[other]}.",
                expected="shard, replicate and tensor alone, when configure_model shards parameters itself.",
                fix=f"{other}=1, or parallel_plan() instead of configure_model.",
            )
        processes = math.prod(site.sizes[name] for name in site.splits_batch)
        left = [name for name, p in module.named_parameters() if p.requires_grad and not _averaged(p)]
        if processes > 1 and left:
            raise MisconfigurationException(
                f"configure_model of {type(module).__name__} left the parameter {left[0]!r} out when it sharded "
                f"the rest, and {processes} processes read different data: its gradients would not be averaged.",
                expected="every parameter that is trained in a module to which fully_shard was applied.",
                fix='fully_shard(self, mesh=self.device_mesh["data_parallel"]) as the last line of configure_model.',
            )

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
            construction = Construction()
            construction.begin()
            construction.share(site.collectives)
            fill(module, site.device, construction)
        self._module = module
        sharded: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
        inner = {id(part) for root in sharded for part in root.modules() if part is not root}
        self._roots = [root for root in sharded if id(root) not in inner]
        self._gathered = Gathered(self._roots)

    def enter(self, name: str, method: Step) -> Step:
        """Return the step with FSDP2's hooks around it, when `fully_shard` was applied to the module itself."""
        whole = next((root for root in self._roots if root is self._module), None)
        found = method if whole is None else entered(whole, name, method)
        return found if name == "training_step" else self._gathered.dropped_after(found)

    def around(self, step: Step) -> Step:
        return synced_at_the_end(self._roots, step)

    def teardown(self) -> None:
        self._gathered.drop()


def _averaged(parameter: nn.Parameter) -> bool:
    """Return whether `fully_shard` has taken care of a parameter: its mesh then has more than the tensor dimension."""
    if not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names
    return names is None or not set(names) <= {"tensor", "tensor_parallel"}
