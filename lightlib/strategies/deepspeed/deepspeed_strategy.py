"""DeepSpeedStrategy: DeepSpeed's engine does backward, reduction, clipping and steps (ZeRO)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightlib import optional, report
from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import MisconfigurationException, UnknownNameError, is_ours, owner
from lightlib.launch.environment.detect import Environment
from lightlib.precision.precision import Precision
from lightlib.strategies import batch_norm, state_by_name
from lightlib.strategies.deepspeed import sharded_state
from lightlib.strategies.deepspeed.config import from_options, merged, read, resolved, stage_of, with_defaults
from lightlib.strategies.deepspeed.engine import EngineOptimizer, EnginePrecision, Root
from lightlib.strategies.group import consistency
from lightlib.strategies.group.process_group import join, refuse_without_collectives
from lightlib.strategies.single import in_context
from lightlib.strategies.strategy import Backward, Strategy

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

_NVME = {"remote_device": "nvme", "offload_params_device": "nvme", "offload_optimizer_device": "nvme"}
_NAMED: dict[str, dict[str, Any]] = {
    "deepspeed": {},
    "deepspeed_stage_1": {"stage": 1},
    "deepspeed_stage_2": {"stage": 2},
    "deepspeed_stage_2_offload": {"stage": 2, "offload_optimizer": True},
    "deepspeed_stage_3": {"stage": 3},
    "deepspeed_stage_3_offload": {"stage": 3, "offload_optimizer": True, "offload_parameters": True},
    "deepspeed_stage_3_offload_nvme": {"stage": 3, "offload_optimizer": True, "offload_parameters": True, **_NVME},
}


class DeepSpeedStrategy(Strategy):
    """Trains with DeepSpeed, which shards optimizer state (stage 1), gradients (2) and parameters (3).

    The engine does what it is for: backward, the reduction of gradients, float16's loss scaling, clipping by norm, the
    step. lightlib's loop asks for each in its usual order, accumulates, and divides the loss; logging, data,
    callbacks and checkpoints are as with every other strategy. Checkpoints are complete (one file, by name, parameters
    in float32) and can be resumed with any other strategy.

    16 bits (``'16-mixed'``, ``'bf16-mixed'`` and also the ``true`` ones) mean here what they mean to DeepSpeed:
    parameters and steps in 16 bits, float32 copies in the optimizer. A step that DeepSpeed skips, because gradients
    are infinite or NaN (in float16, and in float32 with ZeRO), is not counted.

    What other strategies can and this one cannot, with an error each: manual optimization, several optimizers, LBFGS, a
    `backward` of the module's own, clipping by value, float64, saving tensors of a callback's `sharded_state`. Hooks
    see no gradients in `parameter.grad` under ZeRO; ``deepspeed.utils.safe_get_full_grad(parameter)`` has them.
    `trainer.gradient_norm` is NaN until the step is taken. A second `fit` in 16 bits begins from rounded parameters.
    With offloading to NVMe only weights can be saved.

    Tested with DeepSpeed 0.19 on CPUs with gloo, stages 0 to 3. Untested for want of hardware: GPUs, offloading to
    NVMe, several machines.

    Args:
        stage: ZeRO's stage, 0 (copies only) to 3. Default: the config's, else 2.
        config: DeepSpeed's configuration, a dict or the path of a JSON file. Its values replace the arguments
            here, except ``"auto"``. Precision, accumulation and clipping come from the Trainer: other
            values in the config are an error, and batch sizes that do not fit the processes and the accumulation.
        zero_optimization: False is stage 0.
        remote_device: Where `configure_model` builds parameters in stage 3: ``"cpu"``, ``"nvme"``, None (the GPU).
        offload_optimizer, offload_parameters: Keep optimizer state (and, in stage 3, parameters) off the GPU. Default
            False.
        offload_optimizer_device, offload_params_device: There: ``"cpu"`` (default) or ``"nvme"`` (stage 3).
        nvme_path: Folder on the NVMe device. Default ``"/local_nvme"``.
        pin_memory: Offload to pinned memory. Default False.
        overlap_comm, contiguous_gradients, allgather_bucket_size, reduce_bucket_size: How gradients and parameters are
            sent; sizes in elements.
        sub_group_size: Parameters that stage 3 steps at once.
        logging_batch_size_per_gpu: The batch size with which DeepSpeed computes the speeds that it prints; ``"auto"``:
            that of the config or of `global_batch_size`, else 1.
        logging_level: Of DeepSpeed's own messages. Default: warnings.
        process_group_backend: ``"nccl"``, ``"gloo"``, …; default: what suits the device.
        timeout: How long a collective waits. Default: 30 minutes.
        options: Further ones, with Lightning's names and defaults: loss scaling of float16 (``loss_scale=0`` is a
            dynamic one, ``initial_scale_power``, ``loss_scale_window``, ``hysteresis``, ``min_loss_scale``), buffers of
            offloading (``params_buffer_count``, ``optimizer_buffer_count``, …), reading and writing of NVMe
            (``block_size``, ``queue_depth``, …), ``partition_activations`` and its like for DeepSpeed's own
            activation checkpointing, ``allgather_partitions``, ``reduce_scatter``, ``zero_allow_untested_optimizer``.

    Raises:
        UnknownNameError: An option that there is not.
        MisconfigurationException: Arguments that contradict each other or the config. When the Trainer is built:
            DeepSpeed is not installed, or has no such precision.

    Example:
        >>> DeepSpeedStrategy(stage=3, config={"zero_optimization": {"stage3_max_live_parameters": 1e8}}).stage
        3
    """

    keeps_layers = steps_parameters = False

    def __init__(
        self,
        stage: int | None = None,
        *,
        config: Mapping[str, Any] | str | Path | None = None,
        zero_optimization: bool = True,
        remote_device: Literal["cpu", "nvme"] | None = None,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        offload_optimizer_device: Literal["cpu", "nvme"] = "cpu",
        offload_params_device: Literal["cpu", "nvme"] = "cpu",
        nvme_path: str = "/local_nvme",
        pin_memory: bool = False,
        overlap_comm: bool = True,
        contiguous_gradients: bool = True,
        allgather_bucket_size: int = 200_000_000,
        reduce_bucket_size: int = 200_000_000,
        sub_group_size: int = 1_000_000_000_000,
        logging_batch_size_per_gpu: int | Literal["auto"] = "auto",
        logging_level: int = logging.WARNING,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        file_content = read(config)
        self._options: dict[str, Any] = {
            **with_defaults(options), "stage": stage_of(stage, file_content), "zero_optimization": zero_optimization,
            "remote_device": remote_device, "offload_optimizer": offload_optimizer,
            "offload_parameters": offload_parameters, "offload_optimizer_device": offload_optimizer_device,
            "offload_params_device": offload_params_device, "nvme_path": nvme_path, "pin_memory": pin_memory,
            "overlap_comm": overlap_comm, "contiguous_gradients": contiguous_gradients,
            "allgather_bucket_size": allgather_bucket_size, "reduce_bucket_size": reduce_bucket_size,
            "sub_group_size": sub_group_size,
        }  # fmt: skip
        self.config = merged(from_options(self._options), file_content)
        self.stage = int(self.config.get("zero_optimization", {}).get("stage", 0))
        self._batch_size, self._level = logging_batch_size_per_gpu, logging_level
        self.timeout = timeout if isinstance(timeout, timedelta) or timeout is None else timedelta(seconds=timeout)
        self.backend, self.launcher = process_group_backend, "subprocess"
        self.lockstep = self.stage == 3  # parameters are gathered in `forward`
        self._deepspeed: Any = None
        self._engine: Any = None
        self._optimizer: EngineOptimizer | None = None
        self._taken = False
        self._loaded: Mapping[str, Any] | None = None

    # where it runs
    def describe(self) -> str:
        return f"deepspeed (stage {self.stage} over {self.world_size})"

    @property
    def root_device(self) -> torch.device:
        return self.local_device

    def use(
        self, accelerator: Accelerator, devices: list[torch.device], precision: Precision, environment: Environment
    ) -> None:
        if not optional.is_installed("deepspeed"):
            raise optional.missing(
                "deepspeed",
                "The strategy deepspeed",
                otherwise="DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed if its build does not find torch; "
                "or strategy='zero1', 'zero2' or 'zero3', which do not need the package nor a C++ compiler",
            )
        refuse_without_collectives(type(self).__name__, accelerator)
        precision.check_strategy(self)
        super().use(accelerator, devices, EnginePrecision.of(precision, lambda: self._engine), environment)
        self.data_rank = self.data_place = environment.rank
        self.data_size = environment.world_size

    def setup_environment(self) -> None:
        if self._deepspeed is not None:
            return
        self.accelerator.setup_device(self.root_device)
        self.collectives = join(self.environment, self.accelerator, self.root_device, self.backend, self.timeout)
        if self.world_size > 1:
            self.data = self.collectives
        self._deepspeed = _imported(self.root_device, self._level)
        with self._as_deepspeed_wants_it(), redirect_stdout(StringIO()):  # it prints what it compiles
            self._deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)

    def init_context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        if self.stage == 3:  # DeepSpeed shards parameters as they are built
            stack.enter_context(self._as_deepspeed_wants_it())
            remote = self._options["remote_device"]
            stack.enter_context(
                self._deepspeed.zero.Init(config_dict_or_path=self._resolved(None), remote_device=remote)
            )
        else:
            stack.enter_context(self.root_device)
        stack.enter_context(self.precision.init_context())
        return stack

    @contextmanager
    def _as_deepspeed_wants_it(self) -> Iterator[None]:
        """LOCAL_RANK is how DeepSpeed learns its device. It is put back: other programs read it as a launcher's."""
        before = os.environ.get("LOCAL_RANK")
        device = self.root_device
        os.environ["LOCAL_RANK"] = str(self.local_rank if device.type == "cpu" else device.index)
        try:
            yield
        finally:
            if before is None:
                del os.environ["LOCAL_RANK"]
            else:
                os.environ["LOCAL_RANK"] = before

    # the module
    def place(self, module: nn.Module, steps: Mapping[str, Callable[..., Any]]) -> None:
        _check(module)
        self._taken = False
        if module is not self.module:
            self._place(module)
        context = self.precision.step_context(self.root_device.type)
        for name, step in steps.items():
            setattr(self, name, partial(self._run, in_context(step, context)))

    def _place(self, module: nn.Module) -> None:
        self.drop_engine()
        before = state_by_name.placed_by(module)
        if isinstance(before, DeepSpeedStrategy):  # of another Trainer: its engine's hooks would stay in the module
            before.drop_engine()
        if not sharded_state.is_sharded(module):
            state_by_name.refuse_placed(module)
        consistency.check_equal(module, self.collectives)
        if self.sync_batchnorm:
            batch_norm.synchronize(module, self.root_device, self.collectives)
        if not sharded_state.is_sharded(module):
            self.precision.convert(module).to(self.root_device)
            consistency.share_values(module, self.root_device)
        state_by_name.mark_placed(module, self, sharded_state.is_sharded)
        self.module, self._loaded = module, None

    def _run(self, step: Callable[..., Any], *args: Any) -> Any:
        """Run a step within the engine; without one (an evaluation alone) as it is, unless parameters are sharded."""
        if self.lockstep and torch.is_inference_mode_enabled():  # parameters gathered in it could not be trained later
            with torch.inference_mode(False), torch.no_grad():
                return self._run(step, *args)
        if self._engine is None and sharded_state.is_sharded(self._placed):
            self._engine = self._initialize(None, self._resolved(None))
        return step(*args) if self._engine is None else self._engine(step, *args)

    def optimizer(self, optimizer: Optimizer) -> Any:
        """Build the engine around the module and `optimizer`.

        Raises:
            MisconfigurationException: It is the second one, LBFGS, or the config contradicts the Trainer.
        """
        if self._taken or isinstance(optimizer, torch.optim.LBFGS):
            raise MisconfigurationException(
                "LBFGS evaluates the loss several times within one step, which DeepSpeed's engine cannot."
                if isinstance(optimizer, torch.optim.LBFGS)
                else "configure_optimizers returned several optimizers, and DeepSpeed's engine steps one.",
                expected="one optimizer that steps once for each backward pass; it may have several groups.",
                fix="one optimizer with param_groups, or strategy='fsdp'.",
            )
        self._taken = True
        module = self._placed
        config = self._resolved(getattr(module, "_trainer", None))
        _warn_of_slow(optimizer, config)
        names = [group_names for group_names in super().parameter_names(optimizer) if group_names]
        groups = [list(group["params"]) for group in optimizer.param_groups if group["params"]]
        self.drop_engine()
        self._engine = self._initialize(optimizer, config)
        self._optimizer = EngineOptimizer(optimizer, self._engine, groups, names)
        if self._loaded is not None and self._half:
            sharded_state.set_masters(module, self._loaded, self._optimizer, self._deepspeed)
        self._loaded = None
        return self._optimizer

    def _initialize(self, optimizer: Optimizer | None, config: dict[str, Any]) -> Any:
        trained = [parameter for parameter in self._placed.parameters() if parameter.requires_grad]
        with self._as_deepspeed_wants_it(), redirect_stdout(StringIO()):
            engine, *_ = self._deepspeed.initialize(
                model=Root(self._placed), optimizer=optimizer, model_parameters=trained, config=config,
                dist_init_required=False,
            )  # fmt: skip
        return engine

    def drop_engine(self) -> None:
        """Take the engine and its hooks off the module, which keeps its parameters as they are."""
        engine, self._engine, self._optimizer = self._engine, None, None
        if engine is not None:
            engine.destroy()

    def _resolved(self, trainer: Trainer | None) -> dict[str, Any]:
        """Return the full configuration, with the settings of `trainer`, when there is one."""
        settings = None if trainer is None else trainer.settings
        return resolved(
            self.config,
            half=self._half,
            precision=self.precision.name,
            world_size=self.world_size,
            accumulate=None if trainer is None else trainer.accumulate_grad_batches,
            clip=None if settings is None else settings.gradient_clip_val,
            global_batch_size=None if settings is None else settings.global_batch_size,
            batch_size=self._batch_size,
            scaling=self._options,
        )

    @property
    def _half(self) -> str | None:
        assert isinstance(self.precision, EnginePrecision)
        return self.precision.half

    def teardown(self) -> None:
        """Release the loaded state. The engine stays: it has the parameters, and the state to save after the run."""
        self._loaded = None

    # a batch
    def forward_backward(self, batch: Any, batch_idx: int, backward: Backward, sync: bool) -> Any:
        self._engine.set_gradient_accumulation_boundary(sync)
        output = self.training_step(batch, batch_idx)
        backward(output, by=partial(self._engine.backward, scale_wrt_gas=False))  # the loop has divided it
        return output

    def clip_gradients(self, optimizer: Any, value: float, algorithm: str) -> Tensor | None:
        """Have the engine clip within its next step; the norm is in the returned tensor when that is taken."""
        norm: Tensor | None = optimizer.clip(value, algorithm)
        return norm

    # state
    def module_state(self) -> dict[str, Any]:
        half = self._half is not None
        return sharded_state.module_state(self._placed, self._deepspeed, self._optimizer, half)

    def load_module_state(self, state: Mapping[str, Any], strict: bool = True) -> None:
        with self._as_deepspeed_wants_it():
            sharded_state.load_module_state(self._placed, state, strict, self._deepspeed)
        self._loaded = state
        if self._optimizer is not None:
            sharded_state.set_masters(self._placed, state, self._optimizer, self._deepspeed)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return sharded_state.optimizer_state(optimizer, self._deepspeed)

    def load_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        sharded_state.load_optimizer_state(optimizer, state, self._deepspeed)

    def parameter_names(self, optimizer: Any) -> list[list[str]]:
        return [list(names) for names in optimizer.names]


def named(name: str) -> DeepSpeedStrategy:
    """Return the strategy with the options that its name stands for.

    Raises:
        UnknownNameError: None has this name.

    Example:
        >>> named("deepspeed_stage_3").stage
        3
    """
    if name not in _NAMED:
        raise UnknownNameError("strategy", name, _NAMED, fix=f"{owner()}(strategy='deepspeed_stage_2')")
    return DeepSpeedStrategy(**_NAMED[name])


def _imported(device: torch.device, level: int) -> Any:
    """Return the package, set to the kind of device that the Trainer chose.

    Raises:
        MisconfigurationException: It was imported before and has chosen another.
    """
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, level - 1))  # it logs while it is imported
    try:
        import deepspeed  # optional: deepspeed
    finally:
        logging.disable(disabled)
    logging.getLogger("DeepSpeed").setLevel(level)
    chosen = deepspeed.accelerator.get_accelerator().device_name()
    if chosen != device.type:
        raise MisconfigurationException(
            f"DeepSpeed computes on {chosen!r}, and {owner().noun} on {device.type!r}.",
            expected="one kind of device; DeepSpeed chooses when it is imported, by the variable DS_ACCELERATOR.",
            fix=f"set DS_ACCELERATOR={device.type} before the program starts, or {owner()}(accelerator={chosen!r})",
        )
    return deepspeed


def _check(module: nn.Module) -> None:
    """Refuse a module if the engine cannot run its backward passes."""
    if not getattr(module, "automatic_optimization", True):
        raise MisconfigurationException(
            f"{type(module).__name__} has automatic_optimization=False, but DeepSpeed's engine does all steps.",
            expected="automatic optimization.",
            fix="leave automatic_optimization as it is, or strategy='fsdp'.",
        )
    backward = getattr(type(module), "backward", None)
    if backward is not None and not is_ours(str(backward.__module__)):
        raise MisconfigurationException(
            f"{type(module).__name__} has a `backward` of its own, which DeepSpeed's engine would not call.",
            expected="the engine's backward.",
            fix="remove `backward`, or strategy='fsdp'.",
        )


def _warn_of_slow(optimizer: Optimizer, config: Mapping[str, Any]) -> None:
    device = config.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none")
    if device != "none" and not type(optimizer).__name__.startswith("DeepSpeedCPU"):
        report.warn(
            f"The state of {type(optimizer).__name__} is offloaded to {device}, where its steps are slow: use "
            "deepspeed.ops.adam.DeepSpeedCPUAdam, which is made for it.",
            report.PossibleUserWarning,
        )
