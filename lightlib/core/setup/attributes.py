"""Attributes of the Trainer: views of objects that it holds, limits, and help for names it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from typing_extensions import Self

from lightlib.conventions import internal

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

T = TypeVar("T")

INTERNALS = {  # of Lightning's Trainer, and their public counterparts here
    "fit_loop": "`trainer.progress`, `trainer.plan`; `trainer.max_epochs` and `trainer.max_steps`, which may be set",
    "validate_loop": "`trainer.num_val_batches`",
    "test_loop": "`trainer.num_test_batches`",
    "predict_loop": "`trainer.num_predict_batches`",
    "_callback_connector": "`trainer.callbacks`",
    "_signal_connector": "`trainer.received_sigterm`",
    "_data_connector": "`trainer.train_dataloader` and its siblings",
    "_logger_connector": "`trainer.callback_metrics`",
    "_checkpoint_connector": "`trainer.save_checkpoint`",
    "_accelerator_connector": "`trainer.strategy` and `trainer.accelerator`",
}
REMOVED = {  # from Lightning's Trainer in 2.0, and what serves instead
    "lightning_optimizers": "`module.optimizers()`",
    "lr_schedulers": "`trainer.lr_scheduler_configs`",
    "tuner": "`lightlib.tuner.Tuner(trainer)`, or the callbacks LearningRateFinder and BatchSizeFinder",
}
MISSING = {*INTERNALS, *REMOVED}


class View(property, Generic[T]):
    """A property in one line: a value of an object that the owner holds, and its docstring."""

    def __init__(self, get: Callable[[Trainer], T], doc: str) -> None:
        super().__init__(get, doc=doc)

    if TYPE_CHECKING:  # at run time, property's

        @overload
        def __get__(self, owner: None, kind: type, /) -> Self: ...
        @overload
        def __get__(self, owner: object, kind: type | None = None, /) -> T: ...
        def __get__(self, owner: Any, kind: type | None = None, /) -> Any: ...


class Limit(Generic[T]):
    """A setting as an attribute of the Trainer, by the name of its argument.

    Setting it checks the value and changes the plan of a fit that runs.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, trainer: None, kind: type, /) -> Self: ...
    @overload
    def __get__(self, trainer: Trainer, kind: type | None = None, /) -> T: ...
    def __get__(self, trainer: Trainer | None, kind: type | None = None, /) -> Any:
        return self if trainer is None else getattr(trainer.settings, self.name)

    def __set__(self, trainer: Trainer, value: Any) -> None:
        if "settings" not in vars(trainer):
            return  # by a subclass before super().__init__(…), whose argument decides
        trainer.settings.change(self.name, value)
        run = trainer.run
        if run is not None and run.stage == "train" and run.train_data is not None:
            plan = run.replan(run.train_data.num_batches)
            if trainer.progress.epoch_batch:  # a new accumulation begins with the next epoch
                plan = replace(plan, accumulate=run.plan.accumulate)
            run.use_plan(plan)


def missing(trainer: Trainer, name: str) -> Any:
    """Return an attribute that only Lightning's Trainer has, or raise the error that names its counterpart."""
    hint = ""
    if name in INTERNALS:
        hint = f" `{name}` is internal to Lightning; use {INTERNALS[name]}."
    elif name in REMOVED:
        hint = f" `{name}` was removed in Lightning 2.0; use {REMOVED[name]}."
    return internal(trainer, name, f"'{type(trainer).__name__}' object has no attribute {name!r}.{hint}")
