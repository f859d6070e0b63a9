"""The Trainer's callbacks: the user's, those of installed packages, and the defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from lightlib.core.check import check_callbacks
from lightlib.core.run.hooks import in_priority
from lightlib.core.setup.plugins import callbacks_in, callbacks_of_packages
from lightlib.core.setup.settings import Settings
from lightlib.errors import MisconfigurationException

__all__ = ["all_callbacks"]


def all_callbacks(given: Any, settings: Settings, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the Trainer's callbacks in call order.

    Args:
        given: The user's callbacks.
        settings: The Trainer's settings, which turn defaults on and off.
        arguments: The Trainer's arguments as the user gave them.

    Raises:
        MisconfigurationException: Two callbacks, or a callback and an argument, contradict each other.
    """
    from lightlib import callbacks as known  # optional: rich, only when a bar or summary is made

    callbacks = callbacks_in(given) + callbacks_of_packages()
    check_callbacks(callbacks)
    _refuse_two(callbacks, known.ProgressBar, "progress bar")
    defaults: list[tuple[str, bool, type, Callable[[], Any]]] = [
        ("enable_progress_bar", settings.enable_progress_bar, known.ProgressBar, known.default_progress_bar),
        ("enable_model_summary", settings.enable_model_summary, known.ModelSummary, lambda: _summary(callbacks)),
        ("enable_checkpointing", settings.enable_checkpointing, known.Checkpoint, known.ModelCheckpoint),
    ]
    for argument, enabled, kind, make in defaults:
        present = next((callback for callback in callbacks if isinstance(callback, kind)), None)
        if enabled and present is None:
            callbacks.append(make())
        if arguments[argument] is False and present is not None:
            raise MisconfigurationException(
                f"{argument}=False, but callbacks holds a {type(present).__name__}.",
                expected="one of the two.",
                fix=f"leave out {argument}=False or the {type(present).__name__}.",
            )
    if settings.max_time is not None:
        callbacks.insert(0, known.Timer(timedelta(seconds=settings.max_time)))
        _refuse_max_time_with_timer(callbacks, known.Timer, arguments["max_time"])
    return in_priority(callbacks)


def _summary(callbacks: list[Any]) -> Any:
    """Return a model summary that is drawn with rich if the progress bar is."""
    from lightlib import callbacks as known  # optional: rich, only when a bar or summary is made

    with_rich = any(isinstance(callback, known.RichProgressBar) for callback in callbacks)
    return known.RichModelSummary() if with_rich else known.ModelSummary()


def _refuse_max_time_with_timer(callbacks: list[Any], timer: type, max_time: Any) -> None:
    timers = [callback for callback in callbacks if isinstance(callback, timer)][1:]
    if timers:
        raise MisconfigurationException(
            f"max_time={max_time!r}, but callbacks holds a {type(timers[0]).__name__}.",
            expected="one of the two: max_time makes a Timer.",
            fix="leave out max_time, and give the Timer its duration.",
        )


def _refuse_two(callbacks: list[Any], kind: type, what: str) -> None:
    names = [type(callback).__name__ for callback in callbacks if isinstance(callback, kind)]
    if len(names) > 1:
        raise MisconfigurationException(
            f"callbacks holds {len(names)} {what}s: {', '.join(names)}.",
            expected=f"one {what}.",
            fix=f"leave out {names[1]}().",
        )
