"""Which sizes and axes go together: the arithmetic of the mesh, and what is refused and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightlib.errors import ArgumentTypeError, MisconfigurationException

__all__ = ["check_combination", "filled"]


def filled(sizes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Return the sizes with -1 replaced by what is left of `world_size`.

    Raises:
        MisconfigurationException: The sizes do not multiply to the number of processes.

    Example:
        >>> filled({"replicate": -1, "tensor": 2}, 8)
        {'replicate': 4, 'tensor': 2}
    """
    known = math.prod(size for size in sizes.values() if size != -1)
    shown = " x ".join(f"{name}={size}" for name, size in sizes.items() if size != 1) or "replicate=1"
    if -1 not in sizes.values():
        if known != world_size:
            raise MisconfigurationException(
                f"The sizes {shown} make {known} processes, but there are {world_size}.",
                expected=f"sizes whose product is devices x num_nodes = {world_size}.",
                fix=f"Trainer(devices={known}), or -1 in place of one size.",
            )
        return dict(sizes)
    if world_size % known:
        raise MisconfigurationException(
            f"The sizes {shown} do not divide the {world_size} processes: {world_size} / {known} is no whole number.",
            expected=f"fixed sizes whose product divides devices x num_nodes = {world_size}.",
            fix=f"Trainer(devices={known * math.ceil(world_size / known)}), or smaller sizes.",
        )
    return {name: world_size // known if size == -1 else size for name, size in sizes.items()}


def check_combination(axes: Mapping[str, Any], expert: Any, checkpointing: Any, compiled: Any) -> None:
    """Refuse sizes that are no sizes, and axes that cannot work together.

    Raises:
        ArgumentTypeError: A size is no int.
        MisconfigurationException: A size is 0 or less than -1, several are -1, or a combination is refused.
    """
    for name, axis in {**axes, "expert": expert}.items():
        size = axis.size
        if isinstance(size, bool) or not isinstance(size, int):
            raise ArgumentTypeError(
                f"{name}={size!r} ({type(size).__name__}).",
                expected="an int: how many processes; -1 for as many as are left.",
                fix=f"MeshStrategy({name}=2)",
            )
        if size < 1 and size != -1:
            raise MisconfigurationException(
                f"{name}={size}.", expected="at least 1, or -1 for as many as are left.", fix=f"MeshStrategy({name}=2)"
            )
    open_ones = [name for name, axis in axes.items() if axis.size == -1]
    if len(open_ones) > 1:
        raise MisconfigurationException(
            f"{' and '.join(f'{name}=-1' for name in open_ones)}: only one size can be what is left.",
            expected="-1 at most once.",
            fix=f"MeshStrategy({open_ones[0]}=-1, {open_ones[1]}=1)",
        )
    sizes = {name: axis.size for name, axis in axes.items()} | {"expert": expert.size}
    options = {
        "checkpointing": checkpointing is not False,
        "compile": compiled is not False,
        "zero": bool(getattr(axes["replicate"], "zero", False)),
        "zero_bubble": bool(getattr(axes["pipeline"], "zero_bubble", False)),
    }
    for together, why, fix in REFUSED:
        if all(options.get(one, False) or sizes.get(one, 1) != 1 for one in together):
            named = " with ".join(f"{one}={sizes[one]}" if one in sizes else one for one in together)
            raise MisconfigurationException(f"{named}: {why}", expected="one of the two.", fix=fix)


# What is refused, why, and what to do instead. Everything else is allowed; what is tested is in docs/strategies.md.
REFUSED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("pipeline", "context"), "a stage would exchange activations of different parts of the sequence.", "context=1"),
    (("tensor", "context"), "both split the heads of attention; their product is not tested.", "context=1"),
    (("pipeline", "expert"), "experts are exchanged over data processes, which stages reach at different times.",
     "expert=1"),
    (("tensor", "expert"), "experts are whole on one process each.", "expert=1"),
    (("context", "expert"), "their product is not tested.", "expert=1"),
    (("zero", "shard"), "shard shares out the optimizer state already.", "FSDPStrategy()"),
    (("zero", "tensor"), "ZeroRedundancyOptimizer knows no DTensors.", "MeshStrategy(shard=…, tensor=…)"),
    (("zero", "pipeline"), "ZeroRedundancyOptimizer needs every parameter on every process.",
     "MeshStrategy(pipeline=…, shard=…)"),
    (("zero_bubble", "compile"), "torch's zero-bubble schedules refuse compiled stages.", 'schedule="1f1b"'),
)  # fmt: skip
