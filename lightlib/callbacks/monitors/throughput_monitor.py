"""ThroughputMonitor: logs samples, items and operations per second, and where a batch's time goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitors.step_clock import BACKWARD, FORWARD, OPTIMIZER, StepClock
from lightlib.errors import MisconfigurationException, check_flag, check_type
from lightlib.profilers.flops import OperationCounter, get_available_flops
from lightlib.profilers.throughput import Throughput

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


@dataclass
class _Totals:
    """The sums of one stage so far; saved in checkpoints."""

    time: float = 0.0
    batches: int = 0
    samples: int = 0
    lengths: int = 0

    def add(self, seconds: float, samples: int, length: int) -> None:
        self.time += seconds
        self.batches += 1
        self.samples += samples
        self.lengths += length


@dataclass
class _Stage:
    """The rates of one stage, its totals, and when its clock was last read."""

    rates: Throughput
    totals: _Totals = field(default_factory=_Totals)
    mark: float = 0.0

    def resume_clock(self) -> None:
        self.mark = perf_counter()

    def add(self, samples: int, length: int) -> None:
        now = perf_counter()
        self.totals.add(now - self.mark, samples, length)
        self.mark = now

    def continue_from(self, totals: _Totals) -> None:
        self.totals = totals


class ThroughputMonitor(Callback):
    """Logs how much a run processes per second, as Lightning's callback of this name does, and the time of each phase.

    Every `log_every_n_steps` steps rank zero logs ``train/device/samples_per_sec``, ``batches_per_sec``,
    ``items_per_sec``, ``flops_per_sec`` and ``mfu`` (the share of the operations that the device could do), with
    several processes also the rates of all of them without ``device/``, and the totals ``train/time``, ``batches``,
    ``samples`` and ``lengths``. Evaluations are logged with their stage: ``validate/…``, ``test/…``, ``predict/…``;
    the time of validations is no part of the training's. Totals continue in a resumed run, rates start with an empty
    window.

    ``train/data_time``, ``forward_time``, ``backward_time`` and ``optimizer_time`` are the mean seconds of a batch in
    each phase since they were logged last, without the first batch of the run. With a pipeline ``forward_time``
    includes waiting for other stages.

    Operations per second need the number of each batch: the module's attribute or property ``flops_per_batch`` (see
    `lightlib.profilers.flops.measure_flops`), or `count_flops`. The module's number also holds for evaluations.

    Args:
        batch_size_fn: Returns the number of samples of a batch.
        length_fn: Returns the number of items of a batch, such as its tokens. Default: items are not logged.
        window_size: How many batches a rate spans. Default: 100.
        separator: Separates the parts of names. Default: ``/``.
        step_times: Whether the times of the phases are logged. On a GPU this waits for the device at the end of every
            phase; otherwise once per batch, as rates need it. Default: True.
        count_flops: Count the operations of each stage's first batch, unless the module has ``flops_per_batch``; for
            other batches they are scaled by the number of samples. Compiled functions run eagerly in that batch.
            Default: False.

    Raises:
        ArgumentTypeError: A function is not callable, or another argument is of the wrong type.
        MisconfigurationException: `window_size` is below 2, or while running: a function returns no positive number.

    Example:
        >>> import lightlib as L
        >>> monitor = ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=20)
        >>> trainer = L.Trainer(callbacks=[monitor], log_every_n_steps=10)
    """

    def __init__(
        self,
        batch_size_fn: Callable[[Any], int],
        length_fn: Callable[[Any], int] | None = None,
        window_size: int = 100,
        separator: str = "/",
        step_times: bool = True,
        count_flops: bool = False,
    ) -> None:
        super().__init__()
        owner, example = "ThroughputMonitor", "lambda batch: len(batch[0])"
        expected = "a function from a batch to a number"
        check_type(owner, "batch_size_fn", batch_size_fn, Callable, expected, example)
        check_type(owner, "length_fn", length_fn, Callable | None, expected, example)
        check_flag(owner, "step_times", step_times)
        check_flag(owner, "count_flops", count_flops)
        Throughput(window_size=window_size, separator=separator)  # checks them
        self.batch_size_fn, self.length_fn = batch_size_fn, length_fn
        self.window_size, self.separator = window_size, separator
        self.step_times, self.count_flops = step_times, count_flops
        self.available_flops: int | None = None
        self._stages: dict[str, _Stage] = {}
        self._loaded: dict[str, _Totals] = {}
        self._counted: dict[str, tuple[int, int]] = {}  # by stage: operations and samples of its first batch
        self._counter: OperationCounter | None = None
        self._clock: StepClock | None = None
        self._active = self._given = False
        self._waited, self._logged_step = 0.0, 0
        self._after_backward = ""
        self._handles: list[Any] = []
        self._wait: Callable[[], None] | None = None

    # life of a run
    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        device = trainer.strategy.root_device
        self._active = trainer.is_global_zero
        self._wait = None if device.type == "cpu" else trainer.accelerator.synchronize
        self.available_flops = get_available_flops(device, trainer.strategy.precision.compute_dtype)
        self._stages, self._counted, self._loaded = {}, {}, {}

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._stop_counting()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def state_dict(self) -> dict[str, Any]:
        """Return the totals and the counted operations."""
        totals_by_stage = self._loaded | {name: stage.totals for name, stage in self._stages.items()}
        totals = {name: asdict(each) for name, each in totals_by_stage.items()}
        return {"totals": totals, "counted": {name: list(pair) for name, pair in self._counted.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = {name: _Totals(**totals) for name, totals in state_dict["totals"].items()}
        self._counted = {name: (pair[0], pair[1]) for name, pair in state_dict["counted"].items()}

    # training
    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._active:
            return
        self._begin(trainer, pl_module, "train")
        self._logged_step, self._waited = trainer.progress.step, trainer.data_wait
        if self.step_times:
            manual = not pl_module.automatic_optimization
            self._clock = StepClock(self._wait)
            self._after_backward = FORWARD if manual or trainer.strategy.in_parts else ""
            if manual:  # a step is followed by the next forward
                for optimizer in trainer.optimizers:
                    self._handles.append(optimizer.register_step_post_hook(lambda *_: self._enter(FORWARD)))

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if not self._active:
            return
        waited = trainer.data_wait
        if self._clock is not None:
            self._clock.begin_batch(waited - self._waited)
            self._clock.enter(FORWARD)
        self._waited = waited
        self._count_if_first("train")

    def on_before_backward(self, trainer: Trainer, pl_module: Module, loss: torch.Tensor) -> None:
        self._enter(BACKWARD)

    def on_after_backward(self, trainer: Trainer, pl_module: Module) -> None:
        self._enter(self._after_backward)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Module, optimizer: Any) -> None:
        self._enter(OPTIMIZER)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self._active:
            return
        if self._clock is not None:
            self._clock.end_batch()
        stage = self._update("train", pl_module, batch)
        step, every = trainer.progress.step, trainer.log_every_n_steps
        if every and step != self._logged_step and not step % every:
            self._logged_step = step
            times = self._clock.take() if self._clock is not None else {}
            metrics = stage.rates.compute() | {f"{name}_time": seconds for name, seconds in times.items()}
            self._log(trainer, "train", metrics, None)

    def _enter(self, phase: str) -> None:
        if self._clock is not None:
            self._clock.enter(phase)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._clock = None

    # evaluation
    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin_evaluation(trainer, pl_module, "validate")

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if "train" in self._stages:
            self._stages["train"].resume_clock()

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin_evaluation(trainer, pl_module, "test")

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin_evaluation(trainer, pl_module, "predict")

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._active and not trainer.sanity_checking:
            self._count_if_first("validate")

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._count_if_first("test")

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._count_if_first("predict")

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end_batch(trainer, pl_module, batch, "validate")

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end_batch(trainer, pl_module, batch, "test")

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end_batch(trainer, pl_module, batch, "predict")

    def _begin_evaluation(self, trainer: Trainer, pl_module: Module, name: str) -> None:
        if self._active and not trainer.sanity_checking:
            self._begin(trainer, pl_module, name)

    def _end_batch(self, trainer: Trainer, pl_module: Module, batch: Any, name: str) -> None:
        if not self._active or trainer.sanity_checking:
            return
        stage, every = self._update(name, pl_module, batch), trainer.log_every_n_steps
        if every and not stage.totals.batches % every:
            self._log(trainer, name, stage.rates.compute(), stage.totals.batches)

    # shared
    def _begin(self, trainer: Trainer, pl_module: Module, name: str) -> None:
        """Begin or continue a stage with an empty window."""
        strategy, module = trainer.strategy, type(pl_module).__name__
        self._given = hasattr(pl_module, "flops_per_batch")  # the module's `setup` may have set it
        if not self._given and not self.count_flops:
            report.info_once(
                f"ThroughputMonitor logs no operations per second: {module} has no flops_per_batch. Set it in the "
                "module, or use ThroughputMonitor(count_flops=True)."
            )
        if name not in self._stages:
            self._stages[name] = _Stage(
                Throughput(
                    self.available_flops,
                    strategy.world_size,
                    self.window_size,
                    self.separator,
                    data_size=strategy.data_size,
                )
            )
            self._stages[name].continue_from(self._loaded.pop(name, _Totals()))
        self._stages[name].rates.reset()
        self._stages[name].resume_clock()

    def _update(self, name: str, pl_module: Module, batch: Any) -> _Stage:
        if self._wait is not None:
            self._wait()
        stage = self._stages[name]
        with torch.inference_mode():
            samples = _positive("batch_size_fn", self.batch_size_fn(batch))
            length = _positive("length_fn", self.length_fn(batch)) if self.length_fn is not None else 0
        if self._counter is not None:
            self._counted[name] = self._counter.stop(), samples
            self._counter = None
        stage.add(samples, length)
        totals = stage.totals
        stage.rates.update(
            time=totals.time,
            batches=totals.batches,
            samples=totals.samples,
            lengths=totals.lengths if self.length_fn is not None else None,
            flops=self._flops(name, pl_module, samples),
        )
        return stage

    def _flops(self, name: str, pl_module: Module, samples: int) -> float | None:
        if self._given:
            flops: Any = pl_module.flops_per_batch
            return None if flops is None else float(flops)
        if name not in self._counted:
            return None
        counted, of_samples = self._counted[name]
        return counted * samples / of_samples

    def _count_if_first(self, name: str) -> None:
        self._stop_counting()  # of a batch that was skipped
        if self.count_flops and self._active and not self._given and name not in self._counted:
            self._counter = OperationCounter()
            self._counter.start()

    def _stop_counting(self) -> None:
        if self._counter is not None:
            self._counter.stop()
            self._counter = None

    def _log(self, trainer: Trainer, name: str, metrics: Mapping[str, float], step: int | None) -> None:
        trainer.log_metrics_now({f"{name}{self.separator}{key}": value for key, value in metrics.items()}, step=step)


def _positive(name: str, number: Any) -> int:
    """Return the number that a function of the user returned, if it is positive."""
    count = int(number) if isinstance(number, (int, float, torch.Tensor)) else 0
    if count < 1:
        raise MisconfigurationException(
            f"ThroughputMonitor's {name} returned {number!r}.",
            expected="a positive number, of the batch that it got.",
            fix=f"ThroughputMonitor({name}=lambda batch: len(batch[0]))",
        )
    return count
