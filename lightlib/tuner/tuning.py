"""Tuner: searches for a learning rate or a batch size without training the module."""

from __future__ import annotations

from typing import Any, Literal

from lightlib.core.check import check_module
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.probe import Call
from lightlib.core.spawned import spawns_processes
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException, check_word, wrong_value
from lightlib.tuner.batch_size_finder import BatchSizeFinder
from lightlib.tuner.learning_rate_finder import LearningRateFinder
from lightlib.tuner.lr_curve import LRFinder

__all__ = ["Tuner"]

_METHODS = ("fit", "validate", "test", "predict")
Method = Literal["fit", "validate", "test", "predict"]


class Tuner:
    """Searches for a learning rate or a batch size with copies of your objects, and sets the result.

    Args:
        trainer: The Trainer whose devices, precision and limits the searches use.

    Example:
        >>> import torch
        >>> from lightlib import Module, Trainer
        >>> class Line(Module):
        ...     lr = 1e-3
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(2, 1)
        ...     def training_step(self, batch):
        ...         return (self.layer(batch) - 1).square().mean()
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), self.lr)
        >>> trainer = Trainer(accelerator="cpu", logger=False, max_epochs=1)
        >>> module = Line()
        >>> curve = Tuner(trainer).lr_find(module, [torch.ones(4, 2)] * 10, num_training=30)
        >>> len(curve.results["lr"]), module.lr == curve.suggestion()
        (30, True)
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer

    def lr_find(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: Method = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> LRFinder | None:
        """Search for a learning rate.

        Args:
            model: The module; it is not trained.
            train_dataloaders: As for `Trainer.fit`.
            val_dataloaders: Accepted; the search does not validate.
            dataloaders: None.
            datamodule: As for `Trainer.fit`.
            method: ``"fit"``.
            min_lr, max_lr, mode, early_stop_threshold, update_attr, attr_name: As for
                :class:`lightlib.callbacks.LearningRateFinder`.
            num_training: Its `num_training_steps`.

        Returns:
            The curve; None under `fast_dev_run`.

        Raises:
            MisconfigurationException: As for the callback; the Trainer has one; a strategy that spawns processes.
        """
        if method != "fit":
            expected = "'fit': only training has a learning rate"
            raise wrong_value("lr_find", "method", method, expected, fix="leave it out.")
        finder = LearningRateFinder(min_lr, max_lr, num_training, mode, early_stop_threshold, update_attr, attr_name)
        self._refuse(LearningRateFinder)
        call = _call(model, train_dataloaders, val_dataloaders, dataloaders, datamodule, method)
        self._connect()
        finder.lr_find(self._trainer, call.module, call)
        return finder.optimal_lr

    def scale_batch_size(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: Method = "fit",
        mode: Literal["power", "binsearch"] = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> int | None:
        """Search for the largest batch size that fits into memory.

        Args:
            model: The module; it is not trained.
            train_dataloaders: A DataModule or None: a loader's batch size is fixed.
            val_dataloaders: None.
            dataloaders: A DataModule or None, for the methods that evaluate.
            datamodule: The data module.
            method: ``"fit"`` (default), ``"validate"``, ``"test"`` or ``"predict"``: what the probes do.
            mode, steps_per_trial, init_val, max_trials, batch_arg_name, margin, max_val: As for
                :class:`lightlib.callbacks.BatchSizeFinder`.

        Returns:
            The batch size, also set on the module or data module; None under `fast_dev_run`.

        Raises:
            MisconfigurationException: As for the callback; the Trainer has one; a strategy that spawns processes.
        """
        finder = BatchSizeFinder(mode, steps_per_trial, init_val, max_trials, batch_arg_name, margin, max_val)
        self._refuse(BatchSizeFinder)
        call = _call(model, train_dataloaders, val_dataloaders, dataloaders, datamodule, method)
        if self._trainer.fast_dev_run:
            finder.optimal_batch_size = None
        self._connect()
        finder.scale_batch_size(self._trainer, call.module, call)
        return finder.optimal_batch_size

    def _refuse(self, kind: type) -> None:
        if any(isinstance(callback, kind) for callback in self._trainer.callbacks):
            raise MisconfigurationException(
                f"The Trainer has a {kind.__name__} already.",
                expected="the callback or the Tuner, which would search twice.",
                fix=f"leave {kind.__name__} out of callbacks=.",
            )
        if spawns_processes(self._trainer):
            raise MisconfigurationException(
                f"A Tuner with the strategy {self._trainer.strategy.describe()}, which spawns its processes.",
                expected="a strategy that does not, or the callback.",
                fix=f"Trainer(callbacks=[{kind.__name__}()])",
            )

    def _connect(self) -> None:
        self._trainer.connect_for_probes()


def _call(model: Any, train: Any, val: Any, evaluation: Any, datamodule: Any, method: str) -> Call:
    """Return the call that the searches make; refuse arguments that contradict `method`."""
    check_word("Tuner", "method", method, _METHODS, fix="method='fit'")
    check_module(model, method)
    if method == "fit" and evaluation is not None:
        raise MisconfigurationException(
            "dataloaders with method='fit'.", expected="train_dataloaders.", fix="train_dataloaders=loader"
        )
    if method != "fit" and (train is not None or val is not None):
        raise MisconfigurationException(
            f"train_dataloaders or val_dataloaders with method={method!r}.",
            expected="dataloaders.",
            fix="dataloaders=loader",
        )
    first = train if method == "fit" else evaluation
    if isinstance(first, DataModule):
        first, datamodule = None, datamodule or first
    loaders = {"train_dataloaders": first, "val_dataloaders": val} if method == "fit" else {"dataloaders": first}
    return Call(method, model, loaders, datamodule)
