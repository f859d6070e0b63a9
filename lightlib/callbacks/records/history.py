"""History: the logged values of one or several fits in memory, with smoothing windows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.records.windows import Method, Window, check_method, check_window, smoothed
from lightlib.errors import UnknownNameError, check_int
from lightlib.loggers.logger import number

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class Record(NamedTuple):
    """One value of a metric.

    Attributes:
        fit: The number of the fit, from 0.
        epoch: The epoch, from 0.
        step: The number of completed optimizer steps.
        value: The value.
    """

    fit: int
    epoch: int
    step: int
    value: float


@dataclass
class _Series:
    """The values of one metric, and when each was recorded."""

    times: list[tuple[int, int, int]] = field(default_factory=list)  # fit, epoch, step
    values: list[float] = field(default_factory=list)

    def add(self, time: tuple[int, int, int], value: float, most: int | None) -> None:
        self.times.append(time)
        self.values.append(value)
        if most is not None and len(self.values) > most:
            del self.times[0], self.values[0]

    def last(self, window: Window) -> list[float]:
        if window == "global":
            return self.values
        if window != "epoch":
            return self.values[-window:]
        fit, epoch, _ = self.times[-1]
        begin = len(self.times)
        while begin and self.times[begin - 1][:2] == (fit, epoch):
            begin -= 1
        return self.values[begin:]

    def state(self) -> dict[str, torch.Tensor]:
        times = torch.tensor(self.times, dtype=torch.int64).reshape(-1, 3)
        return {"times": times, "values": torch.tensor(self.values, dtype=torch.float64)}

    @classmethod
    def of(cls, state: Mapping[str, torch.Tensor]) -> _Series:
        return cls([(a, b, c) for a, b, c in state["times"].tolist()], state["values"].tolist())


class History(Callback):
    """Keeps the values that the loggers get, over all fits of the Trainers that have this callback.

    It records each value when it is logged: values per step every ``log_every_n_steps`` steps, values per epoch at its
    end, and validation and test metrics. A logger is not needed. Other callbacks and the module add values of their own
    by `add`, and share anything else in `info`; all find it as ``trainer.history``. It is saved in checkpoints, so a
    resumed run has the history of an unbroken one.

    On processes other than rank zero, values per step are those of the process, and after a resume those of rank zero.

    Args:
        max_values: How many of the newest values of each metric are kept. None: all. Default: None.

    Attributes:
        info: Plain values and tensors by name, saved with the history.

    Raises:
        ArgumentTypeError: `max_values` is no int.
        MisconfigurationException: `max_values` is below 1.

    Example:
        >>> import lightlib as L
        >>> from lightlib.testing import BoringModule
        >>> history = History()
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[history], logger=False, log_every_n_steps=1,
        ...                     enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
        >>> trainer.fit(BoringModule())
        >>> len(history.values("train_loss_step")) == trainer.global_step
        True
        >>> recent = history.smoothed("train_loss_step", window=10, method="median")
        >>> trainer.history is history
        True
    """

    def __init__(self, max_values: int | None = None) -> None:
        super().__init__()
        if max_values is not None:
            check_int("History", "max_values", max_values, 1, meaning=", or None for all", fix="History()")
        self.max_values = max_values
        self.info: dict[str, Any] = {}
        self._series: dict[str, _Series] = {}
        self._last = (0, 0, 0)  # fit, epoch, step
        self._trainer: Trainer | None = None  # during a run

    @property
    def names(self) -> list[str]:
        """The names of the metrics, in the order in which they first appeared."""
        return list(self._series)

    def __contains__(self, name: object) -> bool:
        return name in self._series

    def __getitem__(self, name: str) -> list[Record]:
        """Return the records of a metric, the oldest first.

        Raises:
            UnknownNameError: There are no values of this name.
        """
        series = self._find(name)
        return [Record(*time, value) for time, value in zip(series.times, series.values, strict=True)]

    def values(self, name: str) -> list[float]:
        """Return the values of a metric, the oldest first.

        Raises:
            UnknownNameError: There are none of this name.
        """
        return list(self._find(name).values)

    def latest(self, name: str) -> float:
        """Return the newest value of a metric.

        Raises:
            UnknownNameError: There are none of this name.
        """
        return self._find(name).values[-1]

    def smoothed(self, name: str, window: Window = 20, method: Method = "mean") -> float:
        """Return one number for the newest values of a metric; NaN if one of them is NaN.

        Args:
            name: The metric.
            window: How many of the newest values count; ``"epoch"`` for those of the epoch of the newest one,
                ``"global"`` for all. Default: 20.
            method: ``"mean"``, ``"median"``, ``"min"``, ``"max"`` or ``"latest"``. Default: ``"mean"``.

        Raises:
            UnknownNameError: There are no values of this name, no such window or method.
            ArgumentTypeError: `window` has another type.
            MisconfigurationException: `window` is below 1.

        Example:
            >>> history = History()
            >>> for value in (4.0, 1.0, 3.0, 2.0):
            ...     history.add("loss", value)
            >>> history.smoothed("loss", window=3), history.smoothed("loss", window="global", method="median")
            (2.0, 2.5)
        """
        check_window("History.smoothed", window)
        check_method("History.smoothed", method)
        return smoothed(self._find(name).last(window), method)

    def add(self, name: str, value: Any) -> None:
        """Add a value at the current epoch and step.

        Args:
            name: The metric.
            value: A number, or a tensor with one element.

        Raises:
            ArgumentTypeError: `value` is neither.
        """
        as_float = number(name, value)
        self._series.setdefault(name, _Series()).add(self._time, as_float, self.max_values)

    def clear(self) -> None:
        """Forget all values, `info`, and the number of fits."""
        self._series.clear()
        self.info.clear()
        self._last = (0, 0, 0)

    def _find(self, name: str) -> _Series:
        series = self._series.get(name)
        if series is None:
            raise UnknownNameError("metric of History", name, self.names, fix=f"self.log({name!r}, value)")
        return series

    @property
    def _time(self) -> tuple[int, int, int]:
        """The present fit, epoch and step; between runs those at the end of the last one."""
        trainer = self._trainer
        return self._last if trainer is None else (self._last[0], trainer.current_epoch, trainer.global_step)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._trainer = trainer

    def on_log(self, trainer: Trainer, pl_module: Module, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name != "epoch":
                self.add(name, value)

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        fit, epoch, step = self._time
        self._last, self._trainer = (fit + (stage == "fit"), epoch, step), None

    def state_dict(self) -> dict[str, Any]:
        series = {name: values.state() for name, values in self._series.items()}
        return {"series": series, "now": list(self._time), "info": copy.deepcopy(self.info)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._series = {name: _Series.of(state) for name, state in state_dict["series"].items()}
        fit, epoch, step = state_dict["now"]
        self._last, self.info = (fit, epoch, step), dict(state_dict["info"])
