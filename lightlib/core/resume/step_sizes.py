"""StepSizes: the samples of an optimizer step, before and after the number of processes has changed."""

# ruff: noqa: RUF001, RUF002  a multiplication sign is meant

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightlib.data.resumable_loader import batch_size_of_loader
from lightlib.data.training_source import SAMPLER_OF_STREAMS
from lightlib.errors import CheckpointError

if TYPE_CHECKING:
    from lightlib.core.run.run import Run


@dataclass(frozen=True)
class StepSize:
    """The samples that one optimizer step takes from a training loader.

    Attributes:
        processes: Those that read different batches.
        batch: Samples in a batch of one process.
        accumulate: Batches per optimizer step.
        batches: Batches per epoch of one process; None if unknown.

    Example:
        >>> size = StepSize(processes=4, batch=3, accumulate=2, batches=9)
        >>> size.samples, size.steps_per_epoch, str(size)
        (24, 5, '24 (4 processes × 3 × 2 accumulated)')
    """

    processes: int
    batch: int
    accumulate: int
    batches: int | None

    @property
    def samples(self) -> int:
        """Samples of all processes together."""
        return self.processes * self.batch * self.accumulate

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps of an epoch."""
        return None if self.batches is None else math.ceil(self.batches / self.accumulate)

    def __str__(self) -> str:
        several = "es" if self.processes > 1 else ""
        return f"{self.samples} ({self.processes} process{several} × {self.batch} × {self.accumulate} accumulated)"


@dataclass(frozen=True)
class StepSizes:
    """The step sizes of a checkpoint and of the run that resumes it with another number of processes.

    Attributes:
        then, now: The step sizes.
        unit: "samples", or "batches" if their size is unknown.
        workers: Workers among which a stream is shared out; 0 for other data.
    """

    then: StepSize
    now: StepSize
    unit: str
    workers: int

    @classmethod
    def of(cls, run: Run, setting: Mapping[str, Any], data: Mapping[str, Any] | None) -> StepSizes | None:
        """Return the sizes; None if the number of processes is the same, or the sizes cannot be compared.

        Args:
            setting: Settings of the saved run.
            data: Its position in the data.
        """
        accumulate = setting.get("accumulate_grad_batches")
        if run.train_data is None or data is None or type(accumulate) is not int or run.plan.accumulate_changes:
            return None
        data = data.get("resized") or data
        loaded, described = run.train_data.loaded, data.get("described")
        before, taken = data.get("size", 1), data.get("taken_at_once")
        if described is None or not taken or before == loaded.size:
            return None
        now = loaded.describe()
        first = now["loaders"][0]
        return cls(
            StepSize(before, taken[0] // before, accumulate, described["batches"]),
            StepSize(loaded.size, loaded.taken_at_once()[0] // loaded.size, run.plan.accumulate, now["batches"]),
            "samples" if loaded.batch_sizes()[0] else "batches",
            first["workers"] if first["sampler"] == SAMPLER_OF_STREAMS else 0,
        )

    def differences(self) -> Iterator[str]:
        """Yield a line for each difference."""
        then, now = self.then, self.now
        if then.samples != now.samples:
            fix = f"; Trainer(global_batch_size={then.samples}) keeps them" if self.unit == "samples" else ""
            yield f"{self.unit} per optimizer step: {then} then, {now} now{fix}"
        elif then.steps_per_epoch != now.steps_per_epoch:
            yield f"optimizer steps per epoch: {then.steps_per_epoch} then, {now.steps_per_epoch} now"
        if self.workers > 1 and then.batch != now.batch:
            yield f"batches of {self.workers} workers, which share out a stream: {then.batch} then, {now.batch} now"

    def refuse_changed(self, run: Run) -> None:
        """Raise a CheckpointError if the global batch size is not that of the checkpoint."""
        then, now = self.then, self.now
        if self.unit != "samples" or then.samples == now.samples:
            return
        settings, batch_size = run.trainer.settings, batch_size_of_loader(run.train_data.given[0])  # type: ignore[union-attr]
        counts = range(1, 2 * max(then.processes, now.processes) + 1)
        fitting = [str(n) for n in counts if keeps(then.samples, n, batch_size or 1, settings.given_accumulation)] or [
            "no"
        ]
        each, rest = divmod(then.samples, now.processes)
        sizes = [] if rest else [size for size in range(1, each + 1) if each % size == 0]
        on = f"{now.processes} process{'es' if now.processes > 1 else ''}"
        raise CheckpointError(
            f"The optimizer steps of the checkpoint have {then} samples, and those of this run {now}, so steps per "
            "epoch and schedules would change.",
            expected=f"{then.samples} samples: with batch_size={batch_size} on {', '.join(fitting)} processes; on {on} "
            + (
                f"with batch_size={', '.join(map(str, sizes))}."
                if sizes
                else f"never, because {then.samples} is no multiple."
            ),
            fix=(
                f"DataLoader(dataset, batch_size={max(s for s in sizes if s <= (batch_size or s))}), or "
                if sizes
                else ""
            )
            + f"another number of processes, with Trainer(global_batch_size={then.samples}); "
            "fit(…, resume={'changes': 'ignore'}) continues with the other size.",
        )


def keeps(samples: int, processes: int, batch: int, accumulate: int | None = None) -> bool:
    """Whether a global batch size is reached exactly.

    Args:
        samples: The global batch size.
        processes: Those that read different batches.
        batch: The loader's batch size, which is made smaller if it is more than a process should take.
        accumulate: Batches per optimizer step, if they are given.

    Example:
        >>> [n for n in range(1, 9) if keeps(12, processes=n, batch=4)]
        [1, 3, 4, 6]
    """
    once = processes * min(batch, samples // (processes * (accumulate or 1)))
    return once > 0 and once * (accumulate or max(1, round(samples / once))) == samples
