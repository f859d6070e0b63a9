"""Names to classes: a built-in table first, then the entry points of installed packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from lightlib.errors import MisconfigurationException, UnknownNameError, closest

__all__ = ["BUILT_IN", "get", "names"]

BUILT_IN: dict[str, dict[str, str]] = {
    "accelerators": {
        "cpu": "lightlib.accelerators.cpu:CPUAccelerator",
        "cuda": "lightlib.accelerators.cuda:CUDAAccelerator",
        "mps": "lightlib.accelerators.mps:MPSAccelerator",
    },
    "strategies": {
        "single_device": "lightlib.strategies.single:SingleDeviceStrategy",
        **{
            f"ddp{how}{unused}": "lightlib.strategies.named:strategy"
            for how in ("", "_spawn", "_fork", "_notebook")
            for unused in ("", "_find_unused_parameters_false", "_find_unused_parameters_true")
        },
        **dict.fromkeys(
            ("fsdp", "fsdp_cpu_offload", "hsdp", "model_parallel", "pipeline", "tensor", "zero1"),
            "lightlib.strategies.named:strategy",
        ),
        **dict.fromkeys(
            (
                "deepspeed",
                *(f"deepspeed_stage_{stage}" for stage in ("1", "2", "2_offload", "3", "3_offload", "3_offload_nvme")),
            ),
            "lightlib.strategies.named:strategy",
        ),
    },
    "precision": dict.fromkeys(
        ("64-true", "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"), "lightlib.precision.precision:named"
    ),
    "loggers": {
        "tensorboard": "lightlib.loggers.tensorboard:TensorBoardLogger",
        "csv": "lightlib.loggers.csv:CSVLogger",
        "wandb": "lightlib.loggers.wandb:WandbLogger",
        "mlflow": "lightlib.loggers.mlflow:MLFlowLogger",
        "comet": "lightlib.loggers.comet:CometLogger",
    },
    "callbacks": {},
    "environments": {
        "kubeflow": "lightlib.launch.clusters:kubeflow",
        "local": "lightlib.launch.environment:local",
        "lsf": "lightlib.launch.clusters:lsf",
        "mpi": "lightlib.launch.clusters:mpi",
        "slurm": "lightlib.launch.clusters:slurm",
        "torchrun": "lightlib.launch.clusters:torchrun",
        "variables": "lightlib.launch.clusters:by_hand",
    },
}


def get(group: str, name: str) -> Callable[..., Any]:
    """Return the class or function that `name` stands for in `group`.

    Args:
        group: One of the keys of :data:`BUILT_IN`; also the suffix of the entry-point group ``lightlib.<group>``.
        name: A built-in name or the name of an entry point.

    Raises:
        UnknownNameError: Nothing has this name; the message lists the known ones and the nearest.
        MisconfigurationException: An installed package declares a name that is built in, or two packages declare it.

    Example:
        >>> get("accelerators", "cpu").__name__
        'CPUAccelerator'
    """
    built_in, plugins = BUILT_IN[group], _plugins(group)
    if name in built_in:
        found = _import(built_in[name])
        return partial(found, name) if group == "strategies" and not isinstance(found, type) else found
    if name in plugins:
        loaded: Callable[..., Any] = plugins[name].load()
        return loaded
    kind = "strategy" if group == "strategies" else group.removesuffix("s")
    near = closest(name, names(group))
    raise UnknownNameError(kind, name, names(group), fix=f"Trainer({kind}={near!r})" if near else "")


def names(group: str) -> list[str]:
    """Return all names known in `group`, sorted."""
    return sorted({*BUILT_IN[group], *_plugins(group)})


def _plugins(group: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"lightlib.{group}"):
        other = found.get(point.name)
        if point.name in BUILT_IN[group] or (other is not None and other.value != point.value):
            taken = BUILT_IN[group].get(point.name) or (other.value if other else "")
            raise MisconfigurationException(
                f"The entry point {point.name!r} = {point.value!r} of group 'lightlib.{group}' has a name that is "
                f"taken by {taken!r}.",
                expected="a name of its own for every plugin.",
                fix="rename the entry point in the package that declares it, or uninstall that package.",
            )
        found[point.name] = point
    return found


def _import(path: str) -> Callable[..., Any]:
    module, _, attribute = path.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return loaded
