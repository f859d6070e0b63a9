"""RunConfig: the resolved numbers of a run, such as epochs, batch sizes and steps, frozen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import RandomSampler

from lightlib.data.resumable_loader import batch_size_of_loader
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

_PLAIN = ("num_workers", "pin_memory", "drop_last", "timeout", "prefetch_factor", "persistent_workers")


@dataclass(frozen=True)
class RunConfig:
    """The numbers of a run as they were resolved from the Trainer's arguments, the loaders and the processes.

    What does not exist is None: numbers of loaders that the call does not have, or that are several; limits that are
    not set.

    Attributes:
        num_epochs: Epochs that the run begins.
        train_per_device_batch_size: Samples of a training batch of one process.
        train_dl_kwargs: The arguments of the training loader.
        eval_per_device_batch_size: Samples of a validation batch of one process, in `test` and `predict` of theirs.
        eval_dl_kwargs: The arguments of that loader.
        gradient_accumulation_steps: Batches per optimizer step.
        train_total_batch_size: Samples per optimizer step of all processes.
        eval_total_batch_size: Samples of an evaluation batch of all processes.
        num_update_steps_per_epoch: Optimizer steps of an epoch.
        max_num_train_steps: The limit of optimizer steps.
        is_local_process_zero: Whether this is the first process of its machine.
        is_world_process_zero: Whether this is the first of all processes.
        is_distributed: Whether there are several processes.
        mixed_precision: The name of the precision.
        gradient_clip_value: The Trainer's limit of gradients.
        num_processes: The number of processes.
    """

    num_epochs: int | None
    train_per_device_batch_size: int | None
    train_dl_kwargs: dict[str, Any] | None
    eval_per_device_batch_size: int | None
    eval_dl_kwargs: dict[str, Any] | None
    gradient_accumulation_steps: int
    train_total_batch_size: int | None
    eval_total_batch_size: int | None
    num_update_steps_per_epoch: int | None
    max_num_train_steps: int | None
    is_local_process_zero: bool
    is_world_process_zero: bool
    is_distributed: bool
    mixed_precision: str
    gradient_clip_value: float | None
    num_processes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def run_config_of(trainer: Trainer) -> RunConfig:
    """Return the configuration of the present or the last call.

    Raises:
        MisconfigurationException: There was none.
    """
    run = trainer.run
    if run is None:
        raise MisconfigurationException(
            "trainer.run_config was read before a run.",
            expected="a run, in which loaders and processes are known.",
            fix="read it in a hook, such as on_fit_start, or after fit.",
        )
    plan, strategy, data = run.plan, trainer.strategy, run.train_data
    evaluated = next(iter(run.evaluations.loaded.values()), None)
    train_size = _only(data.loaded.batch_sizes()) if data is not None and data.is_loaded else None
    eval_size = _only(list(map(batch_size_of_loader, evaluated.combined.flattened))) if evaluated is not None else None
    accumulate = plan.accumulation(trainer.progress.epoch)
    return RunConfig(
        num_epochs=_finite(plan.num_epochs) if data is not None else None,
        train_per_device_batch_size=train_size,
        train_dl_kwargs=_arguments(data.given) if data is not None and data.is_loaded else None,
        eval_per_device_batch_size=eval_size,
        eval_dl_kwargs=_arguments(evaluated.given) if evaluated is not None else None,
        gradient_accumulation_steps=accumulate,
        train_total_batch_size=None if train_size is None else train_size * strategy.data_size * accumulate,
        eval_total_batch_size=None if eval_size is None else eval_size * strategy.data_size,
        num_update_steps_per_epoch=_finite(plan.steps_per_epoch) if data is not None else None,
        max_num_train_steps=_finite(plan.max_steps),
        is_local_process_zero=trainer.local_rank == 0,
        is_world_process_zero=trainer.is_global_zero,
        is_distributed=trainer.world_size > 1,
        mixed_precision=trainer.precision,
        gradient_clip_value=trainer.gradient_clip_val,
        num_processes=trainer.world_size,
    )


def _only(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else None


def _finite(number: float) -> int | None:
    return None if number == math.inf else int(number)


def _arguments(loaders: Sequence[Any]) -> dict[str, Any] | None:
    """Return the arguments of the only loader, if it has a DataLoader's."""
    loader = _only(loaders)
    if not all(hasattr(loader, name) for name in _PLAIN):
        return None
    sampler = getattr(loader, "sampler", None)
    return {
        "batch_size": batch_size_of_loader(loader),
        "shuffle": isinstance(sampler, RandomSampler),
        **{name: getattr(loader, name) for name in _PLAIN},
        "collate_fn": getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__),
    }
