"""Strategies: how one module trains on its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.strategies.activation_checkpoint import ActivationCheckpoint
    from lightlib.strategies.axis import Axis, Site
    from lightlib.strategies.collectives import Collectives
    from lightlib.strategies.compile import Compile
    from lightlib.strategies.context import Context
    from lightlib.strategies.deepspeed import DeepSpeedStrategy
    from lightlib.strategies.expert import Expert
    from lightlib.strategies.mesh import MeshStrategy
    from lightlib.strategies.pipeline import Pipeline
    from lightlib.strategies.plan import ParallelPlan
    from lightlib.strategies.presets import (
        DDPStrategy,
        FSDPStrategy,
        ModelParallelStrategy,
        PipelineStrategy,
        TensorParallelStrategy,
    )
    from lightlib.strategies.replicate import Replicate
    from lightlib.strategies.shard import Shard
    from lightlib.strategies.single import SingleDeviceStrategy
    from lightlib.strategies.strategy import Strategy
    from lightlib.strategies.tensor import Tensor

__all__ = [
    "ActivationCheckpoint",
    "Axis",
    "Collectives",
    "Compile",
    "Context",
    "DDPStrategy",
    "DeepSpeedStrategy",
    "Expert",
    "FSDPStrategy",
    "MeshStrategy",
    "ModelParallelStrategy",
    "ParallelPlan",
    "Pipeline",
    "PipelineStrategy",
    "Replicate",
    "Shard",
    "SingleDeviceStrategy",
    "Site",
    "Strategy",
    "Tensor",
    "TensorParallelStrategy",
]

_PRESETS = ("DDPStrategy", "FSDPStrategy", "ModelParallelStrategy", "PipelineStrategy", "TensorParallelStrategy")
_get, _names = lazy.attributes(
    __name__,
    {
        "ActivationCheckpoint": "activation_checkpoint",
        "Axis": "axis",
        "Collectives": "collectives",
        "Compile": "compile",
        "Context": "context",
        "DeepSpeedStrategy": "deepspeed",
        "Expert": "expert",
        "MeshStrategy": "mesh",
        "ParallelPlan": "plan",
        "Pipeline": "pipeline",
        "Replicate": "replicate",
        "Shard": "shard",
        "SingleDeviceStrategy": "single",
        "Site": "axis",
        "Strategy": "strategy",
        "Tensor": "tensor",
        **dict.fromkeys(_PRESETS, "presets"),
    },
)

if not TYPE_CHECKING:  # for type checkers there are the names above and no others
    __getattr__, __dir__ = _get, _names
