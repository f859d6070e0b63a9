"""Presets of MeshStrategy, which only translate their arguments, and the names of strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from lightlib.errors import MisconfigurationException, UnknownNameError, check_word
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.axes.shard import Shard
from lightlib.strategies.axes.tensor.tensor_axis import Tensor
from lightlib.strategies.axes.transforms import ActivationCheckpoint
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.pipeline.pipeline_axis import Pipeline
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from torch.distributed.fsdp import ShardingStrategy

__all__ = [
    "DDPStrategy",
    "FSDPStrategy",
    "ModelParallelStrategy",
    "PipelineStrategy",
    "TensorParallelStrategy",
    "named",
]

_FORMATS: dict[str, Literal["file", "directory"]] = {"full": "file", "sharded": "directory"}
_RESHARDS = {"FULL_SHARD": None, "SHARD_GRAD_OP": False, "HYBRID_SHARD": None, "_HYBRID_SHARD_ZERO2": False}


class DDPStrategy(MeshStrategy):
    """A replica of the module on every process, each with its own shard of the data.

    Args:
        ddp_comm_hook, ddp_comm_state, ddp_comm_wrapper: How gradients are sent; see :class:`Replicate`.
        process_group_backend: Default: what suits the device.
        timeout: Default: 30 minutes.
        start_method: ``"popen"`` (the program is run again), ``"spawn"``, ``"fork"`` or ``"forkserver"``.
        zero: Shard the optimizer's state (ZeRO stage 1). Default False.
        activation_checkpointing: True, or an ActivationCheckpoint: activations are computed again in backward.
        kwargs: Arguments of DistributedDataParallel: ``find_unused_parameters``, ``static_graph``,
            ``bucket_cap_mb``, ``gradient_as_bucket_view``, …

    Example:
        >>> DDPStrategy(find_unused_parameters=True).sizes["replicate"]
        -1
    """

    def __init__(
        self,
        *,
        ddp_comm_hook: Literal["bf16", "fp16", "powersgd"] | Callable[..., Any] | None = None,
        ddp_comm_state: Any = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        start_method: Literal["popen", "subprocess", "spawn", "fork", "forkserver"] = "popen",
        zero: bool = False,
        activation_checkpointing: bool | ActivationCheckpoint = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            replicate=Replicate(
                -1,
                comm_hook=ddp_comm_hook,
                comm_state=ddp_comm_state,
                comm_wrapper=ddp_comm_wrapper,
                zero=zero,
                **kwargs,
            ),
            activation_checkpointing=activation_checkpointing,
            timeout=timeout,
            process_group_backend=process_group_backend,
            launcher="subprocess" if start_method == "popen" else start_method,
        )


class FSDPStrategy(MeshStrategy):
    """Every process keeps a shard of parameters, gradients and optimizer state (FSDP2).

    Args:
        sharding_strategy: ``"FULL_SHARD"`` (default), ``"SHARD_GRAD_OP"`` (parameters stay gathered until backward),
            ``"HYBRID_SHARD"`` (replicas, each sharded).
        device_mesh: For ``"HYBRID_SHARD"``: ``(replicas, shards)``. Default: 2 replicas.
        auto_wrap_policy: Names of blocks with wildcards, a set of module classes, or ``(name, module) -> bool``.
        activation_checkpointing: True, or an ActivationCheckpoint.
        activation_checkpointing_policy: A set of module classes whose activations are computed again.
        cpu_offload: Keep the parts on the CPU. Default False.
        mixed_precision: ``(compute dtype, reduce dtype)`` in place of the Trainer's precision.
        reshard_after_forward: In place of that of `sharding_strategy`.
        meta: Build in `configure_model` without memory.
        state_dict_type: ``"full"`` (default): checkpoints are files, gathered on the first process; ``"sharded"``: they
            are directories, into which every process writes its part. Either is read by any strategy.
        process_group_backend, timeout: As in DDPStrategy.

    Raises:
        MisconfigurationException: An argument has another value, or the sizes do not fit.

    Example:
        >>> FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(2, 4)).sizes["shard"]
        4
    """

    def __init__(
        self,
        *,
        sharding_strategy: Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"] | ShardingStrategy = "FULL_SHARD",
        device_mesh: tuple[int, int] | None = None,
        auto_wrap_policy: Sequence[str] | set[type[nn.Module]] | Callable[[str, nn.Module], bool] | None = None,
        activation_checkpointing: bool | ActivationCheckpoint = False,
        activation_checkpointing_policy: set[type[nn.Module]] | None = None,
        cpu_offload: bool = False,
        mixed_precision: tuple[torch.dtype, torch.dtype] | None = None,
        reshard_after_forward: bool | int | None = None,
        meta: bool = False,
        state_dict_type: Literal["full", "sharded"] = "full",
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
    ) -> None:
        check_word("FSDPStrategy", "state_dict_type", state_dict_type, _FORMATS, example="sharded")
        name = str(getattr(sharding_strategy, "name", sharding_strategy)).upper()
        if name not in _RESHARDS:
            fix = "FSDPStrategy(sharding_strategy='FULL_SHARD'); for 'NO_SHARD' use strategy='ddp'."
            raise UnknownNameError("sharding_strategy", sharding_strategy, _RESHARDS, fix=fix)
        hybrid = "HYBRID" in name
        if device_mesh is not None and not hybrid:
            raise MisconfigurationException(
                f"FSDPStrategy(device_mesh={device_mesh!r}, sharding_strategy={sharding_strategy!r}).",
                expected="device_mesh together with sharding_strategy='HYBRID_SHARD'.",
                fix=f"FSDPStrategy(sharding_strategy='HYBRID_SHARD', device_mesh={device_mesh!r})",
            )
        copies, parts = device_mesh or ((2, -1) if hybrid else (1, -1))
        if activation_checkpointing_policy is not None:
            activation_checkpointing = ActivationCheckpoint(blocks=_of_classes(activation_checkpointing_policy))
        blocks = _of_classes(auto_wrap_policy) if isinstance(auto_wrap_policy, (set, frozenset)) else auto_wrap_policy
        super().__init__(
            replicate=copies,
            shard=Shard(
                parts,
                blocks=blocks,
                reshard_after_forward=_RESHARDS[name] if reshard_after_forward is None else reshard_after_forward,
                cpu_offload=cpu_offload,
                param_dtype=mixed_precision[0] if mixed_precision else None,
                reduce_dtype=mixed_precision[1] if mixed_precision else None,
                meta=meta,
            ),
            activation_checkpointing=activation_checkpointing,
            checkpoint_format=_FORMATS[state_dict_type],
            process_group_backend=process_group_backend,
            timeout=timeout,
        )


class TensorParallelStrategy(MeshStrategy):
    """Tensor parallelism: each process has a shard of every matrix; `options` are those of the `Tensor` axis.

    Args:
        tensor_parallel_size: Processes that share one batch; -1 (default): as many as are left.
        mode: ``"1d"`` (default) or ``"2d"``, as for the `Tensor` axis; or ``"2.5d"`` and ``"3d"``, which are ``"2d"``
            with a third dimension of `depth` processes, over which batches are split: in ``"2.5d"`` it has replicas of
            the matrices (`replicate`), in ``"3d"`` shards of them, which are gathered for use (`shard`).
        depth: The size of the third dimension, with ``"2.5d"`` and ``"3d"``.
        process_group_backend, timeout: As in DDPStrategy.
        options: Of the `Tensor` axis.

    Raises:
        MisconfigurationException: `depth` without such a mode, or the mode without it.

    Example:
        >>> strategy = TensorParallelStrategy(4, mode="2.5d", depth=2)
        >>> strategy.sizes["replicate"], strategy.sizes["tensor"]
        (2, 4)
    """

    def __init__(
        self,
        tensor_parallel_size: int = -1,
        *,
        mode: Literal["1d", "2d", "2.5d", "3d"] = "1d",
        depth: int | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        **options: Any,
    ) -> None:
        check_word("TensorParallelStrategy", "mode", mode, ("1d", "2d", "2.5d", "3d"))
        deep = {"2.5d": "replicate", "3d": "shard"}.get(mode)
        if (depth is None) != (deep is None):
            raise MisconfigurationException(
                f"TensorParallelStrategy(mode={mode!r}, depth={depth}).",
                expected="a depth with the modes '2.5d' and '3d' only.",
                fix="TensorParallelStrategy(4, mode='2.5d', depth=2)",
            )
        super().__init__(
            replicate=depth if deep == "replicate" and depth is not None else 1,
            shard=depth if deep == "shard" and depth is not None else 1,
            tensor=Tensor(tensor_parallel_size, mode="1d" if mode == "1d" else "2d", **options),
            process_group_backend=process_group_backend,
            timeout=timeout,
        )


class PipelineStrategy(MeshStrategy):
    """Every process has some of the layers; see :class:`lightlib.strategies.Pipeline` for `options`."""

    def __init__(
        self,
        stages: int = -1,
        *,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            pipeline=Pipeline(stages, **options), process_group_backend=process_group_backend, timeout=timeout
        )


class ModelParallelStrategy(MeshStrategy):
    """FSDP2 and tensor parallelism together, planned by `parallel_plan` or done by hand in `configure_model`.

    By hand means: `configure_model` builds the layers and calls `parallelize_module` with
    ``self.device_mesh["tensor_parallel"]`` and `fully_shard` with ``self.device_mesh["data_parallel"]``; then neither
    is done for it. What it builds on the meta device is filled afterwards.

    Args:
        data_parallel_size: Processes of FSDP2; ``"auto"``: the number of machines.
        tensor_parallel_size: Processes that shard matrices; ``"auto"``: the devices of a machine.
        save_distributed_checkpoint: Checkpoints are directories, into which every process writes its part (default);
            False: they are files, gathered on the first process. Either is read by any strategy.
        process_group_backend, timeout: As in DDPStrategy.
    """

    def __init__(
        self,
        data_parallel_size: int | Literal["auto"] = "auto",
        tensor_parallel_size: int | Literal["auto"] = "auto",
        save_distributed_checkpoint: bool = True,
        *,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
    ) -> None:
        data, tensor = data_parallel_size, tensor_parallel_size
        self.per_machine = data == "auto" and tensor == "auto"
        self.names_for_user = {"data_parallel": "shard", "tensor_parallel": "tensor"}
        super().__init__(
            shard=Shard(1 if self.per_machine else -1 if data == "auto" else int(data)),
            tensor=Tensor(-1 if tensor == "auto" else int(tensor)),
            checkpoint_format="directory" if save_distributed_checkpoint else "file",
            process_group_backend=process_group_backend,
            timeout=timeout,
        )


def _of_classes(classes: Any) -> Callable[[str, nn.Module], bool]:
    kinds = tuple(classes)
    return lambda name, module: isinstance(module, kinds)


_Method = Literal["popen", "spawn", "fork"]
_METHODS: dict[str, _Method] = {"": "popen", "_spawn": "spawn", "_fork": "fork", "_notebook": "fork"}
_UNUSED = {"": False, "_find_unused_parameters_false": False, "_find_unused_parameters_true": True}
_NAMED: dict[str, Callable[[], Strategy]] = {
    **{
        f"ddp{how}{looks}": partial(DDPStrategy, start_method=method, find_unused_parameters=unused)
        for how, method in _METHODS.items()
        for looks, unused in _UNUSED.items()
    },
    "fsdp": FSDPStrategy,
    "fsdp_cpu_offload": partial(FSDPStrategy, cpu_offload=True),
    "hsdp": partial(FSDPStrategy, sharding_strategy="HYBRID_SHARD"),
    "model_parallel": ModelParallelStrategy,
    "pipeline": PipelineStrategy,
    "tensor": TensorParallelStrategy,
    "zero1": partial(DDPStrategy, zero=True),
    "zero2": partial(FSDPStrategy, sharding_strategy="SHARD_GRAD_OP"),
    "zero3": FSDPStrategy,
}


def named(name: str) -> Strategy:
    """Return a new strategy by its name in ``Trainer(strategy="…")``.

    Example:
        >>> type(named("zero1")).__name__
        'DDPStrategy'
    """
    return _NAMED[name]()
