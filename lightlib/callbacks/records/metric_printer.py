"""MetricPrinter: a line of metrics every n batches and after each epoch."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import endings_of
from lightlib.callbacks.progress.remaining_time import Pace, Validations, limit, remaining_in_run
from lightlib.callbacks.progress.text import clock
from lightlib.callbacks.records.windows import Method, Window, check_method, check_window, smoothed
from lightlib.errors import check_int, check_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_MIB = 2**20


class MetricPrinter(Callback):
    """Prints lines of metrics to standard output, in a terminal or not, on rank zero.

    A line of training has the learning rate, the remaining time of the run, the mean seconds of a batch and those spent
    waiting for its data, samples per second of all processes, the peak memory of the device (on a CPU: of this process)
    in MiB, and the numbers that `training_step` returns, averaged over a window::

        Epoch(train) [1][20/1563]  lr: 1.0000e-03  eta: 00:18:23  time: 0.0142  data_time: 0.0008  ips: 2257.7  …
        Epoch(val) [1][313/313]  accuracy: 0.3570  time: 0.0052  data_time: 0.0011

    Brackets count batches. If several make an optimizer step (`accumulate_grad_batches`, `global_batch_size`), a line
    has the number of steps as well: ``Iter(train) [10/40]  step: 5``.

    Values that are logged for the epoch follow in a line of their own at its end, and those of a validation or test
    after its last batch. Epochs and batches count from 1. Set ``Trainer(enable_progress_bar=False)`` to print these
    lines only. The device is waited for only when a line is printed.

    Args:
        every_n_batches: The interval between two lines, in batches of the epoch. Default: 10.
        by_epoch: Whether lines begin with the epoch and its batch. False: with the batches of the entire run, as in
            ``Iter(train) [20/15630]``. Default: True.
        window: How many of the last batches the means are of, or ``"epoch"`` for all of the epoch so far, or
            ``"global"`` for all of the run. Default: 10.
        smoothing: By the name of a value, ``"mean"``, ``"median"``, ``"min"``, ``"max"`` or ``"latest"``. Default: the
            mean.
        digits: Decimals of the values. Default: 4.
        hierarchy: Whether names keep what precedes their last ``/``, as in ``val/accuracy``, but for the ``/`` in front
            of a loader's name. Default: True.

    Raises:
        ArgumentTypeError: `every_n_batches`, `window` or `digits` is no int, or `smoothing` no mapping.
        MisconfigurationException: `every_n_batches` or `window` is below 1, or `digits` below 0.
        UnknownNameError: `window` or a value of `smoothing` is not one of these words.

    Example:
        >>> import lightlib as L
        >>> printer = MetricPrinter(every_n_batches=100, window="epoch", smoothing={"loss": "median"})
        >>> trainer = L.Trainer(callbacks=[printer], enable_progress_bar=False)
    """

    def __init__(
        self,
        every_n_batches: int = 10,
        by_epoch: bool = True,
        window: Window = 10,
        smoothing: Mapping[str, Method] | None = None,
        digits: int = 4,
        hierarchy: bool = True,
    ) -> None:
        super().__init__()
        check_int("MetricPrinter", "every_n_batches", every_n_batches, 1, example=10)
        check_int("MetricPrinter", "digits", digits, 0, example=4)
        check_window("MetricPrinter", window)
        expected = "a dict from names of values to methods"
        check_type("MetricPrinter", "smoothing", smoothing, Mapping | None, expected, '{"loss": "median"}')
        for method in (smoothing or {}).values():
            check_method("MetricPrinter", method)
        self.every_n_batches, self.by_epoch, self.window = every_n_batches, by_epoch, window
        self.smoothing, self.digits, self.hierarchy = dict(smoothing or {}), digits, hierarchy
        self._values: dict[str, deque[float]] = {}
        self._waiting: list[tuple[str, Any]] = []  # numbers that are still on the device
        self._keys: tuple[str, ...] = ()  # of what training_step returns
        self._numbers: tuple[str, ...] = ()  # those of its keys that have numbers
        self._prints = False
        self._times: deque[float]
        self._data_times: deque[float]
        self._mark: float
        self._rate = ""
        self._endings: Sequence[str] = ()  # of names, by loader

    # the run
    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._prints = trainer.is_global_zero
        self._memory = _memory_of(trainer.strategy.root_device)
        self._validations, self._logged = Validations(), dict[str, float]()
        self._epoch = ""  # the beginning of the line for an epoch that is ending
        self._restart()

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._pace = Pace(monotonic(), trainer.progress.batch, trainer.global_step)
        self._mark, self._waited = monotonic(), trainer.data_wait  # a resumed run may begin within an epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self.window == "epoch":
            self._values.clear()
            self._waiting.clear()
            self._restart()
        self._mark, self._waited = monotonic(), trainer.data_wait

    # training
    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if self._prints and not (batch_idx + 1) % self.every_n_batches:  # a schedule may change it before the line
            self._rate = _rates(trainer.optimizers)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self._prints:
            return
        now, waited = monotonic(), trainer.data_wait
        self._times.append(now - self._mark)
        self._data_times.append(waited - self._waited)
        self._mark, self._waited = now, waited
        if (keys := tuple(outputs)) != self._keys:
            self._keys, self._numbers = keys, tuple(name for name in keys if _is_number(outputs[name]))
        self._waiting += [(name, outputs[name]) for name in self._numbers]
        if not (batch_idx + 1) % self.every_n_batches:
            self._print_training(trainer, batch_idx + 1, now)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        done = trainer.progress.epoch_batch
        self._epoch, self._logged = self._place("train", trainer, done, trainer.num_training_batches), {}

    def on_fit_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._finish_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._finish_epoch()

    def on_log(self, trainer: Trainer, pl_module: Module, metrics: Mapping[str, float]) -> None:
        self._logged = {name: value for name, value in metrics.items() if name != "epoch"}

    def _finish_epoch(self) -> None:
        """Print the values that were logged for the epoch, once."""
        if self._epoch and self._prints and self._logged:
            self._print(self._epoch, self._texts(self._logged))
        self._epoch, self._logged = "", {}

    def _print_training(self, trainer: Trainer, done: int, now: float) -> None:
        seconds = sum(self._times) / len(self._times)
        left = remaining_in_run(trainer, self._pace, self._validations, now)
        samples = trainer.run.results.train.size_of_batch() if trainer.run is not None else 1
        rate = samples * trainer.strategy.data_size / seconds if seconds else math.inf
        words = [
            *([f"step: {trainer.global_step}"] if trainer.accumulate_grad_batches > 1 else []),
            f"lr: {self._rate}",
            f"eta: {'?' if left is None else clock(left)}",
            *self._times_of_batches(),
            f"ips: {rate:.1f}",
            *self._memory_words(),
        ]
        self._read()
        values = {name: smoothed([*kept], self.smoothing.get(name, "mean")) for name, kept in self._values.items()}
        place = self._place("train", trainer, done, trainer.num_training_batches)
        self._print(place, [*words, *self._texts(values)])

    # evaluation
    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begun = monotonic()
        self._logged, self._done, self._training_times = {}, 0, (self._times, self._data_times)
        self._endings = endings_of(trainer)
        self._restart()

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._data_times.append(monotonic() - self._mark)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        now = monotonic()
        self._times.append(now - self._mark)
        self._mark, self._done = now, self._done + 1
        total = _num_batches(trainer)
        if self._prints and not self._done % self.every_n_batches and self._done < total:
            left = (total - self._done) * (now - self._begun) / self._done
            eta = f"eta: {'?' if left == math.inf else clock(left)}"
            words = [eta, *self._times_of_batches(), *self._memory_words()]
            self._print_evaluation(trainer, total, words)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        now = monotonic()
        if self._prints and self._done:
            self._print_evaluation(trainer, self._done, [*self._texts(self._logged), *self._times_of_batches()])
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._validations.add(now - self._begun)
        self._logged = {}
        self._times, self._data_times = self._training_times
        self._mark = now

    on_test_start, on_test_end = on_validation_start, on_validation_end
    on_test_batch_start, on_test_batch_end = on_validation_batch_start, on_validation_batch_end

    def _print_evaluation(self, trainer: Trainer, total: float, words: list[str]) -> None:
        if not trainer.sanity_checking:
            stage = "test" if trainer.state.fn == "test" else "val"
            self._print(self._place(stage, trainer, self._done, total), words)

    # state
    def state_dict(self) -> dict[str, Any]:
        """Return the values of the window, so that the lines of a resumed run have the same means."""
        self._read()
        return {"values": {name: list(values) for name, values in self._values.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._waiting.clear()
        self._values = {name: self._window(values) for name, values in state_dict["values"].items()}

    def _restart(self) -> None:
        most = self.window if isinstance(self.window, int) else None
        self._times, self._data_times = deque[float](maxlen=most), deque[float](maxlen=most)
        self._mark = monotonic()

    def _window(self, values: Iterable[float] = ()) -> deque[float]:
        return deque(values, maxlen=self.window if isinstance(self.window, int) else None)

    def _read(self) -> None:
        """Read the numbers that are still on the device, at once."""
        tensors = [value.reshape(()).double() for _, value in self._waiting if isinstance(value, Tensor)]
        numbers = iter(torch.stack([tensor.to(tensors[0].device) for tensor in tensors]).tolist() if tensors else [])
        for name, value in self._waiting:
            read = next(numbers) if isinstance(value, Tensor) else float(value)
            self._values.setdefault(name, self._window()).append(read)
        self._waiting.clear()

    # text
    def _place(self, stage: str, trainer: Trainer, done: int, total: float) -> str:
        if not self.by_epoch:
            if stage == "train":
                done, total = trainer.progress.batch, _num_batches_of_run(trainer)
            return f"Iter({stage}) [{done}/{_count(total)}]"
        epoch = "" if stage == "test" or trainer.state.fn != "fit" else f"[{trainer.current_epoch + 1}]"
        return f"Epoch({stage}) {epoch}[{done}/{_count(total)}]"

    def _times_of_batches(self) -> list[str]:
        means = [sum(times) / len(times) if times else 0.0 for times in (self._times, self._data_times)]
        return [f"time: {means[0]:.4f}", f"data_time: {means[1]:.4f}"]

    def _memory_words(self) -> list[str]:
        return [] if self._memory is None else [f"memory: {self._memory() // _MIB}"]

    def _texts(self, values: Mapping[str, float]) -> list[str]:
        return [f"{self._name(name)}: {self._number(value)}" for name, value in values.items()]

    def _name(self, name: str) -> str:
        ending = next((each for each in self._endings if each and name.endswith(each)), "")
        return name if self.hierarchy else name.removesuffix(ending).rpartition("/")[2] + ending

    def _number(self, value: float) -> str:
        tiny = 0 < abs(value) < 10**-self.digits
        return f"{value:.{self.digits}{'e' if tiny else 'f'}}"

    def _print(self, place: str, words: list[str]) -> None:
        report.write_output(print, "  ".join([place, *words]), flush=True)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _rates(optimizers: Iterable[Any]) -> str:
    """Write the different learning rates of all parameter groups."""
    rates = dict.fromkeys(f"{float(group['lr']):.4e}" for optimizer in optimizers for group in optimizer.param_groups)
    return " ".join(rates) or "-"


def _count(total: float) -> str:
    return "?" if total == math.inf else str(int(total))


def _num_batches(trainer: Trainer) -> float:
    return sum(trainer.num_test_batches if trainer.state.fn == "test" else trainer.num_val_batches)


def _num_batches_of_run(trainer: Trainer) -> float:
    """Return the number of training batches until the first limit of the run; `inf` when unknown."""
    per_epoch = trainer.num_training_batches
    by_steps = limit(trainer.max_steps) * trainer.accumulate_grad_batches
    by_epochs = limit(trainer.max_epochs)
    return min(by_steps, math.inf if math.inf in (by_epochs, per_epoch) else by_epochs * per_epoch)


def _memory_of(device: torch.device) -> Callable[[], int] | None:
    """Return the function for the peak memory in bytes; None if it is unknown there."""
    if device.type != "cpu":
        peak = getattr(torch.get_device_module(device), "max_memory_allocated", None)
        return None if peak is None else lambda: int(peak(device))
    try:
        import resource  # optional: absent on Windows
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
