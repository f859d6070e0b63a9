"""Private and experimental names of torch, which only this file imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
from torch.optim import _muon
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as SingleProcessIterator

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "RESETS",
    "AnyBatchNorm",
    "SingleProcessIterator",
    "TorchDispatchMode",
    "answered",
    "base_of",
    "buffers_of",
    "collate_tensor_fn",
    "convolve",
    "default_collate_fn_map",
    "default_store",
    "flattened",
    "flattened_mesh",
    "found_inf",
    "gather_groups",
    "give_memory",
    "graph_break",
    "has_gradient_hooks",
    "is_in_backward",
    "is_profiled",
    "is_view",
    "muon_rate",
    "non_persistent_buffers",
    "number_of_groups",
    "operators_named",
    "orthogonalized",
    "reduce_gradients",
    "reset_of",
    "ring_dispatch",
    "scale_of",
    "set_gradient_sync",
    "shadowed",
    "structured",
    "tied_parameters",
    "unscale_in_place",
    "version_of",
    "without_parameters",
]

# Whether a profiler runs: the C function itself, because it is called for every step.
is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]  # noqa: SLF001


def unflattened_mesh(mesh: DeviceMesh, sizes: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """Return the processes of a mesh of one dimension as one of several, within the same root mesh."""
    return mesh._unflatten(0, sizes, names)  # noqa: SLF001


def flattened_mesh(mesh: DeviceMesh, names: tuple[str, ...], name: str) -> DeviceMesh:
    """Flatten several dimensions of `mesh` into one, which the full mesh then knows by `name`."""
    return mesh[names]._flatten(name)  # noqa: SLF001


def number_of_groups() -> int:
    """Return how many groups of processes exist."""
    return len(dist.distributed_c10d._pg_map)  # noqa: SLF001


def set_gradient_sync(ddp: DistributedDataParallel, sync: bool) -> None:
    """Set whether the next forward and backward of `ddp` reduce gradients, as its context `no_sync` does."""
    ddp.__dict__["require_backward_grad_sync"] = sync


def found_inf(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the findings of `scaler.unscale_(optimizer)`: 0 per device, or 1 after an overflow."""
    return list(scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())  # noqa: SLF001


def unscale_in_place(
    scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]
) -> None:
    """Run `scaler.unscale_(optimizer)` with the gradients of `parameters` in place of the optimizer's."""
    optimizer_like: Any = SimpleNamespace(param_groups=[{"params": parameters}])
    scaler.unscale_(optimizer_like)
    states = scaler._per_optimizer_states  # noqa: SLF001
    states[id(optimizer)] = states.pop(id(optimizer_like))


@contextmanager
def without_parameters() -> Iterator[None]:
    """Let optimizers be made of no parameters, which torch refuses unless they are in a group."""
    initialize = torch.optim.Optimizer.__init__

    def make(optimizer: torch.optim.Optimizer, params: Any, defaults: dict[str, Any]) -> None:
        groups = params if isinstance(params, Tensor) else list(params) or [{"params": []}]
        initialize(optimizer, groups, defaults)

    with mock.patch.object(torch.optim.Optimizer, "__init__", make):
        yield


def orthogonalized(matrix: Tensor, steps: int) -> Tensor:
    """Return a matrix with nearly the same singular vectors and singular values near 1, as torch.optim.Muon does."""
    coefficients = _muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C
    return _muon._zeropower_via_newtonschulz(matrix, coefficients, steps, _muon.EPS)  # noqa: SLF001


def muon_rate(lr: float, adjust: str | None, shape: torch.Size) -> float:
    """Return the learning rate of torch.optim.Muon for a matrix of a shape."""
    return _muon._adjust_lr(lr, adjust, shape)  # noqa: SLF001


def convolve(convolution: Any, given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the output of a convolution with another weight and bias."""
    return convolution._conv_forward(given, weight, bias)  # type: ignore[no-any-return]  # noqa: SLF001


def scale_of(scaler: torch.amp.GradScaler) -> Tensor:
    """Return a copy of the current scale, on its device; there must have been a loss."""
    scale = scaler._scale  # noqa: SLF001
    assert scale is not None, "no loss was scaled"
    return scale.clone()


def has_gradient_hooks(parameter: nn.Parameter) -> bool:
    """Return whether `parameter` has gradient hooks."""
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))  # noqa: SLF001


def is_in_backward() -> bool:
    """Whether this thread runs a backward pass, in which activation checkpointing calls modules again."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001


def is_view(tensor: Tensor) -> bool:
    """Return whether autograd knows `tensor` as a view of another one."""
    return tensor._is_view()  # noqa: SLF001


def base_of(tensor: Tensor) -> Tensor:
    """Return the tensor of which autograd knows `tensor` as a view; `tensor` itself if it is none."""
    return tensor if tensor._base is None else tensor._base  # noqa: SLF001


def operators_named(name: str) -> tuple[list[Any], list[str] | None]:
    """Return the operators of an operation, with or without ``aten::``; without any, the names that there are.

    None in place of these names: the operation is composed of several, which autograd sees in its place.
    """
    every_name = torch._C._dispatch_get_all_op_names()  # noqa: SLF001
    name = name.removeprefix("aten.").removesuffix(".default")
    name = name if "::" in name else f"aten::{name}"
    matches = [operator for operator in every_name if operator == name or operator.startswith(f"{name}.")]
    composed = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    if matches and composed(matches[0], "CompositeImplicitAutograd"):
        return [], None
    operators = []
    for match in matches:
        library, _, rest = match.partition("::")
        packet, _, overload = rest.partition(".")
        operators.append(getattr(getattr(getattr(torch.ops, library), packet), overload or "default"))
    return operators, [] if matches else sorted(
        {operator.removeprefix("aten::").partition(".")[0] for operator in every_name}
    )


def graph_break(error: Exception) -> tuple[str, str, str] | None:
    """Return the reason, place and line of an error by which torch.compile refuses to break a graph, else None.

    The line is the innermost one outside of torch and this package.
    """
    from torch._dynamo.exc import Unsupported  # optional: slow to import

    if not isinstance(error, Unsupported):
        return None
    ours = tuple(str(Path(str(module.__file__)).parent) + os.sep for module in (torch, sys.modules["lightlib"]))
    frames = [frame for frame in error.real_stack if not frame.filename.startswith(ours)] or list(error.real_stack)
    reason = str(error).partition("\n")[0]
    return (
        (reason, f"{frames[-1].filename}:{frames[-1].lineno}", frames[-1].line or "") if frames else (reason, "?", "")
    )


def version_of(tensor: Tensor) -> int:
    """Return the number of writes to `tensor` that autograd has counted."""
    return tensor._version  # noqa: SLF001


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the registered buffers of `module` itself, which a property of the same name may hide."""
    return module._buffers  # noqa: SLF001


def non_persistent_buffers(module: nn.Module) -> set[str]:
    """Return the names of the buffers of `module` itself that its `state_dict` leaves out."""
    return module._non_persistent_buffers_set  # noqa: SLF001


# Take a tree (dicts, lists, tuples, … in each other) apart into its leaves and its structure, and build it again.
flattened, structured = tree_flatten, tree_unflatten


@contextmanager
def shadowed(module: nn.Module, values: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes of `module` for a while, in front of its methods, parameters and buffers."""
    before = {name: module.__dict__[name] for name in values if name in module.__dict__}
    module.__dict__.update(values)
    try:
        yield
    finally:
        for name in values:
            module.__dict__.pop(name)
        module.__dict__.update(before)


def answered(module: nn.Module, by: Callable[..., Any]) -> AbstractContextManager[None]:
    """Let `by` answer calls of `module` for a while; neither its forward nor its hooks run."""
    # what `module(…)` and `module.forward(…)` look at first
    return shadowed(module, dict.fromkeys(("_compiled_call_impl", "forward"), by))


def tied_parameters(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return for each parameter with several names the layers that hold it, each with its name there."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(id(parameter), []).append((part, name))
    return [names for names in places.values() if len(names) > 1]


def give_memory(module: nn.Module, device: torch.device) -> None:
    """Allocate meta tensors on `device`, uninitialised, and move everything else there."""
    ties = tied_parameters(module)
    move = lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device)  # noqa: E731
    module._apply(move)  # type: ignore[no-untyped-call]  # noqa: SLF001
    for (first, name), *others in ties:
        for part, other in others:  # they would be different parameters from now on
            part._parameters[other] = first._parameters[name]  # noqa: SLF001


RESETS = ("reset_parameters", "_reset_parameters")  # the second one of torch's own attention


def reset_of(module: nn.Module) -> Callable[[], Any] | None:
    """Return the method that gives a layer its first values, or None."""
    methods = (getattr(module, name, None) for name in RESETS)
    return next((method for method in methods if callable(method)), None)


def gather_groups(root: FSDPModule) -> None:
    """Let `root` know all that is sharded below it now, and not when it is first called and some of it is hidden."""
    from torch.distributed.fsdp import fully_shard  # optional: slow to import

    fully_shard.state(root)._lazy_init()  # type: ignore[attr-defined]  # noqa: SLF001


def reduce_gradients(root: FSDPModule) -> None:
    """Reduce the gradients accumulated since the last time over processes, and reshard the parameters.

    The backward passes ran with `set_requires_gradient_sync(False)`; those of a pipeline's schedule are no ordinary
    ones, so nothing else would do it.
    """
    from torch.distributed.fsdp import fully_shard  # optional: slow to import

    root.set_is_last_backward(True)
    root.set_reshard_after_backward(True)
    root.set_requires_gradient_sync(True)
    state = fully_shard.state(root)  # type: ignore[attr-defined]
    for fsdp_state in state._state_ctx.all_states:  # noqa: SLF001
        for group in fsdp_state._fsdp_param_groups:  # noqa: SLF001
            group.post_backward()
    if state._is_root:  # noqa: SLF001
        state._root_post_backward_final_callback()  # noqa: SLF001


@contextmanager
def ring_dispatch() -> Iterator[None]:
    """Let `F.scaled_dot_product_attention` of DTensors that are split along the sequence send keys and values round."""
    from torch.distributed.tensor.experimental import _attention  # optional: an experiment of torch, slow to import

    balanced = _attention._cp_options.enable_load_balance  # noqa: SLF001
    _attention._cp_options.enable_load_balance = False  # noqa: SLF001  parts are contiguous
    _attention._enable_context_parallel_dispatcher()  # noqa: SLF001
    try:
        yield
    finally:
        _attention._disable_context_parallel_dispatcher()  # noqa: SLF001
        _attention._cp_options.enable_load_balance = balanced  # noqa: SLF001


def parameter_order(layer: nn.Module) -> list[str]:
    """Return the names of a layer's own parameters in their order, also of those that are None."""
    return list(layer._parameters)  # noqa: SLF001


def order_parameters(layer: nn.Module, names: Sequence[Sequence[str]]) -> None:
    """Put a layer's own parameters in this order; each is the first of several names that the layer has."""
    parameters = dict(layer._parameters)  # noqa: SLF001
    order = [next(name for name in several if name in parameters) for several in names]
    layer._parameters.clear()  # noqa: SLF001
    layer._parameters.update({name: parameters[name] for name in [*order, *parameters]})  # noqa: SLF001


def checkpoint_activations(module: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Checkpoint the activations of layers that the arguments select; return False if some layers do so already."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as torchs  # optional: few programs need it

    if any(isinstance(part, torchs.CheckpointWrapper) for part in module.modules()):
        return False
    torchs.apply_activation_checkpointing(module, checkpoint_wrapper_fn=torchs.checkpoint_wrapper, **arguments)
    return True


def identity(storage: Any) -> int:
    """Return a number by which a storage is known while it lives."""
    return storage._cdata  # type: ignore[no-any-return]  # noqa: SLF001


def local_shard(tensor: Any) -> Tensor:
    """Return the tensor that a DTensor, or the result of a collective, holds here; other tensors as they are."""
    local: Tensor = getattr(tensor, "_local_tensor", getattr(tensor, "elem", tensor))
    return local


def is_of_dtensors(types: Sequence[type]) -> bool:
    """Whether an operation is one of DTensors, for the `types` that `__torch_dispatch__` gets."""
    return any(kind.__name__ == "DTensor" for kind in types)


def packet_of(operation: Any) -> Any:
    """Return all overloads of an operation together, as torch's counter of floating-point operations knows them."""
    return operation._overloadpacket  # noqa: SLF001


def group_of(arguments: Sequence[Any]) -> list[int]:
    """Return the ranks of the group in the arguments of a collective operation."""
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):  # noqa: SLF001
            return dist.get_process_group_ranks(dist.ProcessGroup.unbox(argument))
    named: Any = dist.distributed_c10d
    group = arguments[-1]  # its name, with functional collectives
    return dist.get_process_group_ranks(named._resolve_process_group(group) if isinstance(group, str) else group)  # noqa: SLF001


def held_by_fsdp(module: nn.Module) -> tuple[list[Tensor], list[nn.Parameter]]:
    """Return the gathered tensors of `module` and of all within it, and the shards from which FSDP2 gathers them."""
    from torch.distributed.fsdp import FSDPModule, fully_shard  # optional: slow to import

    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    groups = [group for part in parts for group in fully_shard.state(part)._fsdp_param_groups]  # type: ignore[attr-defined]  # noqa: SLF001
    every = [parameter for group in groups for parameter in group.fsdp_params]
    return [tensor for parameter in every for tensor in parameter.all_gather_outputs], [
        parameter.sharded_param for parameter in every
    ]


def record_memory(most: int | None) -> None:
    """Record the last `most` allocations on CUDA devices with their stacks; None ends it.

    See https://docs.pytorch.org/docs/stable/torch_cuda_memory.html.
    """
    torch.cuda.memory._record_memory_history(enabled=None if most is None else "all", max_entries=most or 1)  # noqa: SLF001


def write_memory_snapshot(path: str) -> None:
    """Write the recorded allocations to a file, which https://docs.pytorch.org/memory_viz shows."""
    torch.cuda.memory._dump_snapshot(path)  # type: ignore[no-untyped-call]  # noqa: SLF001


def drop_tensors(module: nn.Module) -> None:
    """Remove all parameters and buffers of a copy that is not used any more."""
    for part in module.modules():
        part._parameters.clear()  # noqa: SLF001
        part._buffers.clear()  # noqa: SLF001


@contextmanager
def shapes_of_dtensors_unseen() -> Iterator[None]:
    """Let no mode see the operations by which DTensor finds the shape of a result once, and which compute nothing."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator  # optional: slow to import
    from torch.utils._python_dispatch import _disable_current_modes  # optional: only used here

    name = "_propagate_tensor_meta_non_cached"
    propagate = getattr(ShardingPropagator, name)

    def unseen(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return propagate(*args, **kwargs)

    with mock.patch.object(ShardingPropagator, name, unseen):
        yield


@contextmanager
def meshes_outside_of_fake() -> Iterator[None]:
    """Let device meshes work within a `fake_mode`: they keep the numbers of ranks in tensors and read them."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily  # optional: slow to import
    from torch.distributed.device_mesh import DeviceMesh  # optional: slow to import
    from torch.distributed.pipelining import schedules  # optional: slow to import

    def outside(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return method(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for name in ("__init__", "__getitem__", "_flatten", "_unflatten", "get_local_rank", "get_coordinate"):
            stack.enter_context(mock.patch.object(DeviceMesh, name, outside(getattr(DeviceMesh, name))))
        mesh: Any = vars(DeviceMesh)["mesh"]
        ranks = property(outside(mesh.fget))
        stack.enter_context(mock.patch.object(DeviceMesh, "mesh", ranks))
        for kind in [kind for kind in vars(schedules).values() if isinstance(kind, type)]:
            if "_warmup_p2p" in vars(kind):  # first messages, by which stages agree that their shapes are known
                stack.enter_context(mock.patch.object(kind, "_warmup_p2p", _agree))
        send: Any = vars(schedules)["_batch_p2p"]
        stack.enter_context(
            mock.patch.object(
                schedules,
                "_batch_p2p",
                lambda tensor, *more, **options: [
                    _SentTensor(*message)
                    for message in zip(send(tensor, *more, **options), [each.tensor for each in tensor], strict=True)
                ],
            )
        )
        yield


class _SentTensor:
    """A message that keeps its tensor until the schedule has waited for it, as those of a real group do."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self, *timeout: Any) -> Any:
        """Wait for nothing."""
        del self._tensor
        return self._work.wait(*timeout)


def _agree(_: Any, stages: Sequence[Any], *__: Any, **___: Any) -> None:
    from torch.distributed.pipelining import schedules  # optional: slow to import

    modes: Any = getattr(schedules, "InferenceMode", None)  # since torch 2.13
    for stage in stages if modes is not None else ():
        vars(stage).update(_inference_mode=modes.STATIC)


def default_store() -> Any:
    """Return the store of the process group that exists, with keys of that group alone."""
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001


def join_fake_group(rank: int, size: int) -> None:
    """Make a process group of one process, in which every collective returns at once and sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # optional: registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)


def forget_meshes() -> None:
    """Clear the caches of DTensor: it finds meshes by their shape, and with them groups that are gone."""
    from torch.distributed.tensor import _collective_utils, _redistribute, debug  # optional: slow to import

    clear: Any = debug
    clear._clear_sharding_prop_cache()  # noqa: SLF001
    for place in (_redistribute, _collective_utils):
        for cached in vars(place).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


@contextmanager
def generic_kernels() -> Iterator[None]:
    """Leave out oneDNN: only its kernel knows the size of the workspace that its recurrent layers keep."""
    before = torch._C._get_mkldnn_enabled()  # noqa: SLF001
    torch._C._set_mkldnn_enabled(False)  # noqa: SLF001
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)  # noqa: SLF001


def fake_errors() -> tuple[type[Exception], ...]:
    """Return the errors of operations that need values or shapes which a tensor without values does not have."""
    from torch._subclasses import fake_tensor as fake  # optional: slow to import

    return (
        fake.DataDependentOutputException,
        fake.DynamicOutputShapeException,
        fake.UnsupportedFakeTensorException,
        fake.UnsupportedOperatorException,
    )


def fake_mode() -> Any:
    """Return a context in which tensors have shapes and dtypes, but no values and no memory.

    A real tensor that an operation gets, such as a constant of a module's file, is taken for one without values.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # optional: slow to import

    return FakeTensorMode(allow_non_fake_inputs=True)
