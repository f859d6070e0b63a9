"""Lightning's strategies: lightlib's, with the constructors and methods that Lightning's have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lightlib import report
from lightlib import strategies as ours
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.strategies.axes.communication_hooks import communication_hook
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.in_fabric import DDPBackwardSync

__all__ = [
    "DDPStrategy",
    "DeepSpeedStrategy",
    "FSDPStrategy",
    "ModelParallelStrategy",
    "ParallelStrategy",
    "SingleDeviceStrategy",
    "named",
]

# Arguments of torch's first FSDP that change how fast it is, not what it computes.
_OF_FSDP1 = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "sync_module_states", "use_orig_params")


class SingleDeviceStrategy(Strategy, ours.SingleDeviceStrategy):
    """One process on one device.

    Args:
        device: Default: the one that the Trainer chooses.
        accelerator, checkpoint_io, precision_plugin: The same as the Trainer's arguments.
        precision: Another name of `precision_plugin`, as in Lightning's Fabric.

    Example:
        >>> SingleDeviceStrategy("cpu").root_device
        device(type='cpu')
    """

    strategy_name = "single_device"

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        *,
        precision: Any = None,
    ) -> None:
        ours.SingleDeviceStrategy.__init__(self, None if device is None else torch.device(device))
        self._bring(accelerator, checkpoint_io, precision_plugin or precision)

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register the name of this class."""
        strategy_registry.register(cls.strategy_name, cls, description=cls.__name__)


class ParallelStrategy(Strategy):
    """Base of Lightning's strategies of several processes.

    Args:
        accelerator, checkpoint_io, precision_plugin: The same as the Trainer's arguments.
        precision: Another name of `precision_plugin`, as in Lightning's Fabric.
        parallel_devices: The devices of this machine.
        cluster_environment: Knows the rank of this process.
    """

    is_parallel = True

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        *,
        precision: Any = None,
    ) -> None:
        super().__init__()
        self._bring(accelerator, checkpoint_io, precision_plugin or precision, cluster_environment, parallel_devices)


class DDPStrategy(ParallelStrategy, ours.DDPStrategy):
    """A replica of the module on every process, each with its own shard of the data.

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin, precision: As in
            ParallelStrategy.
        ddp_comm_state, ddp_comm_hook, ddp_comm_wrapper: How gradients are sent.
        model_averaging_period: Average the parameters every so many steps; needs torch's PostLocalSGDState as
            `ddp_comm_state`.
        process_group_backend, timeout: Of the process group.
        start_method: ``"popen"``, ``"spawn"``, ``"fork"`` or ``"forkserver"``.
        kwargs: Arguments of torch's DistributedDataParallel.

    Raises:
        MisconfigurationException: `model_averaging_period` without its state, or the reverse.

    Example:
        >>> DDPStrategy(find_unused_parameters=True).sizes["replicate"]
        -1
    """

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        ddp_comm_state: Any = None,
        ddp_comm_hook: Any = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        model_averaging_period: int | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        start_method: Any = "popen",
        *,
        precision: Any = None,
        **kwargs: Any,
    ) -> None:
        ours.DDPStrategy.__init__(
            self,
            ddp_comm_hook=ddp_comm_hook,
            ddp_comm_state=ddp_comm_state,
            ddp_comm_wrapper=ddp_comm_wrapper,
            process_group_backend=process_group_backend,
            timeout=timeout,
            start_method=start_method,
            **kwargs,
        )
        self._bring(accelerator, checkpoint_io, precision_plugin or precision, cluster_environment, parallel_devices)
        self._ddp_kwargs, self._ddp_hook = kwargs, ddp_comm_hook
        self._ddp_hook_state, self._ddp_hook_wrapper = ddp_comm_state, ddp_comm_wrapper
        self._backward_sync_control = DDPBackwardSync()
        self._period, self._local_sgd_from = (
            model_averaging_period,
            getattr(ddp_comm_state, "start_localSGD_iter", None),
        )
        if (self._period is None) != (self._local_sgd_from is None):
            raise MisconfigurationException(
                f"DDPStrategy(model_averaging_period={self._period}, ddp_comm_state={ddp_comm_state!r}).",
                expected="both: a period, and torch's PostLocalSGDState.",
                fix="leave out both, or DDPStrategy(ddp_comm_state=PostLocalSGDState(…), ddp_comm_hook="
                "post_localSGD_hook, model_averaging_period=4).",
            )

    def setup_module(self, module: nn.Module) -> Any:
        """Return the module in torch's DistributedDataParallel, where a Fabric leaves its set-up to this class."""
        if self.in_fabric is None or not self.in_fabric.leaves_setup:
            return super().setup_module(module)
        ddp = DistributedDataParallel(module, self.accelerator.device_ids(self.root_device), **self._ddp_kwargs)
        if self._ddp_hook is not None:
            state, hook = communication_hook(self._ddp_hook, self._ddp_hook_state, None)
            ddp.register_comm_hook(state, hook if self._ddp_hook_wrapper is None else self._ddp_hook_wrapper(hook))
        return ddp

    @property
    def shards_optimizer(self) -> bool:
        """Whether each process keeps a part of the optimizer's state."""
        return bool(self._ddp_kwargs.get("zero"))

    def optimizer(self, optimizer: Any) -> Any:
        """Average the parameters after the optimizer's steps, if there is a period."""
        stepped = super().optimizer(optimizer)
        if self._period is not None:
            from torch.distributed.algorithms.model_averaging.averagers import (  # optional: slow, with a period only
                PeriodicModelAverager,
            )

            averager = PeriodicModelAverager(self._period, warmup_steps=self._local_sgd_from)
            stepped.register_step_post_hook(partial(_average, averager))
        return stepped

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register the names of this class, such as ``"ddp_spawn"``."""
        for name, options in DDP_NAMES.items():
            strategy_registry.register(name, cls, description=f"DDP with {options}", **options)


class FSDPStrategy(ParallelStrategy, ours.FSDPStrategy):
    """Every process keeps a shard of parameters, gradients and optimizer state (FSDP2).

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin, precision: As in
            ParallelStrategy.
        process_group_backend, timeout: Of the process group.
        cpu_offload: True, or torch's CPUOffload.
        mixed_precision: torch's MixedPrecision, or a compute and a reduce dtype.
        auto_wrap_policy, sharding_strategy, state_dict_type: As in :class:`lightlib.strategies.FSDPStrategy`.
        activation_checkpointing: A class of modules, or a list of them.
        activation_checkpointing_policy: A set of classes of modules.
        device_mesh: Replicas and shards.
        kwargs: Options of torch's first FSDP that change its speed only have no effect; a warning names them.

    Raises:
        ArgumentTypeError: Another option of torch's first FSDP.
    """

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        cpu_offload: Any = None,
        mixed_precision: Any = None,
        auto_wrap_policy: Any = None,
        activation_checkpointing: Any = None,
        activation_checkpointing_policy: Any = None,
        sharding_strategy: Any = "FULL_SHARD",
        state_dict_type: Any = "full",
        device_mesh: Any = None,
        *,
        precision: Any = None,
        **kwargs: Any,
    ) -> None:
        unused = [name for name in kwargs if name in _OF_FSDP1]
        options = {name: kwargs[name] for name in ("meta", "reshard_after_forward") if name in kwargs}
        unknown = [name for name in kwargs if name not in (*_OF_FSDP1, *options)]
        if unknown:
            raise ArgumentTypeError(
                f"FSDPStrategy got {unknown[0]}={kwargs[unknown[0]]!r}.",
                expected="an argument of Lightning's FSDPStrategy; torch's first FSDP is not used here.",
                fix=f"leave out {unknown[0]}.",
            )
        if unused:
            report.warn(f"FSDPStrategy: {', '.join(unused)} have no effect: FSDP2 has no such options.")
        classes, policy = activation_checkpointing, activation_checkpointing_policy
        if classes is not None and not isinstance(classes, bool) and (isinstance(classes, (type, list, tuple, set))):
            policy = {classes} if isinstance(classes, type) else set(classes)
            classes = None
        ours.FSDPStrategy.__init__(
            self,
            sharding_strategy=sharding_strategy,
            device_mesh=device_mesh,
            auto_wrap_policy=auto_wrap_policy,
            activation_checkpointing=classes or False,
            activation_checkpointing_policy=policy,
            cpu_offload=bool(getattr(cpu_offload, "offload_params", cpu_offload)),
            mixed_precision=_dtypes(mixed_precision),
            state_dict_type=state_dict_type,
            process_group_backend=process_group_backend,
            timeout=timeout,
            **options,
        )
        self._bring(accelerator, checkpoint_io, precision_plugin or precision, cluster_environment, parallel_devices)

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register the names of this class."""
        strategy_registry.register("fsdp", cls, description="Fully sharded data parallel")
        strategy_registry.register("fsdp_cpu_offload", cls, description="FSDP on the CPU's memory", cpu_offload=True)


class ModelParallelStrategy(ParallelStrategy, ours.ModelParallelStrategy):
    """FSDP2 and tensor parallelism together; the arguments of :class:`lightlib.strategies.ModelParallelStrategy`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        ours.ModelParallelStrategy.__init__(self, *args, **kwargs)
        self._bring()


class DeepSpeedStrategy(ParallelStrategy, ours.DeepSpeedStrategy):
    """DeepSpeed's engine.

    Args:
        accelerator, parallel_devices, cluster_environment, precision_plugin, precision: As in ParallelStrategy.
        kwargs: Those of :class:`lightlib.strategies.DeepSpeedStrategy`.
    """

    def __init__(
        self,
        accelerator: Any = None,
        *,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        precision_plugin: Any = None,
        precision: Any = None,
        **kwargs: Any,
    ) -> None:
        ours.DeepSpeedStrategy.__init__(self, **kwargs)
        self._bring(accelerator, None, precision_plugin or precision, cluster_environment, parallel_devices)


def _dtypes(mixed_precision: Any) -> Any:
    """Return the compute and reduce dtypes of torch's MixedPrecision."""
    if mixed_precision is None or isinstance(mixed_precision, tuple):
        return mixed_precision
    compute = mixed_precision.param_dtype or torch.float32
    return compute, mixed_precision.reduce_dtype or compute


def _average(averager: Any, optimizer: Any, *_: Any) -> None:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    averager.average_parameters(iter([parameter for parameter in parameters if parameter.grad is not None]))


_METHODS = {"": "popen", "_spawn": "spawn", "_fork": "fork", "_notebook": "fork"}
_UNUSED: dict[str, dict[str, Any]] = {
    "": {},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
}
# The arguments that each of Lightning's names of DDP stands for.
DDP_NAMES: dict[str, dict[str, Any]] = {
    f"ddp{how}{looks}": {"start_method": method, **unused}
    for how, method in _METHODS.items()
    for looks, unused in _UNUSED.items()
}
_NAMED: dict[str, Callable[[], Strategy]] = {
    "single_device": SingleDeviceStrategy,
    **{name: partial(DDPStrategy, **options) for name, options in DDP_NAMES.items()},
    "fsdp": FSDPStrategy,
    "fsdp_cpu_offload": partial(FSDPStrategy, cpu_offload=True),
    "hsdp": partial(FSDPStrategy, sharding_strategy="HYBRID_SHARD"),
    "model_parallel": ModelParallelStrategy,
    "zero1": partial(DDPStrategy, zero=True),
    "zero2": partial(FSDPStrategy, sharding_strategy="SHARD_GRAD_OP"),
    "zero3": FSDPStrategy,
}


def named(name: str) -> Callable[[], Strategy] | None:
    """Return the factory of the strategy of a name; None for those that Lightning does not have.

    Example:
        >>> type(named("ddp")()).__name__, named("pipeline")
        ('DDPStrategy', None)
    """
    return _NAMED.get(name)
