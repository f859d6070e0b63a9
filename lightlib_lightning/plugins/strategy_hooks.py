"""Hooks of a strategy under Lightning's protocol; they do nothing until overridden."""

from __future__ import annotations

from typing import Any

__all__ = ["HOOKS", "StrategyHooks"]

HOOKS = (
    *(f"on_{stage}_{moment}" for stage in ("train", "validation", "test", "predict") for moment in ("start", "end")),
    "on_train_batch_start",
    "on_exception",
)


class StrategyHooks:
    """Hooks that run after those of the callbacks and the module."""

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
