"""Private and experimental names of torch, which only this file imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
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
    "buffers_of",
    "collate_tensor_fn",
    "convolve",
    "default_collate_fn_map",
    "flattened",
    "flattened_mesh",
    "found_inf",
    "gather_groups",
    "give_memory",
    "has_gradient_hooks",
    "is_in_backward",
    "is_profiled",
    "is_view",
    "non_persistent_buffers",
    "number_of_groups",
    "reduce_gradients",
    "reset_of",
    "ring_dispatch",
    "scale_of",
    "set_gradient_sync",
    "shadowed",
    "structured",
    "tied_parameters",
    "version_of",
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
    return [found for found in places.values() if len(found) > 1]


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
    for one in state._state_ctx.all_states:  # noqa: SLF001
        for group in one._fsdp_param_groups:  # noqa: SLF001
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
    held = dict(layer._parameters)  # noqa: SLF001
    order = [next(name for name in several if name in held) for several in names]
    layer._parameters.clear()  # noqa: SLF001
    layer._parameters.update({name: held[name] for name in [*order, *held]})  # noqa: SLF001


def checkpoint_activations(module: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Checkpoint the activations of layers that the arguments select; return False if some layers do so already."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as torchs  # optional: few programs need it

    if any(isinstance(part, torchs.CheckpointWrapper) for part in module.modules()):
        return False
    torchs.apply_activation_checkpointing(module, checkpoint_wrapper_fn=torchs.checkpoint_wrapper, **arguments)
    return True
