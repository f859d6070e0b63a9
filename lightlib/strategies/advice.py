"""Advice on a strategy, by the memory that a module needs for training and the memory of a device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from lightlib.callbacks.summary.training_memory import expected_memory, size
from lightlib.errors import check_int
from lightlib.tree import children

__all__ = ["Advice", "advise"]

ROOM = 0.9  # of a device's memory; the rest is for activations and the driver
_ASSUMED = 2  # tensors per parameter of an optimizer that is not known: AdamW's


@dataclass(frozen=True)
class Advice:
    """A strategy for a module.

    Attributes:
        strategy: ``"single_device"``, ``"ddp"`` or ``"fsdp"``.
        reason: One sentence with the numbers.
        fits: Whether parameters, gradients and optimizer state fit; None if the memory of a device is not known.
    """

    strategy: str
    reason: str
    fits: bool | None


def advise(
    module: nn.Module,
    devices: int,
    memory: int | None,
    optimizers: Iterable[Optimizer] | None = None,
    param_dtype: torch.dtype | None = None,
) -> Advice:
    """Return the strategy for a module by its memory: one device, replicas (DDP), or shards (FSDP).

    Parameters, gradients and optimizer state are counted, and may take 90 % of a device; activations are not known
    before a batch. One device stays one device, and several are used for replicas unless these do not fit.

    Args:
        module: On any device, also the meta device.
        devices: The number of devices, one for each process.
        memory: The bytes of the smallest device; None if they are not known.
        optimizers: Default: those of `configure_optimizers`, which is called on a copy without memory. If that is not
            possible, an optimizer with two tensors for each parameter, such as AdamW.
        param_dtype: The dtype of floating parameters during training. Default: their own.

    Raises:
        ArgumentTypeError: `devices` or `memory` is no int.
        MisconfigurationException: `devices` is less than 1, or `memory` is negative.

    Example:
        >>> layer = nn.Linear(999, 1000)  # 4 MB in float32
        >>> adamw = [torch.optim.AdamW(layer.parameters())]
        >>> advise(layer, devices=4, memory=10_000_000, optimizers=adamw)
        Advice(strategy='fsdp', reason='parameters, gradients and optimizer state need 16.0 MB, more than 90 % of the
        10.0 MB of a device; sharded over 4 devices they need 4.00 MB on each', fits=True)
        >>> advise(layer, devices=4, memory=80_000_000, optimizers=adamw).strategy
        'ddp'
    """
    _check("devices", devices, 1)
    if memory is not None:
        _check("memory", memory, 0)
    if memory is None:
        name = "ddp" if devices > 1 else "single_device"
        return Advice(name, "the memory of a device is not known, so the number of devices decides", None)
    stored, gradients = _stored(module, param_dtype)
    state, kind = _ASSUMED * gradients, "optimizer state (as AdamW's)"
    if stored + gradients + state > memory * ROOM:  # only then it matters
        state_bytes = _state_bytes(module, optimizers, gradients)
        state, kind = (state, kind) if state_bytes is None else (state_bytes, "optimizer state")
    needed = stored + gradients + state
    requirement = f"parameters, gradients and {kind} need {size(needed)}"
    if needed <= memory * ROOM:
        return Advice(
            "ddp" if devices > 1 else "single_device", f"{requirement}, and a device has {size(memory)}", True
        )
    too_much = f"{requirement}, more than {ROOM * 100:.0f} % of the {size(memory)} of a device"
    if devices == 1:
        return Advice("single_device", f"{too_much}, and there is only one", False)
    share = needed / devices
    sharded = f"{too_much}; sharded over {devices} devices they need {size(share)} on each"
    return Advice("fsdp", sharded, share <= memory * ROOM)


def state_of(module: nn.Module, param_dtype: torch.dtype | None = None) -> tuple[int, int, int | None]:
    """Return the bytes of parameters, gradients and optimizer state, the last of which may not be known.

    Example:
        >>> state_of(nn.Linear(999, 1000))
        (4000000, 4000000, None)
    """
    stored, gradients = _stored(module, param_dtype)
    return stored, gradients, _state_bytes(module, None, gradients)


def _stored(module: nn.Module, param_dtype: torch.dtype | None) -> tuple[int, int]:
    """Return the bytes of parameters and gradients."""
    parameters = [parameter for parameter in module.parameters() if not isinstance(parameter, UninitializedParameter)]
    stored = sum(_bytes(parameter, param_dtype) for parameter in parameters)
    return stored, sum(_bytes(parameter, param_dtype) for parameter in parameters if parameter.requires_grad)


def _check(name: str, value: object, least: int) -> None:
    check_int("advise", name, value, least, example=8)


def _bytes(tensor: Tensor, dtype: torch.dtype | None) -> int:
    itemsize = dtype.itemsize if dtype is not None and tensor.is_floating_point() else tensor.element_size()
    return tensor.numel() * itemsize


def _state_bytes(module: nn.Module, optimizers: Iterable[Optimizer] | None, gradients: int) -> int | None:
    """Return the bytes of the optimizers' states; None if they are not known."""
    if optimizers is None:
        copied = _without_memory(module)
        optimizers = None if copied is None else _optimizers_of(copied)
        if not optimizers or copied is None:
            return None
        module = copied
    expected = expected_memory(module, optimizers)
    if expected.optimizer_state is None or not expected.gradients:
        return expected.optimizer_state
    return round(expected.optimizer_state * gradients / expected.gradients)  # in the dtype of the training


def _without_memory(module: nn.Module) -> nn.Module | None:
    """Return a copy of `module` with its tensors on the meta device; None if it cannot be copied."""
    tensors: dict[int, Any] = {}
    for parameter in module.parameters():
        if isinstance(parameter, UninitializedParameter):
            return None
        meta = torch.empty_like(parameter, device="meta", requires_grad=False)
        tensors[id(parameter)] = nn.Parameter(meta, requires_grad=parameter.requires_grad)
    tensors |= {id(buffer): torch.empty_like(buffer, device="meta") for buffer in module.buffers()}
    try:
        return copy.deepcopy(module, tensors)
    except Exception:  # noqa: BLE001  users' objects refuse in any way
        return None


def _optimizers_of(module: Any) -> list[Optimizer]:
    """Return the optimizers that `configure_optimizers` of a copy makes; none if it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _optimizers_in(module.configure_optimizers())
    except Exception:  # noqa: BLE001  it may need a trainer or real tensors; then the optimizer is not known
        return []


def _optimizers_in(configured: Any) -> list[Optimizer]:
    return (
        [configured]
        if isinstance(configured, Optimizer)
        else [optimizer for part in children(configured) for optimizer in _optimizers_in(part)]
    )
