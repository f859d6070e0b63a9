"""Masks of pruned parameters, which stay in their order, and states without masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lightlib.callbacks.pruning.pruning_arguments import Layers
from lightlib.torch_private import order_parameters, parameter_order


@contextmanager
def order_kept(module: nn.Module) -> Iterator[None]:
    """Keep the order of the parameters: torch moves those that it prunes to the end, and optimizers count by order."""
    orders = [(layer, parameter_order(layer)) for layer in module.modules()]
    yield
    for layer, names in orders:
        order_parameters(layer, [(name, f"{name}_orig", name.removesuffix("_orig")) for name in names])


def mask_of(layer: nn.Module, name: str) -> Tensor | None:
    """Return the mask of a parameter; None if it is not pruned."""
    return dict(layer.named_buffers(recurse=False)).get(f"{name}_mask")


def original(layer: nn.Module, name: str) -> nn.Parameter:
    """Return the parameter that is trained, of which a pruned one is the product with its mask."""
    parameters = dict(layer.named_parameters(recurse=False))
    return parameters.get(f"{name}_orig", parameters.get(name))  # type: ignore[return-value]


def refresh(layers: Layers) -> None:
    """Compute the pruned weights again, which the layers otherwise do at each forward."""
    for layer, name in layers:
        mask = mask_of(layer, name)
        if mask is not None:
            setattr(layer, name, (mask * original(layer, name)).detach())


def remove(module: nn.Module) -> None:
    """Make pruning permanent: the weights are the pruned ones, without masks."""
    with order_kept(module):
        for layer in module.modules():
            for name in [name.removesuffix("_mask") for name, _ in layer.named_buffers(recurse=False)]:
                if mask_of(layer, name) is not None and f"{name}_orig" in parameter_order(layer):
                    prune.remove(layer, name)  # type: ignore[no-untyped-call]


def prune_as_saved(layer: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Prune a layer that is about to load a state with masks: a hook of `load_state_dict`."""
    for name in [parameter_name for parameter_name, _ in layer.named_parameters(recurse=False)]:
        mask = state.get(f"{prefix}{name}_mask")
        if mask is not None and f"{prefix}{name}_orig" in state:
            with order_kept(layer):
                prune.custom_from_mask(layer, name, torch.ones_like(original(layer, name)))  # type: ignore[no-untyped-call]


def without_masks(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the pruned weights in place of originals and masks."""
    pruned: dict[str, Any] = {}
    for name, value in state.items():
        base = name.removesuffix("_orig")
        if name.endswith("_orig") and f"{base}_mask" in state:
            pruned[base] = state[f"{base}_mask"].to(value.dtype) * value
        elif not (name.endswith("_mask") and f"{name.removesuffix('_mask')}_orig" in state):
            pruned[name] = value
    return pruned
