"""Views of a Trainer's run: its batch size, its optimizer steps, its checkpoints, and requests to it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from lightlib.conventions import leniency
from lightlib.core.build import Builder
from lightlib.core.progress.plan import Plan
from lightlib.core.progress.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightlib.core.resume.save import Saver
from lightlib.core.run.hooks import Hooks
from lightlib.core.run.misspelt import warn_for_misspelt_event
from lightlib.core.run.parts import END_EPOCH, VALIDATE
from lightlib.core.run.run import Run
from lightlib.core.setup.batch_sizes import largest_batch
from lightlib.core.setup.settings import Settings
from lightlib.data.train import TrainData
from lightlib.errors import MisconfigurationException
from lightlib.loggers.logger import Logger

_STAGES = {stage.value: stage for stage in RunningStage}
_STAGE_OF_CALL = {
    TrainerFn.FITTING: RunningStage.TRAINING,
    TrainerFn.VALIDATING: RunningStage.VALIDATING,
    TrainerFn.TESTING: RunningStage.TESTING,
    TrainerFn.PREDICTING: RunningStage.PREDICTING,
}


def state_of(state: TrainerState, run: Run | None) -> TrainerState:
    """Return the state with the stage of the run; outside its loops, as in `setup`, it is that of the call."""
    stage = None if run is None else _STAGES.get(run.stage)
    if stage is None and state.fn is not None and state.status is TrainerStatus.RUNNING:
        stage = _STAGE_OF_CALL[state.fn]
    return replace(state, stage=stage)


def saver_of(run: Run | None) -> Saver:
    """Return the object that writes the checkpoints of a run."""
    if run is None:
        raise MisconfigurationException(
            "save_checkpoint was called before any run.",
            expected="a Trainer with a module attached.",
            fix="call trainer.fit(module) first.",
        )
    return run.saver


def at_save_point(run: Run | None, call: Callable[[], object]) -> None:
    """Run `call` at the next save point of the run; at once without a run."""
    if run is None:
        call()
    else:
        run.saver.request(call)


def scaler_of(run: Run | None) -> Any:
    """Return the GradScaler of a fit, or None."""
    return None if run is None else getattr(run.optimization.scaler, "grad_scaler", None)


def log_dir(logger: Logger | None, shared: tuple[Logger | None, str | None], default: str) -> str | None:
    """Return the folder of the logger.

    Args:
        shared: With several processes a logger, and its folder on rank zero.
        default: The folder without a logger.
    """
    if shared[1] is not None and logger is shared[0]:
        return str(shared[1])
    return default if logger is None else (logger.log_dir or logger.save_dir)


def indices(devices: list[torch.device]) -> list[int]:
    """Return the indices of devices; those of a machine with one kind of device may have none."""
    numbers: list[int | None] = [device.index for device in devices]
    return [place if number is None else number for place, number in enumerate(numbers)]


def batch_size(data: TrainData | None, settings: Settings, processes: int) -> int | None:
    """Return the samples in a training batch of one process, or the most that the global batch size allows."""
    if data is not None and data.is_loaded:
        sizes = set(data.loaded.batch_sizes())
        return sizes.pop() if len(sizes) == 1 else None
    return largest_batch(settings.global_batch_size, processes, settings.given_accumulation or 1)


def loaders(builder: Builder | None, key: str) -> Any:
    """Return the ``"val"``, ``"test"`` or ``"predict"`` loaders in the user's nesting; None without them."""
    data = None if builder is None else builder.evaluations.get(key)
    return None if data is None else data.loaders


def num_batches(builder: Builder | None, key: str) -> list[float]:
    """Return the batches of each of these loaders."""
    data = None if builder is None else builder.evaluations.get(key)
    return [] if data is None else list(data.num_batches)


def validates(counts: list[float], plan: Plan | None, limit: Any) -> bool:
    """Whether a fit validates on loaders of these numbers of batches."""
    if not counts:  # with compat loaders may be requested in a later epoch
        return plan is not None and plan.validate_every is not None and bool(limit)
    return any(counts) and bool(limit)


def validation_interval(plan: Plan | None) -> float | None:
    """Return the training batches between two validations; None if samples, tokens or steps are counted."""
    if plan is None or plan.validate_every == sys.maxsize:
        return None
    return plan.num_batches if plan.validate_every == math.inf else plan.validate_every


def sanity_batches(fit: Run | None, limit: float) -> list[float]:
    """Return the batches of each loader in the sanity check of a fit."""
    data = None if fit is None else fit.evaluations.loaded.get("val")
    return [] if data is None else [min(n, limit) for n in data.num_batches]


def total_steps(run: Run | None, builder: Builder | None, settings: Settings) -> float:
    """Return the optimizer steps of the complete run; `inf` without a limit.

    Args:
        run: The run of the last fit, or the present one.
        builder: The builder of the run that is being set up.
    """
    if run is not None and run.train_data is not None:
        return run.plan.total_steps_from(run.progress)
    if builder is not None and builder.sources["train"] is not None:
        total: float = builder.plan(builder.train_data().num_batches).total_steps
        return total
    if settings.max_epochs in (None, -1):
        return math.inf if settings.max_steps == -1 else settings.max_steps
    error = MisconfigurationException(
        f"estimated_stepping_batches was read before fit: with max_epochs={settings.max_epochs} it depends on the "
        "number of training batches.",
        expected="to be read in configure_optimizers, or later.",
        fix="move it into configure_optimizers, or use a schedule factory: lambda optimizer, total_steps: ….",
    )
    leniency().tolerate(error, "it is max_steps")
    return settings.max_steps


def request_validation(run: Run | None) -> None:
    """Request a validation after the running batch of a fit that validates."""
    run = _fitting(run, "request_validation")
    if run.plan.validate_every is None:
        raise MisconfigurationException(
            "A validation was requested, but this fit does not validate.",
            expected="validation data, a validation_step, and a limit_val_batches above 0.",
            fix="trainer.fit(module, train_loader, val_loader)",
        )
    if run.stage == "train":
        run.stop.request(VALIDATE)


def request_epoch_end(run: Run | None) -> None:
    """Request the end of the running epoch of a fit."""
    run = _fitting(run, "request_epoch_end")
    if not run.exhausted:
        run.stop.request(END_EPOCH)


def _fitting(run: Run | None, name: str) -> Run:
    if run is None or run.train_data is None or run.stage not in ("train", "validate", "sanity_check"):
        raise MisconfigurationException(
            f"trainer.{name}() was called, but no fit runs.",
            expected="a call within a hook of a callback or module, from on_fit_start to on_train_end.",
            fix=f"call it in on_train_batch_end: trainer.{name}()",
        )
    return run


def event_calls(hooks: Hooks | None, name: str) -> tuple[Callable[..., Any], ...]:
    """Return the methods of an event, of the callbacks and of the module."""
    if hooks is None:
        raise MisconfigurationException(
            f"trainer.call_event({name!r}) was called before a run.",
            expected="a call within a hook or step.",
            fix=f"call it within a hook: trainer.call_event({name!r})",
        )
    return hooks.event(name, warn_for_misspelt_event)
