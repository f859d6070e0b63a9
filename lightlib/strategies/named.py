"""The strategies that have a name: what ``Trainer(strategy="…")`` stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from lightlib.strategies.presets import (
    DDPStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    PipelineStrategy,
    TensorParallelStrategy,
)
from lightlib.strategies.strategy import Strategy

__all__ = ["strategy"]

_Method = Literal["popen", "spawn", "fork"]
_METHODS: dict[str, _Method] = {"": "popen", "_spawn": "spawn", "_fork": "fork", "_notebook": "fork"}


def _ddp(method: _Method, unused: bool) -> Callable[[], Strategy]:
    return lambda: DDPStrategy(start_method=method, find_unused_parameters=unused)


_NAMED: dict[str, Callable[[], Strategy]] = {
    **{f"ddp{how}": _ddp(method, False) for how, method in _METHODS.items()},
    **{f"ddp{how}_find_unused_parameters_false": _ddp(method, False) for how, method in _METHODS.items()},
    **{f"ddp{how}_find_unused_parameters_true": _ddp(method, True) for how, method in _METHODS.items()},
    "fsdp": FSDPStrategy,
    "fsdp_cpu_offload": lambda: FSDPStrategy(cpu_offload=True),
    "hsdp": lambda: FSDPStrategy(sharding_strategy="HYBRID_SHARD"),
    "model_parallel": ModelParallelStrategy,
    "pipeline": PipelineStrategy,
    "tensor": TensorParallelStrategy,
    "zero1": lambda: DDPStrategy(zero=True),
}


def strategy(name: str) -> Strategy:
    """Return a new strategy with the options that its name stands for.

    Example:
        >>> type(strategy("zero1")).__name__
        'DDPStrategy'
    """
    return _NAMED[name]()
