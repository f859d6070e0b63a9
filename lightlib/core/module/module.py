"""Module: the base class of the user's model, with its steps, optimizers, logging and hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightlib import report
from lightlib.core.module import export
from lightlib.core.module.from_model import ModelSteps
from lightlib.core.module.hook_defaults import DataHooks, ModelHooks
from lightlib.core.module.loading import ClassOnly, load_from_checkpoint
from lightlib.core.module.preprocessor import PreprocessorMixin
from lightlib.core.optimization.schedules import step_scheduler
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.values.hparams import HyperparametersMixin
from lightlib.errors import LoggingError, MisconfigurationException
from lightlib.signatures import ClipAlgorithm, OptimizersAndSchedules, Reduction, StepOutput
from lightlib.tree import map_children

if TYPE_CHECKING:
    from typing_extensions import Self

    from lightlib.callbacks.callback import Callback
    from lightlib.core.metrics.results import Results
    from lightlib.core.trainer import Trainer
    from lightlib.loggers.logger import Logger
    from lightlib.signatures import Loggable, Loggables

report.share_rank()


class Module(ModelHooks, DataHooks, HyperparametersMixin, PreprocessorMixin):
    """A model with its training code: steps, optimizers and hooks.

    `Trainer.fit` needs only `training_step` and `configure_optimizers`.

    Example:
        >>> import torch, lightlib
        >>> class Net(lightlib.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(4, 2)
        ...     def training_step(self, batch, batch_idx):
        ...         x, y = batch
        ...         loss = torch.nn.functional.cross_entropy(self.layer(x), y)
        ...         self.log("loss", loss)
        ...         return loss
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> Net().automatic_optimization
        True
    """

    CHECKPOINT_HYPER_PARAMS_KEY = "hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "hparams_type"

    # torch.jit.script must not compile these: no property is part of a model's computation.
    __jit_unused_properties__: ClassVar[list[str]] = [
        "current_epoch", "device", "dtype", "fabric", "global_rank", "global_step", "hparams", "hparams_initial",
        "local_rank", "logger", "loggers", "on_gpu", "trainer",
    ]  # fmt: skip

    _trainer: Trainer | None = None
    _results: Results | None = None
    _device: torch.device | None = None
    _toggled: dict[nn.Parameter, bool] | None = None
    automatic_optimization: bool = True
    example_input_array: Any = None
    device_mesh: Any = None
    strict_loading: bool | Literal["shapes"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_modules" not in self.__dict__ and isinstance(value, (nn.Module, nn.Parameter)):
            raise MisconfigurationException(
                f"{type(self).__name__}.__init__ assigned `{name}` before the base class was initialised.",
                expected="super().__init__() before the first layer.",
                fix=f"write `super().__init__()` as the first line of {type(self).__name__}.__init__.",
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None, "_results": None}

    def __prepare_scriptable__(self) -> Module:
        """Return the copy that torch.jit.script compiles instead of the module."""
        scripted: Module = export.scriptable(self, Module)
        return scripted

    # the steps
    def training_step(self, *args: Any, **kwargs: Any) -> StepOutput:
        """Compute the loss of one batch: ``training_step(batch, batch_idx)``, or ``(batch)`` alone.

        Returns:
            The loss, a 0-d tensor with a gradient; or a dict with ``"loss"`` and anything else; or a dict
            ``{"loss": sum, "weight": n}`` (token-weighted losses: the losses of an accumulation window are summed and
            divided by the sum of the weights); or a dict of several losses without ``"loss"``, which are the entries
            with "loss" in their names: their means are summed, and logged (not within a pipeline) with the sum as
            "loss"; or None to skip the batch.
        """
        raise NotImplementedError

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch: ``validation_step(batch, batch_idx, dataloader_idx=0)``; the last two are optional."""
        raise NotImplementedError

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch: ``test_step(batch, batch_idx, dataloader_idx=0)``; the last two are optional."""
        raise NotImplementedError

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Return the prediction of one batch. Default: ``self(batch)``."""
        return self(args[0] if args else kwargs.get("batch"))

    # optimization
    def configure_optimizers(self) -> OptimizersAndSchedules:
        """Return optimizers and schedules: an Optimizer, several, a dict with ``lr_scheduler``, … (see the docs)."""
        raise NotImplementedError

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients. Default: ``loss.backward()``."""
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Step one optimizer. In an override the complete batch runs inside `optimizer_closure`, as for LBFGS."""
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Drop the gradients. Default: ``optimizer.zero_grad()``."""
        optimizer.zero_grad()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step one schedule. Default: ``scheduler.step()``, with the metric for plateau schedulers."""
        step_scheduler(scheduler, metric)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: ClipAlgorithm | None = None,
    ) -> None:
        """Clip the unscaled gradients of one optimizer. Default: `clip_gradients` with the Trainer's values."""
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def clip_gradients(
        self,
        optimizer: Optimizer | LightningOptimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: ClipAlgorithm | None = None,
    ) -> None:
        """Clip the gradients of `optimizer`; the norm before clipping is then `trainer.gradient_norm`.

        Args:
            optimizer: The optimizer; the gradients of its parameters are clipped.
            gradient_clip_val: The largest norm or absolute value. Default: the Trainer's.
            gradient_clip_algorithm: ``"norm"`` or ``"value"``. Default: the Trainer's, else ``"norm"``.

        Raises:
            MisconfigurationException: The values contradict the Trainer's.
        """
        self._present_run().optimization.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    @staticmethod
    def from_model(
        model: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        *,
        interval: Literal["epoch", "step"] = "epoch",
        step: Callable[..., Any] | None = None,
        preprocessor: nn.Module | Mapping[str, Any] | None = None,
    ) -> ModelModule:
        """Return a module that trains a plain `torch.nn.Module`, which is its attribute `model`.

        A batch is `(inputs, targets)`, or with weights of the samples `(inputs, targets, weights)`; inputs that are a
        dict or a tuple become arguments of `forward`. Without `loss` the model computes its losses itself, and gets all
        of the batch: a dict as keyword arguments, a tuple or list as arguments if `forward` takes as many. If `forward`
        has an argument `mode`, as in MMEngine, it is "loss" in training and "predict" in evaluations. A Keras model
        (Keras 3 on torch) gets ``training``, and its losses take their arguments in Keras's order.

        Args:
            model: The model.
            loss: ``loss(predictions, targets)``, with the weights as a third argument. Default: the model's output in
                training is the loss, a dict of losses, or has a `loss` next to its predictions.
            optimizer: A function of the parameters, such as ``torch.optim.Adam``, or a partial of one; or an optimizer.
            scheduler: A function of the optimizer, or a scheduler. Default: none.
            interval: When it steps. Default: after each epoch.
            step: ``step(module, batch)`` instead of `loss`: returns what `training_step` may return.
            preprocessor: As for `use_preprocessor`. Default: none.

        Raises:
            MisconfigurationException: An argument does not fit.

        Example:
            >>> from functools import partial
            >>> adam = partial(torch.optim.Adam, lr=1e-3)
            >>> module = Module.from_model(nn.Linear(4, 2), nn.CrossEntropyLoss(), adam)
            >>> module.predict_step((torch.zeros(3, 4), torch.tensor([0, 1, 0])), 0).shape
            torch.Size([3, 2])
        """
        return ModelModule(model, loss, optimizer, scheduler, interval=interval, step=step, preprocessor=preprocessor)

    @overload
    def optimizers(self, use_pl_optimizer: Literal[True] = True) -> LightningOptimizer | list[LightningOptimizer]: ...
    @overload
    def optimizers(self, use_pl_optimizer: Literal[False]) -> Optimizer | list[Optimizer]: ...
    @overload
    def optimizers(
        self, use_pl_optimizer: bool
    ) -> LightningOptimizer | Optimizer | list[LightningOptimizer] | list[Optimizer]: ...
    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizer or the list of them, wrapped so that `step` counts and scales, or unwrapped."""
        return self._present_run().optimization.for_user(use_pl_optimizer)

    def lr_schedulers(self) -> LRScheduler | list[LRScheduler] | None:
        """Return the scheduler, the list of them, or None."""
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        if not schedulers:
            return None
        return schedulers[0] if len(schedulers) == 1 else schedulers

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients in manual optimization: scale the loss if the precision needs it, and call the hooks."""
        if self.automatic_optimization and self.fabric is None:
            raise MisconfigurationException(
                f"{type(self).__name__} called manual_backward, but its automatic_optimization is True.",
                expected="manual optimization.",
                fix="set self.automatic_optimization = False in __init__.",
            )
        self._present_run().optimization.manual_backward(loss, *args, **kwargs)

    def toggle_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> None:
        """Let only the parameters of `optimizer` require gradients, until `untoggle_optimizer`."""
        every = self.optimizers(use_pl_optimizer=False)
        parameters = [p for o in (every if isinstance(every, list) else [every]) for p in _parameters(o)]
        if self._toggled is None:
            self._toggled = {p: p.requires_grad for p in parameters}
        active = {id(p) for p in _parameters(optimizer)}
        for p, needed in self._toggled.items():
            p.requires_grad_(needed and id(p) in active)

    def untoggle_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> None:
        """Undo `toggle_optimizer`."""
        for p, needed in (self._toggled or {}).items():
            p.requires_grad_(needed)
        self._toggled = None

    @contextmanager
    def toggled_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> Iterator[None]:
        """Return a context in which only the parameters of `optimizer` require gradients."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    # logging
    def log(
        self,
        name: str,
        value: Loggable,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Reduction | Callable[[Any], Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value for the loggers, the progress bar and the callbacks.

        Args:
            name: Its name. With both `on_step` and `on_epoch` the loggers get ``name_step`` and ``name_epoch``.
            value: A number, a tensor with one element, or a torchmetrics.Metric (computed and reset by the framework).
            prog_bar: Show it in the progress bar. Default False.
            logger: Pass it to the loggers. Default True.
            on_step: Log the value of this step. Default: True in training hooks, False in evaluation hooks.
            on_epoch: Log the reduction over the epoch. Default: the opposite.
            reduce_fx: ``"mean"`` (weighted by batch size), ``"sum"``, ``"min"``, ``"max"``.
            enable_graph: Accepted and ignored; logged values are always detached.
            sync_dist: Also reduce over processes at each step.
            sync_dist_group: Accepted and ignored; the group is always all processes that read data.
            add_dataloader_idx: Append ``/dataloader_idx_N`` when there are several evaluation loaders.
            batch_size: The weight of a mean. Default: the number of samples in the batch.
            metric_attribute: The attribute that holds the Metric. Default: found by identity.
            rank_zero_only: The call is made on rank zero only, so nothing is reduced over processes.

        Raises:
            LoggingError: The call makes no sense in this hook, or contradicts an earlier call with this name.
        """
        results = self._results
        if results is None:
            report.warn(f"self.log({name!r}, …) was called outside a Trainer's run; nothing is logged.")
            return
        results.log(
            name, value, prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, sync_dist, sync_dist_group,
            add_dataloader_idx, batch_size, metric_attribute, rank_zero_only,
        )  # fmt: skip

    def log_dict(
        self,
        dictionary: Loggables,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Reduction | Callable[[Any], Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log every entry of `dictionary` (or of a torchmetrics.MetricCollection); the arguments are those of `log`."""
        if not hasattr(dictionary, "items"):
            raise LoggingError(
                f"self.log_dict got {dictionary!r:.80} ({type(dictionary).__name__}).",
                expected="a dictionary of names and values, or a torchmetrics.MetricCollection.",
                fix='self.log_dict({"loss": loss, "accuracy": accuracy})',
            )
        items: Iterable[tuple[Any, Any]] = dictionary.items()
        if hasattr(dictionary, "compute_groups"):
            items = dictionary.items(keep_base=False, copy_state=False)  # type: ignore[call-arg]
        for name, value in items:
            self.log(
                name, value, prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, sync_dist, sync_dist_group,
                add_dataloader_idx, batch_size, None, rank_zero_only,
            )  # fmt: skip

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank zero, above the progress bar."""
        if self._trainer is None:
            print(*args, **kwargs)  # noqa: T201  the user's call
        else:
            self._trainer.print(*args, **kwargs)

    # the run
    @property
    def trainer(self) -> Trainer:
        """The Trainer of the run.

        Raises:
            RuntimeError: There is no run.
        """
        if self._trainer is None:
            raise RuntimeError(
                f"{type(self).__name__} is not attached to a Trainer.\n"
                "  Expected: `self.trainer` to be read during a run.\n"
                "  Fix: call trainer.fit(module) first, or move this into a hook."
            )
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        self._trainer = trainer

    def _attach(self, trainer: Any, results: Results | None) -> None:
        """Let the methods of this module use `trainer`, and `self.log` pass its values to `results`.

        Args:
            trainer: A Trainer, or a Fabric's stand-in for one.
            results: Collects the logged values; None: they are not collected.
        """
        self._trainer, self._results = trainer, results

    @property
    def fabric(self) -> Any:
        """The Fabric that has set up the module; None in a Trainer's run and outside of both."""
        return getattr(self._trainer, "fabric", None)

    def _present_run(self) -> Any:
        if self.trainer.run is None:
            raise RuntimeError(
                "There is no run yet.\n  Expected: a call from a step or hook of a run.\n"
                "  Fix: move it into training_step."
            )
        return self.trainer.run

    @property
    def logger(self) -> Logger | None:
        """The first logger, or None."""
        return self._trainer.logger if self._trainer is not None else None

    @property
    def loggers(self) -> list[Logger]:
        """All loggers."""
        return self._trainer.loggers if self._trainer is not None else []

    @property
    def current_epoch(self) -> int:
        """The index of the running epoch; 0 outside a run."""
        return self._trainer.current_epoch if self._trainer is not None else 0

    @property
    def global_step(self) -> int:
        """Batches in which an optimizer stepped; 0 outside a run."""
        return self._trainer.global_step if self._trainer is not None else 0

    @property
    def global_rank(self) -> int:
        """The rank of this process among all; 0 outside a run."""
        return self._trainer.global_rank if self._trainer is not None else 0

    @property
    def local_rank(self) -> int:
        """The rank of this process on its machine; 0 outside a run."""
        return self._trainer.local_rank if self._trainer is not None else 0

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        if self._device is None:
            tensor = next(self.parameters(), next(self.buffers(), None))
            if tensor is None:
                return self._trainer.strategy.root_device if self._trainer is not None else torch.device("cpu")
            self._device = tensor.device
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first floating-point parameter, else torch's default."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    @property
    def on_gpu(self) -> bool:
        """Whether the parameters are on a CUDA device."""
        return self.device.type == "cuda"

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._device = None
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all processes, stacked along a new first dimension; with one process unchanged."""
        strategy, device = self.trainer.strategy, self.device

        def gather(value: Tensor | float) -> Tensor:
            tensor = value if isinstance(value, Tensor) else torch.tensor(value, device=device)
            return strategy.all_gather(tensor, group, sync_grads)

        return gathered(data, gather)

    # building, saving, sharing
    def configure_callbacks(self) -> Callback | type[Callback] | Iterable[Callback | type[Callback] | None] | None:
        """Return callbacks to add to the Trainer's; one replaces a Trainer callback of the same class."""
        return []

    def configure_model(self) -> None:
        """Build (large) layers on the run's device and in its dtype. It is called for every stage, so build once."""
        self.configure_sharded_model()

    def configure_sharded_model(self) -> None:
        """Build layers: the former name of `configure_model`, which calls it unless it is overridden itself."""

    def freeze(self) -> Self:
        """Let no parameter require a gradient, switch to evaluation mode, and return self."""
        self.requires_grad_(False)
        return self.eval()

    def unfreeze(self) -> Self:
        """Let every parameter require a gradient, switch to training mode, and return self."""
        self.requires_grad_(True)
        return self.train()

    load_from_checkpoint = ClassOnly(load_from_checkpoint)

    def to_onnx(self, file_path: str | Path | IO[bytes] | None = None, input_sample: Any = None, **kwargs: Any) -> Any:
        """Export `forward` to ONNX with torch.onnx.export, in evaluation mode.

        Args:
            file_path: The file to write; may be None with ``dynamo=True``, which returns an ONNXProgram.
            input_sample: The input to trace with. Default: `example_input_array`.
            kwargs: Passed to torch.onnx.export.
        """
        return export.to_onnx(self, file_path, input_sample, kwargs)

    def to_torch_export(self, file_path: str | Path | None = None, input_sample: Any = None, **kwargs: Any) -> Any:
        """Export `forward` with torch.export, in evaluation mode, and return the ExportedProgram.

        Args:
            file_path: The ``.pt2`` file to write. Default: none is written.
            input_sample: The input to trace with. Default: `example_input_array`.
            kwargs: Passed to torch.export.export, for instance ``dynamic_shapes``.
        """
        return export.to_torch_export(self, file_path, input_sample, kwargs)

    def to_torchscript(
        self,
        file_path: str | Path | None = None,
        method: Literal["script", "trace"] | None = "script",
        example_inputs: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Compile `forward` with TorchScript, in evaluation mode, and return the ScriptModule. Torch has deprecated it.

        Args:
            file_path: The file to write. Default: none is written.
            method: ``"script"`` or ``"trace"``.
            example_inputs: The input to trace with. Default: `example_input_array`.
            kwargs: Passed to torch.jit.script or torch.jit.trace.
        """
        return export.to_torchscript(self, file_path, method, example_inputs, kwargs)

    def to_tensorrt(
        self,
        file_path: str | Path | IO[bytes] | None = None,
        input_sample: Any = None,
        ir: Literal["default", "dynamo", "ts"] = "default",
        output_format: Literal["exported_program", "torchscript"] = "exported_program",
        retrace: bool = False,
        default_device: str | torch.device = "cuda",
        **compile_kwargs: Any,
    ) -> Any:
        """Compile `forward` with TensorRT, in evaluation mode, and return the compiled module.

        Args:
            file_path: The file to write. Default: none is written.
            input_sample: The input to compile for. Default: `example_input_array`.
            ir: ``"default"``, ``"dynamo"`` or ``"ts"``, as in torch_tensorrt.compile.
            output_format: ``"exported_program"`` or, with ``ir="ts"``, ``"torchscript"``.
            retrace: As in torch_tensorrt.save.
            default_device: The GPU to compile on, if the module is not on one.
            compile_kwargs: Passed to torch_tensorrt.compile.
        """
        saving = {"output_format": output_format, "retrace": retrace}
        return export.to_tensorrt(self, file_path, input_sample, ir, saving, default_device, compile_kwargs)


def gathered(data: Any, gather: Callable[[Tensor | float], Tensor]) -> Any:
    """Return `data` with every tensor and number in its nesting gathered."""
    if isinstance(data, (Tensor, int, float)):
        return gather(data)
    return map_children(lambda value: gathered(value, gather), data)


def _parameters(optimizer: Any) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class ModelModule(ModelSteps, Module):
    """The module that `Module.from_model` returns."""
