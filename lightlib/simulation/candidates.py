"""Candidates: the strategies that a plan compares, with the line of a configuration for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightlib.errors import UnknownNameError
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.mesh_presets import named
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib.strategies.strategy import Strategy

FAMILIES = ("ddp", "zero1", "fsdp", "hsdp", "tensor", "pipeline")
_CHECKPOINTED = ("single_device", "ddp", "fsdp", "hsdp")


@dataclass(frozen=True)
class Candidate:
    """A strategy for a number of processes.

    Attributes:
        label: For the table, such as ``"pipeline 2, shard 4"``.
        strategy: The value of the Trainer's argument in a configuration file: a name, or a class with arguments.
        make: Returns a new one.
        readers: The processes that read different data.
        stages: The stages of a pipeline.
        ranks: The processes to simulate: one, or one for each stage.
        shares: Over how many processes parameters, gradients and optimizer state are divided.
    """

    label: str
    strategy: str
    make: Callable[[], Strategy]
    readers: int = 1
    stages: int = 1
    ranks: tuple[int, ...] = (0,)
    shares: tuple[int, int, int] = (1, 1, 1)

    @property
    def yaml(self) -> str:
        """The line of a configuration file."""
        return f"trainer: {{strategy: {self.strategy}}}"


def candidates(devices: int, nodes: int, families: Sequence[str] = FAMILIES) -> list[Candidate]:
    """Return the strategies to compare, in the order in which they are preferred if they fit.

    Args:
        devices, nodes: Processes of each machine, and machines.
        families: Some of `FAMILIES`.

    Raises:
        UnknownNameError: There is no such family.

    Example:
        >>> [one.label for one in candidates(4, 1, ["ddp", "tensor", "pipeline"])]
        ['ddp', 'tensor 4', 'tensor 2, shard 2', 'pipeline 4', 'pipeline 2, shard 2', 'ddp + checkpointing']
    """
    for name in families:
        if name not in FAMILIES:
            raise UnknownNameError("strategy of a plan", name, FAMILIES, fix="--strategies fsdp,tensor")
    size = devices * nodes
    if size == 1:
        return [_single(False), _single(True)]
    sizes = [
        sizes_of_mesh for name in FAMILIES if name in families for sizes_of_mesh in _sizes_of(name, devices, nodes)
    ]
    plain = [_meshed(sizes_of_mesh, False) for sizes_of_mesh in sizes]
    again = [_meshed(sizes_of_mesh, True) for sizes_of_mesh in sizes if sizes_of_mesh.family in _CHECKPOINTED]
    return [*plain, *again]


@dataclass(frozen=True)
class _Sizes:
    family: str
    sizes: Mapping[str, int] = field(default_factory=dict)


def _sizes_of(family: str, devices: int, nodes: int) -> list[_Sizes]:
    """Return the sizes of the dimensions for one kind of strategy; tensor parallelism stays within a machine."""
    size = devices * nodes
    if family in ("ddp", "zero1", "fsdp"):
        return [_Sizes(family, {"shard" if family == "fsdp" else "replicate": size})]
    if family == "hsdp":
        copies = nodes if nodes > 1 else 2
        return [_Sizes(family, {"replicate": copies, "shard": size // copies})] if size // copies > 1 else []
    if family == "tensor":
        inner = [divisor for divisor in (devices, devices // 2) if divisor > 1 and size % divisor == 0]
        return [
            _Sizes(family, _without_ones({"tensor": divisor, "shard": size // divisor}))
            for divisor in dict.fromkeys(inner)
        ]
    stages = [divisor for divisor in (nodes, devices, 2) if divisor > 1 and size % divisor == 0]
    return [
        _Sizes(family, _without_ones({"pipeline": divisor, "shard": size // divisor}))
        for divisor in dict.fromkeys(stages)
    ]


def _without_ones(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size > 1}


def _single(checkpointing: bool) -> Candidate:
    if not checkpointing:
        return Candidate("single_device", "single_device", SingleDeviceStrategy)
    strategy = "{class_path: lightlib.strategies.SingleDeviceStrategy, init_args: {activation_checkpointing: true}}"
    make = lambda: SingleDeviceStrategy(activation_checkpointing=True)  # noqa: E731
    return Candidate("single_device + checkpointing", strategy, make)


def _meshed(sizes: _Sizes, checkpointing: bool) -> Candidate:
    size = 1
    for length in sizes.sizes.values():
        size *= length
    stages = sizes.sizes.get("pipeline", 1)
    readers = size // stages // sizes.sizes.get("tensor", 1)
    ranks = tuple(stage * (size // stages) for stage in range(stages))
    divided = size // sizes.sizes.get("replicate", 1)
    shares = (1, 1, size) if sizes.family == "zero1" else (divided, divided, divided)
    named_alone = sizes.family in ("ddp", "zero1", "fsdp")
    label = sizes.family if named_alone else ", ".join(f"{name} {length}" for name, length in sizes.sizes.items())
    if named_alone and not checkpointing:
        return Candidate(label, sizes.family, lambda: named(sizes.family), readers, shares=shares)
    options: dict[str, Any] = {**sizes.sizes, **({"activation_checkpointing": True} if checkpointing else {})}
    written = ", ".join(f"{key}: {str(value).lower()}" for key, value in options.items())
    strategy = f"{{class_path: lightlib.strategies.MeshStrategy, init_args: {{{written}}}}}"
    label += " + checkpointing" * checkpointing
    return Candidate(label, strategy, lambda: MeshStrategy(**options), readers, stages, ranks, shares)
