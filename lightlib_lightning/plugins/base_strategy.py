"""Strategy under Lightning's protocol: methods to override, and lightlib's calls of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightlib import strategies as ours
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.module.overrides import overrides
from lightlib.core.progress.states import TrainerFn
from lightlib.tree import to_device
from lightlib_lightning.plugins import precision as precisions
from lightlib_lightning.plugins.alone import Alone
from lightlib_lightning.plugins.batch_calls import change_calls
from lightlib_lightning.plugins.checkpoint_methods import STORING, CheckpointMethods
from lightlib_lightning.plugins.fabric_methods import FabricMethods
from lightlib_lightning.plugins.in_fabric import InFabric
from lightlib_lightning.plugins.io import CheckpointIO, PluginStore, TorchCheckpointIO
from lightlib_lightning.plugins.layer_sync import LayerSync
from lightlib_lightning.plugins.overriding import check_same, complete, overridden
from lightlib_lightning.plugins.refused import STEPS, refuse_for_trainers, refuse_in_fabric
from lightlib_lightning.plugins.strategy_hooks import HOOKS, StrategyHooks
from lightlib_lightning.plugins.views import StrategyViews

__all__ = ["STEPS", "Strategy"]

_CONTEXTS = ("tensor_init_context", "model_sharded_context")
_DROPPED = ("optimization", "in_fabric", "_of_call", "_pending", "_bound", "_waiting_states")


class Strategy(StrategyHooks, CheckpointMethods, FabricMethods, StrategyViews, ours.Strategy):
    """Base of Lightning's strategies: a subclass overrides methods, and calls `super()` for lightlib's part.

    Args:
        accelerator, checkpoint_io, precision_plugin: The same as the Trainer's arguments.
        precision: Another name of `precision_plugin`, as in Lightning's Fabric.
    """

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
        plugins = [one for one in (checkpoint_io, precision_plugin, cluster_environment) if one is not None]
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
        self._waiting_states: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in _DROPPED}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._bound, self._waiting_states = {}, []

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
        self._redirect()

    def _redirect(self) -> None:
        """Let lightlib call the methods that the user overrides; nothing changes for the rest."""
        extension, mine = self.extension, functools.partial(overridden, self)
        hooks = {name: getattr(self, name) for name in mine(HOOKS)}
        changes: dict[str, Any] = {"hooks": {**extension.hooks, **hooks}, "change_calls": self._change_calls}
        changes["begin"] = self._begin
        changes["own_loop"] = self._enter_fabric
        if mine(["process_dataloader"]):
            changes["loader"] = self.process_dataloader
        if mine(["batch_to_device"]):
            changes["move"] = self._move
        if mine(["reduce"]):
            changes["reduce"] = self._reduce
        if mine(STORING):
            changes["store"] = PluginStore(self.checkpoint_io, self)
        precision = self.precision
        if isinstance(precision, precisions.Precision):
            if overridden(precision, ["state_dict", "on_save_checkpoint"]):
                changes["written"] = self._write_precision
            if overridden(precision, ["load_state_dict", "on_load_checkpoint"]):
                changes["read"] = self._read_precision
            if overridden(precision, precisions.CLIPPING):
                self.clip_gradients = precision.clip_gradients  # type: ignore[method-assign, assignment]
        if mine(["lightning_module_state_dict"]):
            self.module_state = self.lightning_module_state_dict  # type: ignore[method-assign]
        if mine(["load_model_state_dict"]):
            self.load_module_state = self._load_module_state  # type: ignore[method-assign]
        if mine(["load_optimizer_state_dict"]):
            self.load_optimizer_state = self._collect_optimizer_state  # type: ignore[method-assign]
        if mine(_CONTEXTS):
            self.init_context = self._init_context  # type: ignore[method-assign]
        self.extend(**changes)

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

    def _move(self, batch: Any, loader: int) -> Any:
        return self.batch_to_device(batch, dataloader_idx=loader)

    def _reduce(self, value: Any, how: str) -> Any:
        return self.reduce(torch.as_tensor(value, device=self.root_device), reduce_op=how)

    def _init_context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(self.tensor_init_context())
        stack.enter_context(self.model_sharded_context())
        return stack

    def redirect_states(self, to: Any, module: Any) -> None:
        """Save and load the states of a Fabric's module by the methods that the user's strategy overrides."""
        if overridden(to, ["get_module_state_dict"]):
            self.module_state = functools.partial(to.get_module_state_dict, module)  # type: ignore[method-assign]
        if overridden(to, ["load_module_state_dict"]):
            self.load_module_state = functools.partial(to.load_module_state_dict, module)  # type: ignore[method-assign]
        if overridden(to, ["get_optimizer_state"]):
            self.optimizer_state = to.get_optimizer_state  # type: ignore[method-assign]

    def _write_precision(self, content: dict[str, Any]) -> None:
        precision: Any = self.precision
        if state := precision.state_dict():
            content[type(precision).__qualname__] = state
        precision.on_save_checkpoint(content)

    def _read_precision(self, content: dict[str, Any]) -> None:
        precision: Any = self.precision
        precision.on_load_checkpoint(content)
        state = content.get(type(precision).__qualname__)
        if state is not None and overridden(precision, ["load_state_dict"]):
            precision.load_state_dict(state)

    def setup_environment(self) -> None:
        """Set up the device and, with several processes, the process group."""
        self.by_lightlib.setup_environment()
        if overridden(self, ["distributed_sampler_kwargs"]):
            given = self.distributed_sampler_kwargs
            self.data_rank, self.data_size = given["rank"], given["num_replicas"]

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
        self.by_lightlib.place(module, self._in_contexts(steps))
        self._pending = None
        for name in overridden(self, STEPS):
            self._bound[name] = vars(self).pop(name)
        if overridden(self, ["setup_precision_plugin"]) and self.optimization is None:
            self.setup_precision_plugin()

    @property
    def _trains(self) -> bool:
        module: Any = self._of_call
        return module is not None and module.trainer.state.fn == TrainerFn.FITTING

    def _in_contexts(self, steps: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """Return the steps in the contexts of a precision that overrides them, one for each kind of step."""
        precision, entered = self.precision, dict(steps)
        if isinstance(precision, precisions.Precision) and overridden(precision, precisions.STEP_CONTEXTS):
            for name, context in zip(STEPS, precisions.STEP_CONTEXTS, strict=True):
                if name in entered:
                    entered[name] = _within(entered[name], getattr(precision, context))
        if overridden(self, ["post_training_step"]) and "training_step" in entered:
            entered["training_step"] = _then(entered["training_step"], self.post_training_step)
        return entered

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
        given = self.model, list(self.optimizers), list(self.lr_scheduler_configs)
        model, optimizers, schedulers = precision.connect(*given)
        same = model is given[0] and list(optimizers) == given[1] and list(schedulers) == given[2]
        check_same(model if same else None, given[0], "connect", precision)

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


def _within(step: Callable[..., Any], context: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    def entered(*args: Any) -> Any:
        with context():
            return step(*args)

    return entered


def _then(step: Callable[..., Any], call: Callable[[], None]) -> Callable[..., Any]:
    def followed(*args: Any) -> Any:
        output = step(*args)
        call()
        return output

    return followed
