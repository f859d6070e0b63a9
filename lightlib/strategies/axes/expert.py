"""Expert: shards the experts of a mixture over processes, and sends the tokens to them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.axis import Axis, AxisContext, LocalParameters
from lightlib.strategies.axes.mixture import MixtureOfExperts
from lightlib.strategies.axes.parallel_plan import matching
from lightlib.torch_private import shadowed

__all__ = ["Expert", "MixtureOfExperts"]


class Expert(Axis):
    """Every process keeps some of the experts of each `MixtureOfExperts`; tokens travel to them and back.

    It has no processes of its own: those of ``shard`` (or, without it, of ``replicate``) read different data and share
    out the experts. Process r of n keeps the experts from r·E/n on; names in checkpoints are those of one device. What
    is no expert is sharded or copied as always; with both ``shard`` and ``replicate`` each copy has all experts.

    Args:
        size: How many processes shard the experts: all of ``shard``, or of ``replicate``; -1: just that many.

    Raises:
        MisconfigurationException: There is no `MixtureOfExperts`, or numbers do not fit.

    Example:
        >>> Expert(2).size
        2
    """

    name = "expert"
    shards_parameters = True

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.size = size
        self.group: Any = None
        self._lists: list[nn.ModuleList] = []

    @property
    def lockstep(self) -> bool:  # type: ignore[override]
        """Tokens of every process need experts of other ranks."""
        return self.size != 1

    @property
    def active(self) -> bool:
        """Whether there is more than one process to hold experts."""
        return self.size != 1

    @property
    def divides_parameters(self) -> bool:  # type: ignore[override]
        """Names of experts differ between processes."""
        return self.size > 1

    def local_parameters(self) -> LocalParameters | None:
        """Return the experts of this process that are listed one by one; stacked ones are DTensors."""
        if self.group is None or self.size == 1:
            return None
        ids = {id(parameter) for experts in self._lists for parameter in experts.parameters()}
        return LocalParameters(self.group, ids)

    def check(self, module: nn.Module, site: AxisContext) -> None:
        dim = _dimension(site)
        size = site.sizes[dim]
        if self.size not in (-1, size):
            raise MisconfigurationException(
                f"expert={self.size} with {dim}={size}: the processes that shard the experts are those of {dim}.",
                expected=f"expert={size}, or -1.",
                fix=f"MeshStrategy({dim}={size}, expert={size})",
            )
        self.size = size
        layers = _layers(module)
        if not layers:
            raise MisconfigurationException(
                f"expert={size}, but {type(module).__name__} has no MixtureOfExperts.",
                expected="a lightlib.strategies.axes.expert.MixtureOfExperts, which sends tokens to their experts.",
                fix="MixtureOfExperts(router=nn.Linear(width, 8), experts=[network() for _ in range(8)], top_k=2)",
            )
        for name, part in (
            matching(module, site.plan.experts, "parallel_plan(): experts").items() if site.plan.experts else ()
        ):
            if not any(part is layer or part is layer.experts for layer in layers.values()):
                raise MisconfigurationException(
                    f"parallel_plan() names the experts {name!r} ({type(part).__name__}), which are not those of a "
                    "MixtureOfExperts.",
                    expected=f"one of {', '.join(layers)}.",
                    fix="let a MixtureOfExperts call them: it sends tokens to the process that has them.",
                )
        for name, layer in layers.items():
            if layer.count % size:
                raise MisconfigurationException(
                    f"{name} has {layer.count} experts, which cannot be split over expert={size} processes.",
                    expected=f"a multiple of {size}.",
                    fix=f"{layer.count // size * size or size} experts, or another number of processes.",
                )
        if any(parameter.is_meta for parameter in module.parameters()):
            raise MisconfigurationException(
                "expert with a module on the meta device: no process builds all experts, so their first values would "
                "not be those of one device.",
                expected="a module that is built with memory.",
                fix="Shard(meta=False), or build in __init__.",
            )

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        dim = _dimension(site)
        mesh, rank = site.mesh[dim], site.coordinate(dim)
        self.group = mesh.get_group()
        others = site.along(*(name for name in site.splits_batch if name != dim))
        for layer in _layers(module).values():
            layer.to(site.device)
            layer.shard_over(self.group)
            if isinstance(layer.experts, nn.ModuleList):
                keep = range(rank * layer.count // self.size, (rank + 1) * layer.count // self.size)
                for key in list(layer.experts._modules):  # noqa: SLF001  to delete without renumbering
                    if int(key) not in keep:
                        del layer.experts._modules[key]  # noqa: SLF001
                self._lists.append(layer.experts)
                site.sharded_separately.append((list(layer.experts), others))
            else:
                _split_stack(layer.experts, mesh)
                site.sharded_separately.append(([layer.experts], others))


def _dimension(site: AxisContext) -> str:
    return "shard" if site.sizes["shard"] > 1 else "replicate"


def _layers(module: nn.Module) -> dict[str, MixtureOfExperts]:
    return {name: part for name, part in module.named_modules() if isinstance(part, MixtureOfExperts)}


def _split_stack(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Keep this process's entries of stacked parameters, and let `forward` see them as plain tensors."""
    for part in experts.modules():
        for key, parameter in list(part.named_parameters(recurse=False)):
            split = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
            part.register_parameter(key, nn.Parameter(split, parameter.requires_grad))
    shown = ExitStack()

    def show(*_: Any) -> None:
        for part in experts.modules():
            parameters = part.named_parameters(recurse=False)
            local = {key: parameter.to_local() for key, parameter in parameters if isinstance(parameter, DTensor)}
            shown.enter_context(shadowed(part, local))

    experts.register_forward_pre_hook(show)  # after FSDP2's hook, which was registered first
    experts.register_forward_hook(lambda *_: shown.close(), always_call=True)
