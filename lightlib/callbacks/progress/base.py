"""ProgressBar: the base of everything that shows progress."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class ProgressBar(Callback):
    """Base of everything that shows progress; by itself it shows nothing.

    A bar of your own overrides the hooks that it draws in. One that should be drawn by time, with the pace and the
    remaining time worked out, derives from :class:`lightlib.callbacks.progress.timed.TimedProgressBar`.

    Example:
        >>> class Percent(ProgressBar):
        ...     def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        ...         print(f"{(batch_idx + 1) / self.total_train_batches:.0%}", flush=True)
    """

    def __init__(self) -> None:
        super().__init__()
        self._trainer: Trainer | None = None
        self._enabled = True
        self._loader = 0

    @property
    def trainer(self) -> Trainer:
        """The trainer that this bar belongs to, from `setup` on.

        Raises:
            MisconfigurationException: No run has begun yet.
        """
        if self._trainer is None:
            raise MisconfigurationException(
                f"{type(self).__name__}.trainer was read before a run began.",
                expected="a bar that was handed to a Trainer whose fit, validate, test or predict has begun.",
                fix="read it in a hook, and call super().setup(...) in a setup of your own.",
            )
        return self._trainer

    @property
    def is_enabled(self) -> bool:
        """Whether this bar shows anything."""
        return self._enabled

    @property
    def is_disabled(self) -> bool:
        """Whether this bar shows nothing."""
        return not self.is_enabled

    def disable(self) -> None:
        """Show nothing from now on. Called on all ranks but zero."""
        self._enabled = False

    def enable(self) -> None:
        """Show progress again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print without breaking the bar; the arguments are those of the built-in `print`."""
        builtins.print(*args, **kwargs)  # noqa: T201 - what this method is for

    @property
    def sanity_check_description(self) -> str:
        """Name of the bar for the validation batches before training."""
        return "Sanity checking"

    @property
    def train_description(self) -> str:
        """Name of the training bar; the epoch is added to it."""
        return "Epoch"

    @property
    def validation_description(self) -> str:
        """Name of the validation bar."""
        return "Validation"

    @property
    def test_description(self) -> str:
        """Name of the test bar."""
        return "Testing"

    @property
    def predict_description(self) -> str:
        """Name of the prediction bar."""
        return "Predicting"

    @property
    def total_train_batches(self) -> int | float:
        """Training batches per epoch; `inf` if the loader has no length."""
        return self.trainer.num_training_batches

    @property
    def total_val_batches(self) -> int | float:
        """Validation (or sanity-check) batches of all loaders; 0 in a training epoch without validation."""
        trainer, plan = self.trainer, self.trainer.plan
        in_epochs = plan is not None and trainer.state.fn == "fit" and not trainer.sanity_checking
        if in_epochs and plan is not None and not plan.validates_epoch(trainer.current_epoch):
            return 0
        return sum(self._val_batches)

    @property
    def total_val_batches_current_dataloader(self) -> int | float:
        """Validation (or sanity-check) batches of the loader that is running."""
        return self._val_batches[self._loader]

    @property
    def total_test_batches_current_dataloader(self) -> int | float:
        """Test batches of the loader that is running."""
        total: float = self.trainer.num_test_batches[self._loader]
        return total

    @property
    def total_predict_batches_current_dataloader(self) -> int | float:
        """Batches to predict of the loader that is running."""
        total: float = self.trainer.num_predict_batches[self._loader]
        return total

    @property
    def _val_batches(self) -> Sequence[int | float]:
        trainer = self.trainer
        batches: Any = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        return batches if isinstance(batches, Sequence) else [batches]

    def get_metrics(self, trainer: Trainer, pl_module: Module) -> dict[str, int | str | float | dict[str, float]]:
        """Return the values shown next to the bar: those logged with ``prog_bar=True``, and the logger's version.

        Called only when something is drawn. Override it to show more or less.

        Example:
            >>> class Bar(ProgressBar):
            ...     def get_metrics(self, trainer, pl_module):
            ...         items = super().get_metrics(trainer, pl_module)
            ...         items.pop("v_num", None)
            ...         return items
        """
        items: dict[str, Any] = dict(trainer.progress_bar_metrics)
        version: Any = trainer.loggers[0].version if trainer.loggers else None
        version = version() if callable(version) else version
        if version in (None, ""):
            return items
        if "v_num" in items:
            report.warn(
                "The metric 'v_num' was logged with prog_bar=True, but the bar calls the logger's version so.\n"
                "  Expected: another name.\n"
                "  Fix: rename it, or override `get_metrics` to choose what is shown."
            )
            return items
        return {**items, "v_num": version[-4:] if isinstance(version, str) else version}

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Remember the trainer; on all ranks but zero, show nothing."""
        self._trainer = trainer
        if not trainer.is_global_zero:
            self.disable()
