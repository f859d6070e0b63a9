"""Shard: shards parameters, gradients and optimizer state over processes (FSDP2, HSDP)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from lightlib.errors import MisconfigurationException
from lightlib.precision.context import cast_floating
from lightlib.strategies.axes.axis import Axis, AxisContext, Step
from lightlib.strategies.axes.materialize import Construction, fill, on_meta
from lightlib.strategies.axes.parallel_plan import blocks_of
from lightlib.torch_private import is_view, shadowed, tied_parameters
from lightlib.tree import map_tensors

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class Sharded(Axis):
    """Base of the axes that run steps with FSDP2's hooks: those of the `roots`, of which the module may be one."""

    def __init__(self) -> None:
        super().__init__()
        self.root: nn.Module | None = None
        self.roots: list[FSDPModule] = []
        self._parts: list[FSDPModule] = []

    def hold(self, module: nn.Module | None, roots: Sequence[Any]) -> None:
        """Take the `roots` to which `fully_shard` was applied, and the module that has the steps."""
        self.roots = [root for root in roots if isinstance(root, FSDPModule)]
        self.root = module if any(root is module for root in roots) else None
        self._parts = [part for root in roots for part in root.modules() if isinstance(part, FSDPModule)]

    def enter(self, name: str, method: Step) -> Step:
        """Return the step with FSDP2's hooks around it, which gather the module's own parameters."""
        entered = method if self.root is None else _entered(self.root, name, method)
        if name == "training_step":
            return entered

        def dropping(*args: Any) -> Any:
            output = entered(*args)
            self.teardown()  # an evaluation leaves nothing gathered
            return output

        return dropping

    def around(self, step: Step) -> Step:
        """Return a function that runs a batch, and reduces gradients with the last batch of a window."""
        roots = self.roots

        def synced(batch: Any, batch_idx: int, backward: Any, sync: bool) -> Any:
            for root in roots:
                root.set_requires_gradient_sync(sync)
                root.set_is_last_backward(sync)
            return step(batch, batch_idx, backward, sync)

        return synced

    def teardown(self) -> None:
        """Keep local shards only: parameters stay gathered after a forward without a backward.

        Weights may change before they are used again, and `parameters()` would return what is gathered in place of what
        an optimizer has to step.
        """
        for part in self._parts:
            part.reshard()


class Shard(Sharded):
    """Every process keeps a shard of each parameter, gradient and optimizer state, and reads its own shard of the data.

    Blocks are gathered just before they are used; the sizes of ``replicate`` and ``shard`` make one mesh of two
    dimensions (HSDP). With a size of 1 it averages the gradients of replicas where the tensor or expert axis has split
    parameters; where there is nothing to average either, it is used only if another option is given.

    Args:
        size: Processes; -1: as many as there are left.
        blocks: Names of the modules that are gathered at once, with wildcards, or a function ``(name, module) ->
            bool``. Default: those of `parallel_plan`, else the children of the largest ModuleList or Sequential, but
            for the smallest ones, which together hold at most half as many parameters as the largest; in manual
            optimization also every child of the module, which must then be called as one module.
        reshard_after_forward: Drop gathered parameters after forward and gather them again in backward. Default: True,
            but False within a pipeline, whose schedules would compute wrong gradients otherwise.
        cpu_offload: Keep the shards on the CPU, and step there. Default False.
        param_dtype, reduce_dtype: In place of those of the Trainer's precision.
        meta: Build in `configure_model` without memory, and fill the parts afterwards as an ordinary construction
            would. Default False.
    """

    name = "shard"
    order = 30
    splits_batch = True
    shards_parameters = True
    casts = True
    keeps_gathered = True  # by FSDP2; torch refuses to train on tensors that were made in inference mode
    replaced_by_hand = True

    def __init__(
        self,
        size: int = 1,
        *,
        blocks: Sequence[str] | Callable[[str, nn.Module], bool] | None = None,
        reshard_after_forward: bool | int | None = None,
        cpu_offload: bool = False,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        meta: bool = False,
    ) -> None:
        super().__init__()
        self.size, self.blocks, self.cpu_offload, self.meta = size, blocks, cpu_offload, meta
        self.reshard_after_forward = reshard_after_forward
        self.param_dtype, self.reduce_dtype = param_dtype, reduce_dtype
        options = (blocks, reshard_after_forward, param_dtype, reduce_dtype)
        # -1 may turn out to be 1, and then one process is meant to run as FSDP
        self.asked = size != 1 or cpu_offload or meta or any(option is not None for option in options)
        self._construction = Construction()

    @property
    def lockstep(self) -> bool:  # type: ignore[override]
        """Gathering takes every process, so each forward does."""
        return self.size != 1

    def init_context(self) -> AbstractContextManager[Any]:
        """Return the context in which `configure_model` builds: on the CPU, or on the meta device."""
        return on_meta(self._construction) if self.meta else nullcontext()

    def check(self, module: nn.Module, site: AxisContext) -> None:
        names = list(site.sizes)
        inner = [name for name in _replicated_over(site) if names.index(name) > names.index("shard")]
        if inner:
            raise MisconfigurationException(
                f"The dimension {inner[0]!r} splits batches, and stands further inside the mesh than shard.",
                expected=f"an order below {Shard.order}: FSDP2 needs its replicas outside of its shards.",
                fix=f"order = {Shard.order - 5} in the axis {inner[0]!r}.",
            )
        if not any(True for _ in module.parameters()):
            raise MisconfigurationException(
                f"{type(module).__name__} has no parameters to shard.",
                expected="a module with parameters.",
                fix="create layers in __init__ or configure_model.",
            )

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        mesh = _sharded_over(site)
        dtype = self._policy(site)
        offload = CPUOffloadPolicy(pin_memory=site.accelerator.pins_memory) if self.cpu_offload else OffloadPolicy()
        piped = site.pipelined is not None
        reshard = self.reshard_after_forward if self.reshard_after_forward is not None else not piped
        if piped and reshard:
            raise MisconfigurationException(
                f"reshard_after_forward={reshard!r} within a pipeline.",
                expected="False: with it, zero-bubble schedules compute wrong gradients.",
                fix="leave it out.",
            )
        options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard, "offload_policy": offload}
        for parts, other in site.sharded_separately:
            fully_shard(parts, mp_policy=MixedPrecisionPolicy(*dtype), **{**options, "mesh": other})
        norms = _with_statistics(module, site) if dtype[0] is not None else []
        for part in norms:
            fully_shard(part, **options)  # in the dtype of its statistics
        if dtype[0] is not None and site.device.type == "cpu":
            _cast_inputs_of_norms(module, norms, dtype[0])
        for part in self._units(module, site):
            if part not in norms:
                part.register_forward_hook(own_memory)
                fully_shard(part, mp_policy=MixedPrecisionPolicy(*dtype), **options)
        roots = _roots_in_stages(module, site.pipelined) if piped else [module]
        # A root's own parameters are used again right after its forward, first in backward.
        options["reshard_after_forward"] = False
        for root in roots:
            root.register_forward_hook(own_memory)
            fully_shard(
                root, mp_policy=MixedPrecisionPolicy(*dtype, output_dtype=site.precision.param_dtype), **options
            )
        if any(parameter.is_meta for parameter in module.parameters()):
            self._construction.share(site.collectives)
            fill(module, site.device if not self.cpu_offload else torch.device("cpu"), self._construction)
            self._construction = Construction()
        self.hold(None if piped else module, roots)

    def _policy(self, site: AxisContext) -> tuple[torch.dtype | None, torch.dtype | None]:
        precision = site.precision
        compute = self.param_dtype or (precision.compute_dtype if precision.autocasts else None)
        reduce = self.reduce_dtype or (precision.reduce_dtype if precision.autocasts else None)
        return compute, reduce

    def _units(self, module: nn.Module, site: AxisContext) -> list[nn.Module]:
        units = [*filter(_is_called, blocks_of(module, site.plan, self.blocks).values())]
        if self.blocks is None and not site.plan.blocks:
            apart = [part for parts, _ in site.sharded_separately for part in parts]
            units = _large(_untied(units, module), apart)
        if self.blocks is None and not site.automatic:  # for each backward pass, each layer is gathered again
            units += _called(module)
        return [part for part in reversed(list(module.modules())) if any(part is unit for unit in units)]  # inner first


def sharded_roots(module: nn.Module) -> list[FSDPModule]:
    """Return the outermost modules to which `fully_shard` was applied."""
    if isinstance(module, FSDPModule):
        return [module]
    return [root for child in module.children() for root in sharded_roots(child)]


def _with_statistics(module: nn.Module, site: AxisContext) -> list[nn.Module]:
    """Return the norms with running statistics: torch takes inputs of 16 bits, but no parameters, with those."""
    apart = {inner for parts, _ in site.sharded_separately for part in parts for inner in part.modules()}
    norms = (part for part in module.modules() if getattr(part, "running_mean", None) is not None)
    return [part for part in norms if part not in apart and any(True for _ in part.parameters())]


def _cast_inputs_of_norms(module: nn.Module, kept: Sequence[nn.Module], dtype: torch.dtype) -> None:
    """Let norms but those `kept` in float32 cast inputs: torch's CPU kernels take only the dtype of the weights."""
    for part in module.modules():
        if isinstance(part, _NORMS) and part not in kept:
            part.register_forward_pre_hook(lambda _, inputs: cast_floating(inputs, dtype))


def _large(parts: Sequence[nn.Module], apart: Sequence[nn.Module]) -> list[nn.Module]:
    """Return `parts` without the smallest, which together hold at most half as many parameters as the largest one.

    Each part costs three collectives per step, however small it is. The parameters of `apart` do not count.
    """
    elsewhere = {id(parameter) for part in apart for parameter in part.parameters()}
    sizes = [sum(p.numel() for p in part.parameters() if id(p) not in elsewhere) for part in parts]
    smallest_first = sorted(range(len(parts)), key=sizes.__getitem__)
    together = accumulate(sizes[index] for index in smallest_first)
    small = {index for index, size in zip(smallest_first, together, strict=True) if 2 * size <= max(sizes)}
    return [part for index, part in enumerate(parts) if index not in small]


def _is_called(part: nn.Module) -> bool:
    return not isinstance(part, (nn.ModuleList, nn.ModuleDict))


def _untied(parts: Sequence[nn.Module], module: nn.Module) -> list[nn.Module]:
    """Return the parts that share no parameter with a layer outside of themselves: a parameter has one unit."""
    ties = [{layer for layer, _ in places} for places in tied_parameters(module)]
    inside = ((part, set(part.modules())) for part in parts)
    return [part for part, layers in inside if not any(tie & layers and tie - layers for tie in ties)]


def _called(module: nn.Module) -> list[nn.Module]:
    """Return the children of a module that have parameters; in place of a list of modules, its members."""
    modules: list[nn.Module] = []
    for child in module.children():
        if not _is_called(child):
            modules += _called(child)
        elif any(True for _ in child.parameters()):
            modules.append(child)
    return modules


def own_memory(_: nn.Module, __: Any, output: Any) -> Any:
    """Copy views: FSDP2 would not see an in-place operation on one, and would compute wrong gradients."""
    if not torch.is_grad_enabled():
        return output
    return map_tensors(lambda tensor: tensor.clone() if is_view(tensor) else tensor, output)


def _entered(module: nn.Module, name: str, method: Step) -> Step:
    """Return `method` with the hooks around it that `fully_shard` gave the forward of `module`."""

    def with_own_memory(*args: Any) -> Any:
        return own_memory(module, args, method(*args))

    attribute = f"_entered_{name}"
    with shadowed(module, {attribute: with_own_memory}):  # torch takes methods by name only
        register_fsdp_forward_method(module, attribute)
        step: Step = module.__dict__[attribute]
    return step


def _sharded_over(site: AxisContext) -> DeviceMesh:
    """Return the mesh of the shards, with that of the replicas outside of it; each shard of a sample has its own."""
    shards, replicated = site.along("shard", *site.splits_samples), _replicated_over(site)
    if not replicated:
        return shards
    names = [name for mesh in (site.along(*replicated), shards) for name in mesh.mesh_dim_names or ()]
    return site.mesh[tuple(names)]


def _replicated_over(site: AxisContext) -> list[str]:
    return [name for name in site.splits_batch if name != "shard" and site.sizes[name] > 1]


def _roots_in_stages(module: nn.Module, part: nn.Module | None) -> list[nn.Module]:
    """Return the modules to shard separately: the one that a pipeline cuts, and layers outside of it."""
    if part is None or part is module:
        return [module]
    names = [name for name, _ in module.named_parameters(recurse=False)]
    if names:
        raise MisconfigurationException(
            f"{type(module).__name__} holds the parameter {names[0]!r} itself, outside of its layers.",
            expected="parameters inside of child modules, when shard and pipeline are combined.",
            fix=f"move self.{names[0]} into the module that the pipeline cuts, or into a child module.",
        )
    roots: list[nn.Module] = []
    for child in module.children():
        if child is part or isinstance(child, (nn.ModuleList, nn.ModuleDict)) or part in set(child.modules()):
            roots += [child] if child is part else _roots_in_stages(child, part)
        else:
            roots.append(child)
    return [root for root in roots if any(True for _ in root.parameters())]
