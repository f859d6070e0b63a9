"""Callback: base class with the hooks of a run outside of the module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.errors import MisconfigurationException, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch
    from torch.optim import Optimizer
    from typing_extensions import Unpack

    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer
    from lightlib.signatures import Loggable, Loggables, LogOptions

PRIORITIES: dict[str, int] = {
    "highest": 0,
    "very_high": 10,
    "high": 30,
    "above_normal": 40,
    "normal": 50,
    "below_normal": 60,
    "low": 70,
    "very_low": 90,
    "lowest": 100,
}


class Callback:
    """Code that runs at points of a training run: override the hooks you need, the rest cost nothing.

    Attributes:
        priority: Order of the calls: a number from 0 (first) to 100 (last) or a name of `PRIORITIES`.
            Callbacks of equal priority keep the order of ``Trainer(callbacks=[…])``.
        after_module: When true, `on_train_epoch_end` is called after the module's own, so that this callback sees what
            the module logs there (as `ModelCheckpoint` and `EarlyStopping` need).

    Which hook fires when is drawn in ``docs/lifecycle.md``; ``print(trainer.hooks)`` shows it for a run.

    Example:
        >>> class Announce(Callback):
        ...     priority = "low"
        ...     def on_train_start(self, trainer, pl_module):
        ...         print("training begins")
    """

    priority: int | str = "normal"
    after_module: bool = False
    _pl_module: Module | None = None  # during a run

    def __repr__(self) -> str:
        return report.described(self)

    @property
    def state_key(self) -> str:
        """The name under which this callback's state is saved. Two stateful callbacks need two names."""
        return type(self).__qualname__

    def _generate_state_key(self, **arguments: Any) -> str:
        return f"{type(self).__qualname__}{arguments!r}"

    def log(self, name: str, value: Loggable, **arguments: Unpack[LogOptions]) -> None:
        """Log a value as ``pl_module.log(name, value, …)`` does, in the hooks in which that may be called.

        Raises:
            RuntimeError: There is no run.
        """
        self._attached().log(name, value, **arguments)

    def log_dict(self, dictionary: Loggables, **arguments: Unpack[LogOptions]) -> None:
        """Log several values as ``pl_module.log_dict(dictionary, …)`` does.

        Raises:
            RuntimeError: There is no run.
        """
        self._attached().log_dict(dictionary, **arguments)

    def _attached(self) -> Module:
        if self._pl_module is None:
            raise RuntimeError(
                f"{type(self).__name__} logs outside of a run.\n  Expected: `self.log` is called in a hook.\n"
                "  Fix: move the call into one of the callback's hooks."
            )
        return self._pl_module

    # life of a run
    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Called when fit, validate, test or predict begins. `stage` is one of these four words."""

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Called when fit, validate, test or predict ends, also after an exception."""

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when `fit` begins, after the optimizers exist."""

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when `fit` ends."""

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called before the validation batches that are run before training."""

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after the validation batches that are run before training."""

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Called when the run is ended by an exception or Ctrl-C."""

    # training
    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called before the first training epoch."""

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after the last training epoch."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called before the first batch of an epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after the last batch of an epoch and its validation."""

    def on_fit_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when training, validation, logging and schedules of one epoch are all done."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> int | None:
        """Called before a training batch. Return -1 to skip the rest of the epoch."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after a training batch. `outputs`: the return value of `training_step` as a dict, detached."""

    def on_substep_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after a batch in which no optimizer stepped: its gradients are kept for a later one."""

    def on_accumulation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after a batch with an optimizer step, which closes an accumulation window."""

    def on_before_zero_grad(self, trainer: Trainer, pl_module: Module, optimizer: Optimizer) -> None:
        """Called before the gradients are set to None."""

    def on_before_backward(self, trainer: Trainer, pl_module: Module, loss: torch.Tensor) -> None:
        """Called before `loss.backward()`, with the scaled loss."""

    def on_after_backward(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after `loss.backward()`."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Module, optimizer: Optimizer) -> None:
        """Called before `optimizer.step()`, with unscaled gradients, before they are clipped."""

    # evaluation
    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when validation begins."""

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when validation ends; its metrics are in `trainer.callback_metrics`."""

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called before the first validation batch."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after the last validation batch; the place to log metrics of the full epoch."""

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a validation batch."""

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a validation batch, with the return value of `validation_step`."""

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when the test begins."""

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when the test ends."""

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called before the first test batch."""

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after the last test batch."""

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a test batch."""

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a test batch, with the return value of `test_step`."""

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when prediction begins."""

    def on_predict_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called when prediction ends."""

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Called before the first batch to predict."""

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Called after the last batch to predict."""

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a batch to predict."""

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a batch to predict, with the return value of `predict_step`."""

    # numbers and files
    def on_log(self, trainer: Trainer, pl_module: Module, metrics: Mapping[str, float]) -> None:
        """Called whenever metrics are handed to the loggers, with the same numbers."""

    def on_checkpoint_written(self, trainer: Trainer, pl_module: Module, path: str) -> None:
        """Called when a checkpoint file is complete under its final name."""

    def on_checkpoint_uploaded(self, trainer: Trainer, pl_module: Module, uri: str) -> None:
        """Called after `on_checkpoint_written` if the checkpoint is in a remote store."""

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Called with the content of a checkpoint before it is written; may add to it."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Called with the content of a checkpoint that is being loaded, before `load_state_dict`."""

    def checkpoint_weights(
        self, trainer: Trainer, pl_module: Module
    ) -> Mapping[str, Callable[[], AbstractContextManager[None]]]:
        """Return contexts for the weights that a checkpoint holds in place of those that are trained.

        Called on all ranks for each checkpoint.

        Returns:
            By the checkpoint's keys, functions that return a context in which the module has the weights for that key:
            ``"state_dict"``, and ``"current_model_state"`` for those that are trained, which a checkpoint of weights
            alone leaves out. Empty: the checkpoint holds the weights that are trained.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume restores: tensors and plain Python values."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the return value of `state_dict`."""

    def sharded_state(self, trainer: Trainer, pl_module: Module) -> dict[str, dict[str, torch.Tensor]]:
        """Return tensors that belong to parameters, such as moving averages, to be saved as weights are.

        `state_dict` is saved from rank 0. This method is called on all ranks, and each returns the tensors of the
        parameters that it has: under FSDP and tensor parallelism the DTensors, in a pipeline those of its stage. A file
        gets the full tensors, a directory the shards of each rank; any strategy restores either. A callback that does
        not define this method is skipped.

        Returns:
            Any names of the callback's own, each with a tensor by parameter name (`pl_module.named_parameters()`). A
            tensor has the shape and the placement of its parameter, as `torch.zeros_like(parameter)` has; its dtype is
            free, and parameters may be left out. For instance ``{"average": {"net.weight": tensor}}``.

        Raises:
            MisconfigurationException: Raised by the save if a name is no parameter's, a tensor's shape or placement
                differs from the parameter's, or the strategy cannot gather tensors (DeepSpeed).

        Example:
            >>> class SumsGradients(Callback):
            ...     def on_fit_start(self, trainer, pl_module):
            ...         if not hasattr(self, "sums"):  # they have been restored otherwise
            ...             self.sums = {n: torch.zeros_like(p) for n, p in pl_module.named_parameters()}
            ...
            ...     def on_after_backward(self, trainer, pl_module):
            ...         for name, parameter in pl_module.named_parameters():
            ...             self.sums[name] += parameter.grad
            ...
            ...     def sharded_state(self, trainer, pl_module):
            ...         return {"sums": self.sums}
            ...
            ...     def load_sharded_state(self, trainer, pl_module, state):
            ...         self.sums = state["sums"]
        """
        return {}

    def load_sharded_state(
        self, trainer: Trainer, pl_module: Module, state: dict[str, dict[str, torch.Tensor]]
    ) -> None:
        """Restore the return value of `sharded_state`, which may come from another strategy or number of processes.

        Called on all ranks after `load_state_dict`, with the weights in place and before `on_fit_start`; not called if
        the checkpoint holds no tensors of this callback.

        Args:
            trainer, pl_module: As in every hook.
            state: The same names. Each rank gets the tensors of the parameters that it has, placed as these are, on
                their devices and in the saved dtype. The callback may keep them.
        """


def priority_of(callback: Callback) -> int:
    """Return the callback's priority as a number.

    Raises:
        UnknownNameError: The priority is a word that is not in `PRIORITIES`.
        MisconfigurationException: The priority is a number outside of 0 to 100.

    Example:
        >>> priority_of(Callback())
        50
    """
    value = callback.priority
    if isinstance(value, str):
        if value.lower() not in PRIORITIES:
            raise UnknownNameError("priority", value, PRIORITIES, fix=f"set {type(callback).__name__}.priority to one.")
        return PRIORITIES[value.lower()]
    if not 0 <= value <= 100:
        raise MisconfigurationException(
            f"{type(callback).__name__}.priority is {value}.",
            expected="a number from 0 (called first) to 100 (called last), or a name.",
            fix=f"use one of {', '.join(PRIORITIES)}.",
        )
    return value
