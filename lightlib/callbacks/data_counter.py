"""DataCounter: samples and tokens of a training over all processes, and the intervals that they end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.durations import Duration
from lightlib.errors import MisconfigurationException, check_flag, check_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_MOST_BATCHES = 32  # between two exchanges of the ranks' numbers
_INTERVALS = {"sp": "sample", "tok": "token"}
_COUNTED = {"sp": "samples", "tok": "tokens"}


class DataCounter(Callback):
    """Counts samples and tokens of the training over all processes, and ends intervals by their number.

    The Trainer adds one for durations in samples or tokens: ``Trainer(max_duration="1e9tok")``,
    ``val_check_interval="1e6sp"``, ``ModelCheckpoint(every="1e8tok")``. Add it yourself to give a function that counts,
    for schedules with such an interval, or for the numbers alone. What a duration brings, comes after the optimizer
    step in which it is reached. The numbers continue in a resumed run.

    Numbers of several ranks, and numbers on a GPU, are read when a duration may end, every `log_every_n_steps` steps,
    and at least every 32 batches. So a duration ends exactly, unless a batch is more than twice as large as any before
    it: then it may end up to 32 batches late, at the same batch in each run.

    Args:
        samples: Returns the samples of a batch of this process. Default: the batch size, as `Module.log` finds it.
        tokens: Returns the tokens of a batch of this process, as an int or a tensor of one number. Default: the ones of
            ``"attention_mask"``, else the size of ``"input_ids"``, else that of a batch, or of its first element, if it
            is a tensor of whole numbers with two or more dimensions. Other batches have no tokens.
        log_numbers: Log the numbers as ``samples`` and ``tokens``, every `log_every_n_steps` steps. Default: True.

    Raises:
        ArgumentTypeError: A function is not callable, or `log_numbers` is no bool.
        MisconfigurationException: At the first batch: a duration is in tokens, but the batch has none.

    Example:
        >>> import lightlib as L
        >>> counter = DataCounter(tokens=lambda batch: batch["lengths"].sum())
        >>> trainer = L.Trainer(max_duration="1e9tok", callbacks=[counter])
    """

    priority = "very_high"

    def __init__(
        self,
        samples: Callable[[Any], int | Tensor] | None = None,
        tokens: Callable[[Any], int | Tensor] | None = None,
        log_numbers: bool = True,
    ) -> None:
        super().__init__()
        expected, example = "a function from a batch to a number", "lambda batch: len(batch)"
        check_type("DataCounter", "samples", samples, Callable | None, expected, example)
        check_type("DataCounter", "tokens", tokens, Callable | None, expected, example)
        check_flag("DataCounter", "log_numbers", log_numbers)
        self.samples, self.tokens, self.log_numbers = samples, tokens, log_numbers
        self._seen = dict.fromkeys(_COUNTED, 0)  # at the last exchange, over all processes
        self._most = dict.fromkeys(_COUNTED, 0)  # of a batch of a process
        self._running: tuple[Any, Any] = 0, 0
        self._recent: list[tuple[Any, Any]] = []  # samples and tokens of the batches since then, on this process
        self._carried = dict.fromkeys(_COUNTED, 0)  # those that a checkpoint has of all processes
        self._next = self._step = 0
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._wanted: list[Duration] = []
        self._limit: Duration | None = None
        self._each: Duration | None = None
        self._needs_tokens = self._moves_schedules = self._said = False

    @property
    def samples_seen(self) -> int:
        """Samples of all processes at the last exchange; after a fit all of them."""
        return self._seen["sp"]

    @property
    def tokens_seen(self) -> int:
        """Tokens of all processes, likewise; 0 for batches without tokens."""
        return self._seen["tok"]

    def ended(self, every: Duration) -> bool:
        """Whether an interval ended with the optimizer step of the running batch."""
        return self._intervals(every) > 0

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        settings = trainer.settings
        limit = settings.max_duration
        self._limit = limit if limit is not None and limit.unit in _COUNTED else None
        self._each = settings.validate_each if trainer.enable_validation else None
        schedules = [(config.frequency, config.interval) for config in trainer.lr_scheduler_configs]
        by_schedule = [Duration(n, unit) for n, name in schedules for unit, word in _INTERVALS.items() if word == name]
        self._moves_schedules = bool(by_schedule)
        saves = [every for each in trainer.callbacks if isinstance(every := getattr(each, "every", None), Duration)]
        self._wanted = [each for each in (self._limit, self._each, *by_schedule, *saves) if each is not None]
        self._needs_tokens = any(each.unit == "tok" for each in self._wanted)
        settings.end_at(math.inf)
        if not trainer.progress.batch:
            self._begin()
        if not self._now:
            self._before = self._now = self._numbers(trainer)
            self._step = trainer.progress.step
        self._stop_when_over(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        self._running = self._samples_of(trainer, batch), self._tokens_of(batch)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._recent.append(self._running)
        progress = trainer.progress
        stepped = progress.step != self._step
        logs = stepped and trainer.plan is not None and trainer.plan.logging_due(progress)
        if logs or progress.batch >= self._next:
            self._exchange(trainer)
        self._before = self._now
        if not stepped:
            return
        self._step, self._now = progress.step, self._numbers(trainer)
        if logs and self.log_numbers:
            trainer.log_metrics_now({name: self._seen[unit] for unit, name in _COUNTED.items() if self._seen[unit]})
        if self._each is not None and self.ended(self._each):
            trainer.request_validation()
        if self._moves_schedules and trainer.run is not None:
            schedules = trainer.run.optimization.schedules
            for unit, interval in _INTERVALS.items():
                schedules.step_data(interval, self._before[unit], self._now[unit])
        self._stop_when_over(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Add the last batches; when the next exchange of a further `fit` is due stays."""
        due = self._next
        self._exchange(trainer)
        self._next = due

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Put the numbers of all processes in place of this one's; all of them call this."""
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state is not None:
            sums, most = self._of_all(trainer)
            state.update(carried=sums, most=most)

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers at the last exchange, those since then on this process, and when the next one is due."""
        sums, most = self._local_sums()
        numbers = {"seen": dict(self._seen), "carried": sums, "most": most}
        return {**numbers, "before": self._before, "now": self._now, "next": self._next, "step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._begin()
        self._seen, self._carried, self._most = (dict(state_dict[name]) for name in ("seen", "carried", "most"))
        self._before, self._now = dict(state_dict["before"]), dict(state_dict["now"])
        self._next, self._step = state_dict["next"], state_dict["step"]

    def _begin(self) -> None:
        self._seen, self._most, self._carried = (dict.fromkeys(_COUNTED, 0) for _ in range(3))
        self._recent, self._before, self._now, self._next, self._step = [], {}, {}, 0, 0

    # counting
    def _samples_of(self, trainer: Trainer, batch: Any) -> Any:
        if self.samples is not None:
            return self.samples(batch)
        return trainer.run.results.train.size_of_batch() if trainer.run is not None else 0

    def _tokens_of(self, batch: Any) -> Any:
        if self.tokens is not None:
            return self.tokens(batch)
        number = tokens_of(batch)
        if number is None and self._needs_tokens:
            raise MisconfigurationException(
                f"A duration is in tokens, but the batch, {_described(batch)}, has none.",
                expected="a dict with 'attention_mask' or 'input_ids', or a matrix of whole numbers.",
                fix="Trainer(callbacks=[DataCounter(tokens=lambda batch: …)]), or a duration in samples: '1e6sp'.",
            )
        return number or 0

    def _local_sums(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the sums since the last exchange on this process, and the largest numbers of a batch."""
        columns = zip(*self._recent, strict=True) if self._recent else ((), ())
        numbers = {unit: [int(value) for value in column] for unit, column in zip(_COUNTED, columns, strict=True)}
        sums = {unit: self._carried[unit] + sum(numbers[unit]) for unit in _COUNTED}
        return sums, {unit: max([self._most[unit], *numbers[unit]]) for unit in _COUNTED}

    def _of_all(self, trainer: Trainer) -> tuple[dict[str, int], dict[str, int]]:
        sums, most = self._local_sums()
        strategy = trainer.strategy
        if strategy.world_size == 1:
            return sums, most
        local = [sums[unit] - self._carried[unit] for unit in _COUNTED]
        row = torch.tensor([*local, *most.values()], device=strategy.root_device)
        rows = strategy.all_gather(row)
        added = rows.sum(0) // (strategy.world_size // strategy.data_size)  # copies have the same batches
        largest = rows.amax(0)[len(local) :]
        return (
            {unit: self._carried[unit] + int(added[i]) for i, unit in enumerate(_COUNTED)},
            {unit: int(largest[i]) for i, unit in enumerate(_COUNTED)},
        )

    def _exchange(self, trainer: Trainer) -> None:
        """Add the numbers of all processes, and find the batch of the next exchange."""
        sums, self._most = self._of_all(trainer)
        self._seen = {unit: self._seen[unit] + sums[unit] for unit in _COUNTED}
        self._recent, self._carried = [], dict.fromkeys(_COUNTED, 0)
        at_hand = not any(isinstance(number, Tensor) and number.device.type != "cpu" for number in self._running)
        ahead = 1 if trainer.strategy.world_size == 1 and at_hand else _MOST_BATCHES
        for each in self._wanted:
            if each.unit in _COUNTED:
                n, count = int(each.number), self._seen[each.unit]
                left = n - count if each is self._limit else n - count % n
                largest = max(1, self._most[each.unit]) * trainer.strategy.data_size
                ahead = min(ahead, max(1, left // (2 * largest)))
        self._next = trainer.progress.batch + ahead

    # acting
    def _numbers(self, trainer: Trainer) -> dict[str, int]:
        return {"st": trainer.progress.step, "ba": trainer.progress.batch, **self._seen}

    def _intervals(self, every: Duration) -> int:
        n = int(every.number)
        return self._now[every.unit] // n - self._before[every.unit] // n

    def _stop_when_over(self, trainer: Trainer) -> None:
        limit = self._limit
        if limit is None or self._seen[limit.unit] < limit.number:
            return
        run = trainer.run
        data = None if run is None else run.train_data
        if run is not None and data is not None and run.plan.max_batches > run.progress.batch:
            trainer.settings.end_at(run.progress.batch)
            run.use_plan(run.replan(data.expected_batches))
        if not self._said:
            self._said = True
            amount = f"{self._seen[limit.unit]:,} {_COUNTED[limit.unit]}"
            report.info(f"max_duration={str(limit)!r} is reached after {amount}; the run ends.")


def tokens_of(batch: Any) -> int | Tensor | None:
    """Return the tokens of a batch by its form, or None if it has none; see `DataCounter`.

    Example:
        >>> tokens_of({"input_ids": torch.zeros(2, 8)}), tokens_of(torch.zeros(2, 8))
        (16, None)
    """
    if isinstance(batch, Mapping):
        mask, ids = batch.get("attention_mask"), batch.get("input_ids")
        if isinstance(mask, Tensor):
            return mask.sum()
        return ids.numel() if isinstance(ids, Tensor) else None
    first = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    whole = isinstance(first, Tensor) and not first.is_floating_point() and first.ndim > 1
    return first.numel() if whole else None


def counter_of(callbacks: Iterable[Any], why: str = "An interval is in samples or tokens") -> DataCounter:
    """Return the counter among some callbacks.

    Raises:
        MisconfigurationException: There is none.
    """
    counter = next((callback for callback in callbacks if isinstance(callback, DataCounter)), None)
    if counter is None:
        raise MisconfigurationException(
            f"{why}, but no callback counts them.",
            expected="a DataCounter among the callbacks.",
            fix="Trainer(callbacks=[DataCounter()])",
        )
    return counter


def _described(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} with the keys {', '.join(map(repr, batch))}"
    if isinstance(batch, Tensor):
        return f"a tensor of {batch.dtype} with the shape {tuple(batch.shape)}"
    return f"a {type(batch).__name__}"
