"""Check which sizes and axes work together, with the reason for each refusal; compute open sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from lightlib.errors import MisconfigurationException, check_int, owner, wrong_value
from lightlib.strategies.axes.axis import Axis


def filled(sizes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Return the sizes, with -1 replaced by the rest of `world_size`.

    Raises:
        MisconfigurationException: The sizes do not multiply to the number of processes.

    Example:
        >>> filled({"replicate": -1, "tensor": 2}, 8)
        {'replicate': 4, 'tensor': 2}
    """
    product = math.prod(size for size in sizes.values() if size != -1)
    shown = " x ".join(f"{name}={size}" for name, size in sizes.items() if size != 1) or "replicate=1"
    if -1 not in sizes.values():
        if product != world_size:
            raise MisconfigurationException(
                f"The sizes {shown} make {product} processes, but there are {world_size}.",
                expected=f"sizes whose product is devices x num_nodes = {world_size}.",
                fix=f"{owner()}(devices={product}), or -1 in place of one size.",
            )
        return dict(sizes)
    if world_size % product:
        raise MisconfigurationException(
            f"The sizes {shown} do not divide the {world_size} processes: {world_size} / {product} is no integer.",
            expected=f"fixed sizes whose product divides devices x num_nodes = {world_size}.",
            fix=f"{owner()}(devices={product * math.ceil(world_size / product)}), or smaller sizes.",
        )
    return {name: world_size // product if size == -1 else size for name, size in sizes.items()}


def check_combination(axes: Sequence[Axis]) -> None:
    """Refuse invalid sizes and names, and axes that cannot work together.

    Raises:
        ArgumentTypeError: A size is no int.
        MisconfigurationException: A size is 0 or less than -1, several are -1, two dimensions share a name, or a
            combination is refused.
    """
    for axis in axes:
        _check_size(axis)
    dimensions = in_order(axes)
    open_ones = [axis.name for axis in dimensions if axis.size == -1]
    if len(open_ones) > 1:
        raise MisconfigurationException(
            f"{' and '.join(f'{name}=-1' for name in open_ones)}: only one size can be what is left.",
            expected="-1 at most once.",
            fix=f"MeshStrategy({open_ones[0]}=-1, {open_ones[1]}=1)",
        )
    _check_names(dimensions)
    active = {axis.name: axis for axis in axes if axis.active}
    options = {option for axis in axes for option in axis.options}
    refused_by_axes = [((axis.name, name), why, fix) for axis in active.values() for name, why, fix in axis.refused]
    for together, why, fix in (*REFUSED, *refused_by_axes):
        if all(name in active or name in options for name in together):
            sized = {name for name, axis in active.items() if axis.size != 1}
            written = (f"{name}={active[name].size}" if name in sized else name for name in together)
            raise MisconfigurationException(f"{' with '.join(written)}: {why}", expected="one of the two.", fix=fix)


def in_order(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes with a dimension, outermost first."""
    return sorted((axis for axis in axes if axis.order is not None), key=lambda axis: axis.order or 0)


def _check_size(axis: Axis) -> None:
    name, size = axis.name or type(axis).__name__, axis.size
    check_int("MeshStrategy", name, size, -1, meaning=": the processes; -1 for as many as are left", example=2)
    if not size:
        raise wrong_value("MeshStrategy", name, size, "at least 1, or -1 for as many as are left", 2)


def _check_names(dimensions: Sequence[Axis]) -> None:
    name, count = Counter(axis.name for axis in dimensions).most_common(1)[0]
    if count > 1 or "" in {axis.name for axis in dimensions}:
        kinds = " and ".join(type(axis).__name__ for axis in dimensions if axis.name == ("" if count == 1 else name))
        raise MisconfigurationException(
            f"{kinds}: a dimension of the mesh named {'' if count == 1 else name!r}.",
            expected="a different name for each axis that has an `order`.",
            fix='name = "mine" in the class of the axis, or order = None for a transform.',
        )


# What is refused, why, and what to do instead. Everything else is allowed; what is tested is in docs/strategies.md.
REFUSED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("pipeline", "context"), "a stage would exchange activations of different shards of the sequence.", "context=1"),
    (("tensor", "context"), "both split the heads of attention; their product is not tested.", "context=1"),
    (("pipeline", "expert"), "experts are exchanged over data processes, which stages reach at different times.",
     "expert=1"),
    (("tensor", "expert"), "each expert is complete on one process.", "expert=1"),
    (("context", "expert"), "their product is not tested.", "expert=1"),
    (("zero", "shard"), "shard already shards the optimizer state.", "FSDPStrategy()"),
    (("zero", "tensor"), "ZeroRedundancyOptimizer does not support DTensors.", "MeshStrategy(shard=…, tensor=…)"),
    (("zero", "pipeline"), "ZeroRedundancyOptimizer needs every parameter on every process.",
     "MeshStrategy(pipeline=…, shard=…)"),
    (("zero_bubble", "compile"), "torch's zero-bubble schedules refuse compiled stages.", 'schedule="1f1b"'),
)  # fmt: skip
