"""Private functions and classes of Lightning that projects import: processes, files, modules, tests."""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from packaging.version import Version
from torch import Tensor, nn

from lightlib import report, torch_private
from lightlib.accelerators import MPSAccelerator
from lightlib.errors import ArgumentTypeError
from lightlib_lightning.internals import flags
from lightlib_lightning.internals.served import Served

__all__ = [
    "METADATA_FILENAME", "MockOptimizer", "NotYetLoadedTensor", "ResultMetric", "Sharded", "Stateful",
    "SubprocessScriptLauncher", "all_reduce", "all_reduce_if_initialized", "apply_filter", "backend_for",
    "check_keys", "checkpoint_activations", "defaults_from_environment", "full_state_dict", "init_connection",
    "is_dir", "is_initialized", "is_local", "lazy_load", "materialize", "move_state", "rank_from_environment",
    "reasons_to_skip",
]  # fmt: skip

METADATA_FILENAME = "meta.pt"
_Key = TypeVar("_Key")


class ResultMetric(Served):
    """`_ResultMetric`: a logged value in Lightning. lightlib keeps its own, and none of them is an instance."""


class SubprocessScriptLauncher(Served):
    """`_SubprocessScriptLauncher`: starts the script once per device. lightlib's launchers are no instances of it."""


class NotYetLoadedTensor(Served):
    """`_NotYetLoadedTensor`: a tensor of `_lazy_load`. Here those are real tensors, in a file that is mapped."""


@runtime_checkable
class Stateful(Protocol[_Key]):
    """`_Stateful`: an object with `state_dict` and `load_state_dict`."""

    def state_dict(self) -> dict[_Key, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[_Key, Any]) -> None:
        """Load a state."""
        ...


class Sharded(ABC):
    """`_Sharded`: interface of strategies that shard parameters while they are made."""

    @abstractmethod
    def module_sharded_context(self) -> AbstractContextManager[Any]:
        """Return the context in which layers are made."""


class MockOptimizer(torch.optim.Optimizer):
    """`_MockOptimizer`: an optimizer that does nothing; schedules are tried on it."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Do nothing."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call the closure."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing."""

    def __repr__(self) -> str:
        return "No Optimizer"


# processes
def is_initialized() -> bool:
    """Whether there is a process group: `_distributed_is_initialized`."""
    return dist.is_available() and dist.is_initialized()


def all_reduce_if_initialized(result: Tensor, group: Any = None, reduce_op: Any = None) -> Tensor:
    """Reduce a tensor over processes, in place; with one process return it as it is: `_sync_ddp_if_available`."""
    return all_reduce(result, group, reduce_op) if is_initialized() else result


def all_reduce(result: Tensor, group: Any = None, reduce_op: Any = None) -> Tensor:
    """Reduce a tensor over processes, in place: `_sync_ddp`.

    Args:
        reduce_op: One of torch's, or its name; ``"avg"`` and ``"mean"`` are the mean. Default: the sum.
    """
    group = dist.group.WORLD if group is None else group
    mean = isinstance(reduce_op, str) and reduce_op.lower() in ("avg", "mean")
    if isinstance(reduce_op, str):
        reduce_op = dist.ReduceOp.SUM if mean else getattr(dist.ReduceOp, reduce_op.upper())
    dist.barrier(group=group)
    dist.all_reduce(result, dist.ReduceOp.SUM if reduce_op is None else reduce_op, group)
    return result.copy_(result / dist.get_world_size(group)) if mean else result


def init_connection(
    cluster_environment: Any, torch_distributed_backend: str, global_rank: int | None = None,
    world_size: int | None = None, **kwargs: Any,
) -> None:  # fmt: skip
    """Join the process group, with the address of an environment: `_init_dist_connection`."""
    if is_initialized():
        return
    os.environ["MASTER_ADDR"] = str(cluster_environment.main_address)
    os.environ["MASTER_PORT"] = str(cluster_environment.main_port)
    rank = cluster_environment.global_rank() if global_rank is None else global_rank
    size = cluster_environment.world_size() if world_size is None else world_size
    dist.init_process_group(torch_distributed_backend, rank=rank, world_size=size, **kwargs)


def backend_for(device: torch.device) -> str:
    """Return torch's backend of a device: `_get_default_process_group_backend_for_device`."""
    return str(dist.Backend.default_device_backend_map.get(device.type, "gloo"))


def rank_from_environment() -> int | None:
    """Return the rank that a launcher has set; None without one: `_get_rank`."""
    ranks = (os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"))
    return next((int(rank) for rank in ranks if rank is not None), None)


def defaults_from_environment(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let an `__init__` read arguments that it is not given from ``PL_TRAINER_<ARGUMENT>``: `_defaults_from_env_vars`.

    `TRAINER` is the name of the class, in capitals. eva and ptlflow decorate their subclasses of `Trainer`.
    """

    @functools.wraps(function)
    def filled(self: Any, *args: Any, **kwargs: Any) -> Any:
        names = tuple(inspect.signature(type(self)).parameters)
        variables = {name: os.environ.get(f"PL_{type(self).__name__}_{name}".upper(), "") for name in names}
        found = {name: _literal(text) for name, text in variables.items() if text}
        return function(self, **{**found, **dict(zip(names, args, strict=False)), **kwargs})

    return filled


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# files
def is_local(path: Any) -> bool:
    """Whether a path is on a disk, and on no object store: `_is_local_file_protocol`."""
    from fsspec.utils import get_protocol  # optional: fsspec

    return bool(get_protocol(os.fspath(path)) == "file")


def is_dir(fs: Any, path: Any, strict: bool = False) -> bool:
    """Whether a path is, or on an object store can become, a folder: `_is_dir`."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    creates_folders = protocols & {"s3", "gs", "gcs", "abfs", "az", "adl"} and not strict
    return not fs.isfile(path) if creates_folders else bool(fs.isdir(path))


def lazy_load(filename: Any) -> Any:
    """Return the content of a file of torch; its tensors are read when they are used: `_lazy_load`."""
    if not os.path.isfile(filename):
        raise FileNotFoundError(f"Path {str(filename)!r} does not exist or is not a file.")
    return torch.load(filename, map_location="cpu", mmap=True, weights_only=True)


def move_state(source: dict[str, Any], destination: dict[str, Any], keys: set[str] | None = None) -> None:
    """Move entries of `source` to `destination`, into its objects with `load_state_dict`: `_move_state_into`."""
    for key in set(source) if keys is None else keys & set(source):
        state = source.pop(key)
        if isinstance(destination.get(key), Stateful):
            destination[key].load_state_dict(state)
        else:
            destination[key] = state


def apply_filter(
    key: str,
    filter: Mapping[str, Callable[[str, Any], bool]],  # noqa: A002  Lightning's name
    source_dict: object,
    target_dict: dict[str, Any],
) -> None:
    """Store an entry of a state, without the values that its filter leaves out: `_apply_filter`."""
    if key not in filter or not isinstance(source_dict, dict):
        target_dict[key] = source_dict
    elif kept := {name: value for name, value in source_dict.items() if filter[key](name, value)}:
        target_dict.setdefault(key, {}).update(kept)


def check_keys(requested_keys: Iterable[str], checkpoint_keys: Iterable[str], strict: bool) -> None:
    """Raise if a key is not in a checkpoint: `_validate_keys_for_strict_loading`.

    Raises:
        KeyError: `strict`, and a key is missing.
    """
    missing = [key for key in requested_keys if key not in checkpoint_keys]
    if strict and missing:
        raise KeyError(
            f"The requested state contains a key {missing[0]!r} that does not exist in the loaded checkpoint. "
            "To disable strict loading, set `strict=False`."
        )


# modules
def materialize(module: nn.Module, device: Any) -> None:
    """Allocate the parameters on the meta device, and initialize them: `_materialize_meta_tensors`."""
    for part in module.modules():
        tensors = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        if any(tensor.is_meta for tensor in tensors):
            reset = getattr(part, "reset_parameters", None)
            if reset is None:
                raise ArgumentTypeError(
                    f"{type(part).__name__} has parameters on the meta device and no reset_parameters.",
                    expected="a method reset_parameters, which initializes them.",
                    fix="add the method, or make the module on a real device.",
                )
            part.to_empty(device=device, recurse=False)
            reset()


def checkpoint_activations(module: nn.Module, activation_checkpointing_kwargs: Mapping[str, Any]) -> None:
    """Checkpoint activations by the arguments of torch's function: `_setup_activation_checkpointing`."""
    if activation_checkpointing_kwargs and not torch_private.checkpoint_activations(
        module, activation_checkpointing_kwargs
    ):
        report.warn(
            "FSDP checkpointing is configured, but the model already contains checkpointed layers.\n"
            "  Expected: a model without them.\n  Fix: remove the layers or the argument; the argument is ignored."
        )


def full_state_dict(module: nn.Module, world_size: int, rank0_only: bool = True) -> Any:  # noqa: ARG001
    """Return the context in which torch's FSDP 1 gives complete states: `_get_full_state_dict_context`."""
    from torch.distributed.fsdp import (
        FullStateDictConfig,
        FullyShardedDataParallel,
        StateDictType,
    )  # optional: as above
    from torch.distributed.fsdp.api import FullOptimStateDictConfig  # optional: as above

    return FullyShardedDataParallel.state_dict_type(
        module,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(offload_to_cpu=True, rank0_only=rank0_only),
        FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=rank0_only),
    )


# tests
def reasons_to_skip(
    *,
    min_cuda_gpus: int = 0, min_torch: str | None = None, max_torch: str | None = None, min_python: str | None = None,
    bf16_cuda: bool = False, tpu: bool = False, mps: bool | None = None, skip_windows: bool = False,
    standalone: bool = False, deepspeed: bool = False, dynamo: bool = False,  # noqa: ARG001  torch has it everywhere
    linux_only: bool = False,
) -> tuple[list[str], dict[str, bool]]:  # fmt: skip
    """Return the requirements of a test that this machine lacks, and the marks of the test: `_runif_reasons`."""
    from lightning_utilities.core.imports import compare_version  # optional: lightning-utilities

    gpus, version = torch.cuda.device_count(), torch.__version__
    reasons = {
        f"GPUs>={min_cuda_gpus}": gpus < min_cuda_gpus,
        f"torch>={min_torch}, {version} installed": min_torch
        and compare_version("torch", operator.lt, min_torch, True),
        f"torch<{max_torch}, {version} installed": max_torch and compare_version("torch", operator.ge, max_torch, True),
        f"python>={min_python}": min_python and Version(platform.python_version()) < Version(min_python),
        "CUDA device bf16": bf16_cuda and not (gpus and torch.cuda.is_bf16_supported()),
        "unimplemented on Windows": skip_windows and sys.platform == "win32",
        "TPU": tpu,
        "MPS": mps is True and not MPSAccelerator.is_available(),
        "not MPS": mps is False and MPSAccelerator.is_available(),
        "Standalone execution": standalone and os.environ.get("PL_RUN_STANDALONE_TESTS", "0") != "1",
        "Deepspeed": deepspeed and not flags._DEEPSPEED_AVAILABLE,  # noqa: SLF001  Lightning's name
        "only linux": linux_only and sys.platform != "linux",
    }
    marks = {"min_cuda_gpus": bool(min_cuda_gpus), "tpu": tpu, "standalone": standalone}
    return [reason for reason, lacks in reasons.items() if lacks], {
        name: True for name, is_marked in marks.items() if is_marked
    }
