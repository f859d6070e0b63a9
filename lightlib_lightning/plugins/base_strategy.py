"""Strategy under Lightning's protocol: methods to override, and lightlib's calls of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightlib import strategies as ours
from lightlib.accelerators import lookup
from lightlib.accelerators.accelerator import Accelerator
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.module.overrides import overrides
from lightlib.core.progress.states import TrainerFn
from lightlib.fabric.gradients import Limits
from lightlib.launch.environment.environment import Environment
from lightlib.precision import Precision
from lightlib.tree import to_device
from lightlib_lightning.environments import ClusterEnvironment, environment_like
from lightlib_lightning.plugins import precision as precisions
from lightlib_lightning.plugins import redirection
from lightlib_lightning.plugins.alone import Alone
from lightlib_lightning.plugins.batch_calls import change_calls
from lightlib_lightning.plugins.in_fabric import InFabric
from lightlib_lightning.plugins.io import CheckpointIO, PluginStore, TorchCheckpointIO
from lightlib_lightning.plugins.layer_sync import LayerSync
from lightlib_lightning.plugins.overriding import STEPS, STORING, check_same, complete, overridden
from lightlib_lightning.plugins.refused import refuse_for_trainers, refuse_in_fabric

__all__ = ["Strategy"]

_DROPPED = ("optimization", "in_fabric", "_of_call", "_pending", "_bound")


class Strategy(ours.Strategy):
    """Base of Lightning's strategies: a subclass overrides methods, and calls `super()` for lightlib's part.

    Args:
        accelerator, checkpoint_io, precision_plugin: The same as the Trainer's arguments.
        precision: Another name of `precision_plugin`, as in Lightning's Fabric.

    Attributes:
        in_fabric: Connects the strategy to the Fabric that it serves; None in a Trainer, or without either.
        from_scratch: Whether the user's class derives from `Strategy` or `ParallelStrategy` itself.
        optimization: The calls of the fit; None outside of one.
    """

    in_fabric: InFabric | None = None
    from_scratch: bool = False
    optimization: Any = None
    _of_call: nn.Module | None = None
    _backward_sync_control: Any = None
    _pending: tuple[nn.Module, Mapping[str, Callable[..., Any]]] | None = None
    _layer_sync: LayerSync | None = None
    _synced: bool = False

    def __init__(
        self,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        *,
        precision: Any = None,
    ) -> None:
        super().__init__()
        self._bring(accelerator, checkpoint_io, precision_plugin or precision)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG004  those of `__init__`
        """Make a strategy; one written from scratch gets lightlib's way to run batches."""
        if issubclass(cls, (ours.SingleDeviceStrategy, ours.MeshStrategy, ours.DeepSpeedStrategy)):
            return object.__new__(cls)
        return object.__new__(complete(cls))

    def _bring(
        self,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        cluster_environment: Any = None,
        parallel_devices: list[torch.device] | None = None,
    ) -> None:
        """Keep the arguments of Lightning's constructors, as arguments of the Trainer."""
        plugins = [plugin for plugin in (checkpoint_io, precision_plugin, cluster_environment) if plugin is not None]
        arguments: dict[str, Any] = {} if accelerator is None else {"accelerator": accelerator}
        if plugins:
            arguments["plugins"] = plugins
        if parallel_devices is not None:
            indices = [device.index for device in parallel_devices]
            arguments["devices"] = len(indices) if None in indices else indices
            self.devices = parallel_devices  # until `use`
        self.extend(arguments=arguments)
        self._checkpoint_io: CheckpointIO | None = checkpoint_io
        self._bound: dict[str, Callable[..., Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in _DROPPED}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._bound = {}

    @property
    def by_lightlib(self) -> Any:
        """The methods of lightlib's own strategy, without the user's overrides."""
        return super()

    # lightlib's protocol
    def use(self, *args: Any) -> None:
        super().use(*args)
        refuse_for_trainers(self)
        if isinstance(self.precision, precisions.Precision):
            self.precision.join(self)
        redirected = redirection.Redirection(self)
        vars(self).update(redirected.methods())
        calls = {"begin": self._begin, "change_calls": self._change_calls, "own_loop": self._enter_fabric}
        self.extend(**calls, **redirected.extension())

    def _enter_fabric(self, fabric: Any) -> Any:
        """Serve a Fabric from now on, and return the calls that it makes by this strategy."""
        refuse_in_fabric(self, self._layer_sync)
        io = self.checkpoint_io
        self.extend(store=None if type(io) is TorchCheckpointIO else PluginStore(io, self))
        self.in_fabric = InFabric(self, fabric)
        return self.in_fabric.fabric_calls()

    def _begin(self, module: nn.Module) -> None:
        """Learn the module before anything is set up for it."""
        self._of_call = module
        if isinstance(self.precision, precisions.Precision):
            self.precision.join(self)  # again: a copy of it has no strategy
        if overridden(self, ["connect"]):
            self.connect(module)

    def redirect_states(self, to: Any, module: Any) -> None:
        """Save and load the states of a Fabric's module by the methods that the user's strategy overrides."""
        vars(self).update(redirection.states(to, module))

    def setup_environment(self) -> None:
        """Set up the device and, with several processes, the process group."""
        self.by_lightlib.setup_environment()
        if overridden(self, ["distributed_sampler_kwargs"]):
            sharding = self.distributed_sampler_kwargs
            self.data_rank, self.data_size = sharding["rank"], sharding["num_replicas"]

    def place(self, module: nn.Module, steps: Mapping[str, Callable[..., Any]]) -> None:
        self._pending = module, steps
        try:
            if overridden(self, ["setup"]):
                self.setup(module.trainer)
            if self._pending is not None:  # an override that does not call super() has placed the module itself
                self._finish_setup()
        finally:
            self._pending = None

    def _finish_setup(self) -> None:
        assert self._pending is not None
        module, steps = self._pending
        if self._layer_sync is not None and self._trains and not self._synced:
            check_same(self._layer_sync.apply(module), module, "apply", self._layer_sync)
            self._synced = True
        if overridden(self, ["model_to_device"]):
            self.model_to_device()
        self.by_lightlib.place(module, redirection.in_contexts(self, steps))
        self._pending = None
        for name in overridden(self, STEPS):
            self._bound[name] = vars(self).pop(name)
        if overridden(self, ["setup_precision_plugin"]) and self.optimization is None:
            self.setup_precision_plugin()

    @property
    def _trains(self) -> bool:
        module: Any = self._of_call
        return module is not None and module.trainer.state.fn == TrainerFn.FITTING

    def _change_calls(self, optimization: Any) -> None:
        self.optimization = optimization
        change_calls(self, optimization)
        if isinstance(self.precision, precisions.Precision) and overridden(self.precision, ["connect"]):
            self.setup_precision_plugin()

    def teardown(self) -> None:
        """Give the devices back, and undo the changes of the plugins."""
        super().teardown()
        if self._layer_sync is not None and self._synced and self.module is not None:
            check_same(self._layer_sync.revert(self.module), self.module, "revert", self._layer_sync)
            self._synced = False
        if isinstance(self.precision, precisions.Precision) and overridden(self.precision, ["teardown"]):
            self.precision.teardown()
        by_lightlib = isinstance(self, ours.SingleDeviceStrategy) and self.root_device.type != "cpu"
        if overridden(self.accelerator, ["teardown"]) and not by_lightlib:
            self.accelerator.teardown()
        if self.extension.environment is not None:
            self.extension.environment.teardown()

    def use_layer_sync(self, layer_sync: LayerSync) -> None:
        """Change the layers of the module in each fit."""
        self._layer_sync = layer_sync

    def clip_by_lightlib(self, optimizer: Any, value: float, algorithm: str) -> Tensor | None:
        """Clip over all shards, as without a precision that overrides it."""
        norm: Tensor | None = self.by_lightlib.clip_gradients(optimizer, value, algorithm)
        return norm

    # Lightning's protocol: batches
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's training step on the strategy, in the precision."""
        return self._bound["training_step"](*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's validation step."""
        return self._bound["validation_step"](*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's test step."""
        return self._bound["test_step"](*args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's prediction step."""
        return self._bound["predict_step"](*args, **kwargs)

    def post_training_step(self) -> None:
        """Run after each training step."""

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor | None:
        """Differentiate a loss with the hooks before and after, and return it without its graph.

        In a Fabric the second argument is the module, and nothing is returned.
        """
        if not self._in_trainer:
            self._served.backward(closure_loss, optimizer, *args, **kwargs)
            return None
        self.pre_backward(closure_loss)
        precision, module = self._calling_precision, self.lightning_module
        closure_loss = precision.pre_backward(closure_loss, module)
        precision.backward(closure_loss, module, optimizer, *args, **kwargs)
        closure_loss = precision.post_backward(closure_loss, module)
        self.post_backward(closure_loss)
        return closure_loss

    def pre_backward(self, closure_loss: Tensor) -> None:
        """Run before `backward` of the precision."""

    def post_backward(self, closure_loss: Tensor) -> None:
        """Run after `backward` of the precision."""

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any] | None = None, model: Any = None, **kwargs: Any
    ) -> Any:
        """Step an optimizer; the closure runs the batch forward and backward. A Fabric may leave it out."""
        if not self._in_trainer:
            return self._served.optimizer_step(optimizer, closure, **kwargs)
        model = self.lightning_module if model is None else model
        return self._calling_precision.optimizer_step(optimizer, model=model, closure=closure, **kwargs)

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Return `batch` on the device, by the module's `transfer_batch_to_device` if it has one."""
        device, module = device or self.root_device, self.lightning_module
        if module is not None and overrides(module, DataHooks, "transfer_batch_to_device"):
            return module.transfer_batch_to_device(batch, device, dataloader_idx)
        return to_device(batch, device, self.accelerator.has_streams)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Return the loader to use."""
        return dataloader

    # Lightning's protocol: the module, its optimizers and its state
    def connect(self, model: nn.Module) -> None:
        """Learn the module of a call."""
        self._of_call = model

    def setup(self, trainer: Any) -> None:
        """Place the module, and bind its steps."""
        if self._pending is not None:
            self._finish_setup()

    def model_to_device(self) -> None:
        """Move the module to the device; lightlib does so in any case."""
        if self.model is not None:
            self.model.to(self.root_device)

    def setup_precision_plugin(self) -> None:
        """Call `connect` of the precision, which may not replace anything."""
        precision: Any = self._calling_precision
        before = self.model, list(self.optimizers), list(self.lr_scheduler_configs)
        model, optimizers, schedulers = precision.connect(*before)
        same = model is before[0] and list(optimizers) == before[1] and list(schedulers) == before[2]
        check_same(model if same else None, before[0], "connect", precision)

    def setup_optimizers(self, trainer: Any) -> None:
        """Do nothing: the Trainer calls `configure_optimizers`."""

    # Lightning's protocol: the rest
    @property
    def _calling_precision(self) -> Any:
        """The precision that has Lightning's methods."""
        if isinstance(self.precision, precisions.Precision):
            return self.precision
        standing_in = precisions.Precision()  # lightlib's own has none of them, and overrides none
        standing_in.join(self)
        return standing_in

    def tensor_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Return a context that creates tensors on the device and in the dtype of the precision."""
        return Alone(self).module_init_context(empty_init)

    def model_sharded_context(self) -> AbstractContextManager[Any]:
        """Return a context around `configure_model`; nothing by default."""
        return nullcontext()

    # Lightning's protocol: states and files
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the module's state, gathered on the first process."""
        state: dict[str, Any]
        if self.module is None:  # nothing has been placed
            return {} if self.lightning_module is None else dict(self.lightning_module.state_dict())
        state = self.by_lightlib.module_state()
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load ``checkpoint["state_dict"]``."""
        self.by_lightlib.load_module_state(checkpoint["state_dict"], strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load ``checkpoint["optimizer_states"]``, one for each optimizer."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            self.by_lightlib.load_optimizer_state(optimizer, state)

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """The object that writes, reads and removes checkpoints; it may be set before a run."""
        store = self.extension.store
        if isinstance(store, PluginStore):
            return store.plugin
        if self._checkpoint_io is None:
            self._checkpoint_io = TorchCheckpointIO()
        return self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self.keep_checkpoint_io(io)
        self.extend(store=PluginStore(self.checkpoint_io, self) if overridden(self, STORING) else None)
        io.attach_to(self)

    def keep_checkpoint_io(self, io: CheckpointIO) -> None:
        """Return `io` as `checkpoint_io` from now on."""
        self._checkpoint_io = io

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint on the first process.

        Args:
            args, kwargs: ``(checkpoint, filepath, storage_options=None)``; in a Fabric,
                and in a program without a Trainer, ``(path, state, storage_options=None, filter=None)``.
        """
        if self.in_fabric is not None:
            self.in_fabric.save_checkpoint(*args, **kwargs)
        elif "path" in kwargs or (args and isinstance(args[0], (str, os.PathLike))):
            Alone(self).save_checkpoint(*args, **kwargs)
        else:
            self._save_trainers(*args, **kwargs)

    def _save_trainers(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the content of a checkpoint, or in a Fabric the rest of it.

        Args:
            args, kwargs: ``(checkpoint_path, weights_only=None)``; in a Fabric,
                and in a program without a Trainer, ``(path, state=None, strict=True, weights_only=None)``.
        """
        if self.in_fabric is not None:
            return self.in_fabric.load_checkpoint(*args, **kwargs)
        has_state = len(args) > 1 and not isinstance(args[1], bool | None)
        if has_state or kwargs.keys() & {"path", "state", "strict"}:
            return Alone(self).load_checkpoint(*args, **kwargs)
        return self._load_trainers(*args, **kwargs)

    def _load_trainers(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint on the first process."""
        if self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(filepath)

    # Lightning's protocol: a Fabric
    def setup_module_and_optimizers(self, module: nn.Module, optimizers: list[Any], scheduler: Any = None) -> Any:
        """Set up a module with its optimizers, and return ``(module, optimizers, scheduler)``."""
        module = self.setup_module(module)
        return module, [self.setup_optimizer(optimizer) for optimizer in optimizers], scheduler

    def setup_module(self, module: nn.Module) -> Any:
        """Return the object to call for the module: here the module, which lightlib has placed."""
        if self.in_fabric is not None:
            self.in_fabric.place()
        return module

    def setup_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer to step."""
        return optimizer if self.in_fabric is None else self.in_fabric.place_optimizer(optimizer)

    def module_to_device(self, module: nn.Module) -> None:
        """Move a module to the device."""
        module.to(self.root_device)

    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Return the context of `Fabric.init_module`.

        Args:
            empty_init: Leave the weights uninitialized.
        """
        return self._served.module_init_context(empty_init)

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return a tensor reduced over all processes."""
        return self.reduce(tensor, group, reduce_op)

    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor | None:
        """Clip the norm of all gradients of an optimizer together, and return it."""
        limits = Limits(None, max_norm, norm_type, error_if_nonfinite)
        norm: Tensor | None = self._served.clip(module, optimizer, limits)
        return norm

    def clip_gradients_value(self, module: nn.Module, optimizer: Any, clip_val: float) -> None:
        """Clip each gradient of an optimizer."""
        self._served.clip(module, optimizer, Limits(clip_val, None, 2.0, False))

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Return the state of a module, by its own names."""
        return self._served.module_state(module)

    def load_module_state_dict(self, module: nn.Module, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load the state of a module."""
        self._served.load_module_state(module, state_dict, strict)

    def get_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the state of an optimizer."""
        return self._served.optimizer_state(optimizer)

    @property
    def _in_trainer(self) -> bool:
        return self.in_fabric is None and self.lightning_module is not None

    @property
    def _served(self) -> InFabric | Alone:
        return Alone(self) if self.in_fabric is None else self.in_fabric

    # Lightning's protocol: hooks, after those of the callbacks and the module
    def on_train_start(self) -> None:
        """Run after the hooks of callbacks and module, as the following ones."""

    def on_validation_start(self) -> None:
        """Run when a validation starts."""

    def on_test_start(self) -> None:
        """Run when a test starts."""

    def on_predict_start(self) -> None:
        """Run when a prediction starts."""

    def on_train_end(self) -> None:
        """Run when training ends."""

    def on_validation_end(self) -> None:
        """Run when a validation ends."""

    def on_test_end(self) -> None:
        """Run when a test ends."""

    def on_predict_end(self) -> None:
        """Run when a prediction ends."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Run before each training batch."""

    def on_exception(self, exception: BaseException) -> None:
        """Run when an exception ends the run."""

    # Lightning's names of lightlib's attributes
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Serve the parts of a strategy that neither a Trainer nor a Fabric has connected."""
            if name not in ("accelerator", "precision", "environment"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            arguments = self.extension.arguments
            accelerator = arguments.get("accelerator")
            by_device = lookup.of(self.root_device)
            ours.Strategy.use(
                self,
                accelerator if isinstance(accelerator, Accelerator) else by_device,
                list(self.devices) or [self.root_device],
                self._plugin_of(Precision) or precisions.Precision(),
                Environment(),
            )
            return getattr(self, name)

    def _plugin_of(self, kind: type) -> Any:
        """Return the plugin of a kind in the arguments of the strategy; None without one."""
        return next(
            (plugin for plugin in self.extension.arguments.get("plugins", ()) if isinstance(plugin, kind)), None
        )

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the fit."""
        return [] if self.optimization is None else list(self.optimization.optimizers)

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedules of the fit."""
        return [] if self.optimization is None else list(self.optimization.schedules.configs)

    @property
    def lightning_module(self) -> Any:
        """The user's module."""
        return self.module if self._of_call is None else self._of_call

    @property
    def model(self) -> Any:
        """The user's module: lightlib puts it into no wrapper."""
        return self.lightning_module

    @model.setter
    def model(self, model: Any) -> None:
        check_same(model, self.lightning_module, "model", self)

    @property
    def precision_plugin(self) -> Any:
        """The precision."""
        return self.precision

    @property
    def cluster_environment(self) -> Any:
        """The user's environment, or one that stands for the one lightlib has detected."""
        environment = self.extension.environment or self._plugin_of(ClusterEnvironment)
        return environment or environment_like(self.environment)

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The devices of this machine."""
        return list(self.devices)

    @property
    def num_processes(self) -> int:
        """The number of processes of this machine."""
        return len(self.devices)

    @property
    def process_group_backend(self) -> str | None:
        """The backend of the process group; None chooses one by the device."""
        return getattr(self, "backend", None)

    @property
    def num_nodes(self) -> int:
        """The number of machines."""
        return self.environment.num_nodes

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Which shard of the data this process reads; an override decides it."""
        return {"num_replicas": self.data_size, "rank": self.data_rank}

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Whether weights are loaded when the module is placed, which lightlib always does."""
        return True

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether the Trainer restores the optimizers."""
        return True

    @property
    def handles_gradient_accumulation(self) -> bool:
        """Whether the strategy accumulates gradients itself."""
        return False

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register the names of this class; none by default."""
