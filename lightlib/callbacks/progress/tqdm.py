"""TQDMProgressBar: the progress of a run as bars of tqdm, in terminals and notebooks."""

from __future__ import annotations

import functools
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.log_handlers import LogHandlers
from lightlib.callbacks.progress.text import Moment, count, facts, line, metric_texts
from lightlib.callbacks.progress.timed import TimedProgressBar
from lightlib.errors import MisconfigurationException, check_int

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_WIDE = "{desc}{bar} {n_fmt}/{total_fmt}{postfix}"
_NARROW = "{desc}{n_fmt}/{total_fmt}{postfix}"
_NARROWEST_BAR = 5


class _BarOf:
    """Attribute of a `TQDMProgressBar`: the bar of a stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def __get__(self, owner: TQDMProgressBar | None, kind: type) -> Any:
        return self if owner is None else owner._bar(self._stage)  # noqa: SLF001  this attribute is part of that class

    def __set__(self, owner: TQDMProgressBar, bar: Any) -> None:
        owner._bars[self._stage] = bar  # noqa: SLF001  as above


class TQDMProgressBar(TimedProgressBar):
    """Progress as bars of tqdm; in a notebook these are widgets, and a line of text stays in the saved notebook.

    Args:
        refresh_rate: Batches between two drawings at least; 0 switches the bar off. Whatever it is, the bar is drawn
            ten times a second at most. Default: 1. The environment's ``TQDM_MINITERS`` makes it larger.
        process_position: The line of the first bar, for several processes that share a terminal. Default: 0.
        leave: Leave the bar of every finished epoch. Default: False.

    The bars can be read after the run as well; then they are closed.

    Raises:
        ArgumentTypeError: `refresh_rate` or `process_position` is no int.
        MisconfigurationException: One of them is negative.

    Example:
        >>> class Bar(TQDMProgressBar):
        ...     def init_validation_tqdm(self):
        ...         bar = super().init_validation_tqdm()
        ...         bar.set_description("Validating")
        ...         return bar
    """

    train_progress_bar = _BarOf("train")
    test_progress_bar = _BarOf("test")
    predict_progress_bar = _BarOf("predict")

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__()
        check_int("TQDMProgressBar", "refresh_rate", refresh_rate, 0)
        check_int("TQDMProgressBar", "process_position", process_position, 0)
        self.refresh_rate = max(refresh_rate, _miniters()) if refresh_rate else 0
        self.process_position = process_position
        self.leave = leave
        self._bars: dict[str, Any] = {}
        self._closed: dict[str, Any] = {}
        self._handlers = LogHandlers()
        self._titles: dict[str, str] = {}

    @property
    def val_progress_bar(self) -> Any:
        """The bar of the validation, or of the validation batches before training."""
        bars = {**self._closed, **self._bars}
        first = "sanity_check" in self._bars or ("sanity_check" in bars and "validate" not in bars)
        return self._bar("sanity_check" if first else "validate")

    @val_progress_bar.setter
    def val_progress_bar(self, bar: Any) -> None:
        self._bars["sanity_check" if "sanity_check" in self._bars else "validate"] = bar

    def init_sanity_tqdm(self) -> Any:
        """Return the bar of the validation batches before training."""
        return self._new(self.sanity_check_description, self.total_val_batches_current_dataloader, leave=False)

    def init_train_tqdm(self) -> Any:
        """Return the bar of the training."""
        return self._new(self.train_description, self.total_train_batches, leave=True)

    def init_validation_tqdm(self) -> Any:
        """Return the bar of the validation."""
        nested = "train" in self._stages
        total = self.total_val_batches_current_dataloader
        return self._new(self.validation_description, total, leave=not nested, position=int(nested))

    def init_test_tqdm(self) -> Any:
        """Return the bar of the test."""
        return self._new(self.test_description, self.total_test_batches_current_dataloader, leave=True)

    def init_predict_tqdm(self) -> Any:
        """Return the bar of the prediction."""
        return self._new(self.predict_description, self.total_predict_batches_current_dataloader, leave=True)

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print above the bars; the arguments are those of the built-in `print`."""
        if not self._bars or self.is_disabled:
            return super().print(*args, sep=sep, **kwargs)
        kwargs.pop("flush", None)
        _tqdm().write(sep.join(map(str, args)), **kwargs)
        return None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        if "train" not in self._bars:  # the last epoch's was left
            self.open("train")
        super().on_train_epoch_start(trainer, pl_module)

    def open(self, stage: str) -> None:
        make = {
            "sanity_check": self.init_sanity_tqdm,
            "train": self.init_train_tqdm,
            "validate": self.init_validation_tqdm,
            "test": self.init_test_tqdm,
            "predict": self.init_predict_tqdm,
        }[stage]
        if not self._bars and self.is_enabled:
            for stream in (sys.stdout, sys.stderr):
                if getattr(stream, "isatty", bool)():  # what a program has put in its place may have none
                    self._handlers.redirect(stream, _AboveBars(stream))
        self._bars[stage] = make()
        self._titles[stage] = self._description(stage)

    def draw(self, stage: str, moment: Moment) -> None:
        bar = self._bars[stage]
        if 0 < moment.batch - bar.n < self.refresh_rate and moment.fraction != 1:
            return
        bar.total, bar.n = None if moment.total == math.inf else int(moment.total), moment.batch
        if not bar.disable:
            if bar.desc == self._titles[stage]:  # otherwise the user has set another one
                bar.set_description(moment.title, refresh=False)
                self._titles[stage] = bar.desc
            self._fill(bar, moment)
            bar.refresh()

    def close(self, stage: str, moment: Moment | None) -> None:
        if stage in self._bars:
            if moment is not None:
                self.draw(stage, moment)
            bar = self._bars[stage]
            bar.leave = moment is not None
            if moment is None and stage != "train":
                bar.n = self._batch_idx + 1  # for code that reads it later
            self._close(stage)
            if stage == "train" and moment is not None and getattr(bar, "container", None) is not None:
                sys.stdout.write(line(moment) + "\n")  # a notebook is saved without its widgets

    def stop(self) -> None:
        for stage in reversed(list(self._bars)):
            self._close(stage)

    def _close(self, stage: str) -> None:
        bar = self._closed[stage] = self._bars.pop(stage)
        try:
            bar.close()
        finally:
            if not self._bars:
                self._handlers.restore()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the bars: they hold on to the terminal."""
        return {**self.__dict__, "_bars": {}, "_closed": {}, "_handlers": LogHandlers()}

    def leave_epoch(self, moment: Moment) -> None:
        self.close("train", moment)

    def _new(self, description: str, total: float, leave: bool, position: int = 0) -> Any:
        return _tqdm()(
            desc=description,
            total=None if total == math.inf else int(total),
            leave=leave,
            position=2 * self.process_position + position,
            disable=self.is_disabled,
            bar_format=_WIDE,
            dynamic_ncols=True,
            file=sys.stdout,
            mininterval=0,
        )

    def _bar(self, stage: str) -> Any:
        bar = self._bars.get(stage, self._closed.get(stage))
        if bar is None:
            raise MisconfigurationException(
                f"The {stage} bar of {type(self).__name__} was read while there is none.",
                expected=f"a hook after the start of {stage!r}, or a run that has had this stage.",
                fix=f"read it in such a hook, or override the init method that makes the {stage} bar.",
            )
        return bar

    def _fill(self, bar: Any, moment: Moment) -> None:
        """Write the text next to the bar; in a narrow terminal without the bar, the most important parts first."""
        (time, *pace), metrics = facts(moment), metric_texts(moment)
        words, wide = [time, *pace, *metrics], True
        if isinstance(bar.ncols, int) and bar.bar_format in (_WIDE, _NARROW):
            room = bar.ncols - 1 - len(bar.desc) - len(count(moment))
            wide = sum(len(word) + 2 for word in words) + _NARROWEST_BAR + 1 <= room
            if not wide:
                words = _fitting([time, *metrics, *pace], room)
            bar.bar_format = _WIDE if wide else _NARROW
        bar.set_postfix_str(", ".join(words), refresh=False)


def _fitting(words: list[str], room: int) -> list[str]:
    """The first words that fit when each is written after a comma and a space."""
    fitting: list[str] = []
    for word in words:
        room -= len(word) + 2
        if room < 0:
            break
        fitting.append(word)
    return fitting


def _miniters() -> int:
    """Return tqdm's own setting of the batches between two drawings."""
    variable = os.environ.get("TQDM_MINITERS", "1")
    if not variable.isdigit():
        raise MisconfigurationException(
            f"TQDM_MINITERS={variable!r}.", expected="a number of batches, an int >= 0.", fix="unset TQDM_MINITERS"
        )
    return int(variable)


class _AboveBars:
    """A terminal's stream, on which lines are written above the bars."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        _tqdm().write(text, file=self._stream, end="")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@functools.cache
def _tqdm() -> Any:
    from tqdm.auto import tqdm  # optional: tqdm

    class Tqdm(tqdm):  # type: ignore[misc]
        """tqdm's bar without its thread: it is drawn when a batch ends."""

        monitor_interval = 0

    return Tqdm
