"""The Trainer's callbacks: the user's, those of installed packages, and the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from lightlib.callbacks.durations import Duration
from lightlib.callbacks.timer import Timer
from lightlib.core.check import check_callbacks
from lightlib.core.run.hooks import in_priority
from lightlib.core.setup.callbacks import NamedCallbacks, callbacks_of_packages
from lightlib.core.setup.settings import Settings
from lightlib.errors import MisconfigurationException


def all_callbacks(given: Any, settings: Settings, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the Trainer's callbacks in call order."""
    from lightlib import callbacks as known  # optional: rich, only when a bar or summary is made

    named = NamedCallbacks.of(given)
    callbacks = named.callbacks + callbacks_of_packages()
    check_callbacks(callbacks)
    bars = [type(callback).__name__ for callback in callbacks if isinstance(callback, known.ProgressBar)]
    if len(bars) > 1:
        raise MisconfigurationException(
            f"callbacks holds {len(bars)} progress bars: {', '.join(bars)}.",
            expected="one progress bar.",
            fix=f"leave out {bars[1]}().",
        )

    def summary() -> Any:  # drawn with rich if the progress bar is
        with_rich = any(isinstance(callback, known.RichProgressBar) for callback in callbacks)
        return known.RichModelSummary() if with_rich else known.ModelSummary()

    defaults: list[tuple[str, str, bool, type, Callable[[], Any]]] = [
        (
            "progress",
            "enable_progress_bar",
            settings.enable_progress_bar,
            known.ProgressBar,
            known.default_progress_bar,
        ),
        ("summary", "enable_model_summary", settings.enable_model_summary, known.ModelSummary, summary),
        ("checkpoint", "enable_checkpointing", settings.enable_checkpointing, known.Checkpoint, known.ModelCheckpoint),
    ]
    for name, argument, enabled, kind, make in defaults:
        present = next((callback for callback in callbacks if isinstance(callback, kind)), None)
        if arguments[argument] is True and present is None and name in named.without:
            raise MisconfigurationException(
                f"{argument}=True, but callbacks leaves out {name!r}.",
                expected="one of the two.",
                fix=f"leave out {argument}=True, or callbacks=[…, {{{name!r}: True}}].",
            )
        if enabled and present is None and name not in named.without:
            callbacks.append(make())
        if arguments[argument] is False and present is not None:
            raise _contradiction(f"{argument}=False", present)
    if settings.max_time is not None:
        timer = next((callback for callback in callbacks if isinstance(callback, Timer)), None)
        if timer is not None:
            raise _contradiction(f"max_time={arguments['max_time']!r}", timer)
        callbacks.insert(0, Timer(timedelta(seconds=settings.max_time)))
    durations = (
        settings.max_duration,
        settings.validate_each,
        *(getattr(callback, "every", None) for callback in callbacks),
    )
    counted = any(isinstance(each, Duration) and each.unit in ("st", "ba", "sp", "tok") for each in durations)
    if settings.halves_batches and not any(isinstance(callback, known.MicroBatches) for callback in callbacks):
        callbacks.insert(0, known.MicroBatches())
    if counted and not any(isinstance(callback, known.DataCounter) for callback in callbacks):
        callbacks.insert(0, known.DataCounter())
    return in_priority(callbacks)


def has_timer(callbacks: Iterable[Any]) -> bool:
    """Whether a Timer is among some callbacks: then time may end the run."""
    return any(isinstance(callback, Timer) for callback in callbacks)


def _contradiction(argument: str, callback: Any) -> MisconfigurationException:
    name = type(callback).__name__
    return MisconfigurationException(
        f"{argument}, but callbacks holds a {name}.",
        expected="one of the two.",
        fix=f"leave out {argument} or the {name}.",
    )
