"""Axis: one way of spreading a module over processes, or one transform; and its site."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lightlib.precision.precision import Precision
from lightlib.strategies.axes.plan import ParallelPlan
from lightlib.strategies.group.collectives import Collectives

__all__ = ["NAMES", "Axis", "AxisContext", "Step"]

Step = Callable[..., Any]
NAMES = ("pipeline", "replicate", "shard", "context", "tensor")  # of the mesh's dimensions, slowest link outermost


@dataclass
class AxisContext:
    """What an axis may read while it works on a module.

    Attributes:
        mesh: The whole mesh, with the dimensions of :data:`NAMES`; those of size 1 are there as well.
        device: The device of this process.
        precision: Which dtype is used where.
        plan: What the module says about itself.
        names: The names of all parameters, in the module's order, before any axis changed it.
        collectives: All processes.
        sizes: The size of each dimension by name.
        sync_batchnorm: Whether the Trainer asked for it.
        automatic: Whether the run optimizes automatically (no `manual_backward`).
        pipelined: The part of the module that a pipeline has cut, which the others call as a whole.
        elsewhere: Modules that are shared out over other dimensions than the rest, each with its mesh.
        tell, hear: As in :class:`Strategy`: read when they are called, for they are set after `apply`.
    """

    mesh: DeviceMesh
    device: torch.device
    precision: Precision
    plan: ParallelPlan
    names: list[str]
    collectives: Collectives
    sizes: dict[str, int]
    automatic: bool = True
    casts: bool = False
    pipelined: nn.Module | None = None
    elsewhere: list[tuple[list[nn.Module], DeviceMesh]] = field(default_factory=list)
    tell: Callable[[], Any] = field(default=lambda: None)
    hear: Callable[[Any], None] = field(default=lambda told: None)

    @property
    def context(self) -> Callable[[], AbstractContextManager[Any]] | None:
        """What makes the context of a forward pass (autocast or a default dtype); None when none is needed."""
        return None if self.casts and self.precision.autocasts else self.precision.forward_context(self.device.type)

    def coordinate(self, name: str) -> int:
        """Return the place of this process along one dimension."""
        return self.mesh[name].get_local_rank()


class Axis:
    """One dimension of the mesh, or one transform. It answers three questions; the defaults change nothing.

    Attributes:
        name: The dimension of the mesh; empty for a transform.
        size: How many processes it spreads over; -1: as many as are left.
        casts: Whether this axis applies the precision by itself, so that autocast is off.
        lockstep: Whether evaluation needs every process in each forward.
    """

    name: str = ""
    size: int = 1
    casts: bool = False
    lockstep: bool = False

    def check(self, module: nn.Module, site: AxisContext) -> None:
        """Refuse a module that this axis cannot spread. Nothing has been changed yet."""

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        """Change the module in place."""

    def enter(self, name: str, method: Step) -> Step:
        """Return how the step `name` of the module is called, given how it is called so far."""
        return method

    def around(self, step: Step) -> Step:
        """Return what runs a batch: ``step(batch, batch_idx, backward, sync)``, given what runs it so far."""
        return step

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on needs of this axis, beside the states of module and optimizers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned, on every process and before the first batch."""

    def teardown(self) -> None:
        """Put away what belongs to one run."""
