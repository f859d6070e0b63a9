"""ByHand: a module that its own `configure_model` has sharded with torch's functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn
from torch.distributed.tensor import DTensor

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.axis import AxisContext
from lightlib.strategies.axes.materialize import Construction, fill
from lightlib.strategies.axes.shard import Sharded, sharded_roots


class ByHand(Sharded):
    """Replaces the axes that shard parameters, where `configure_model` did it: it changes no layer.

    What was built on the meta device gets its memory and first values, and gradients are reduced at the end of an
    accumulation window. The precision is applied by autocast, as on one device.
    """

    lockstep = True

    def __init__(self, beside: Sequence[str] = ()) -> None:
        super().__init__()
        self._beside = beside

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
        self.hold(module, sharded_roots(module))


def _averaged(parameter: nn.Parameter) -> bool:
    """Return whether `fully_shard` has taken care of a parameter: its mesh then has more than the tensor dimension."""
    if not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names
    return names is None or not set(names) <= {"tensor", "tensor_parallel"}
