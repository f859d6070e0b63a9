"""The page of `Trainer.explain`: all that a fit will do, by the objects that are ready for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.summary.training_memory import expected_memory, size
from lightlib.core import spawned
from lightlib.core.run_config import run_config_of
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.run.run import Run
    from lightlib.core.trainer import Trainer

_WIDTH = 13


def in_place_of_training(trainer: Trainer, pages: list[str]) -> Callable[[Run], None]:
    """Return a function for `Trainer.run_training` that adds a page to a list.

    Raises:
        MisconfigurationException: The strategy spawns its processes.
    """
    if spawned.spawns_processes(trainer):
        raise MisconfigurationException(
            f"trainer.explain() with {trainer.strategy.describe()}, which spawns its processes.",
            expected="a run in this process.",
            fix="start the program with torchrun, or strategy='ddp'.",
        )
    return lambda run: pages.append(page(run))


def page(run: Run) -> str:
    """Return one page on a run that is ready to train."""
    rows = [*_hardware(run), *_data(run), *_length(run), *_optimization(run), *_outputs(run)]
    return "\n".join(f"{name:<{_WIDTH}}{text}" for name, text in rows)


def _hardware(run: Run) -> Iterator[tuple[str, str]]:
    trainer, strategy, module = run.trainer, run.strategy, run.module
    parameters = list(module.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    yield "Module", f"{type(module).__name__}: {sum(p.numel() for p in parameters):,} parameters, {trained:,} trained"
    device = trainer.accelerator.describe(strategy.root_device)
    yield "Devices", f"{strategy.world_size} x {device}, on {_number(trainer.num_nodes, 'machine')}"
    yield "Strategy", strategy.describe()
    yield "Precision", trainer.precision
    memory = expected_memory(module, run.optimization.optimizers)
    state = "unknown" if memory.optimizer_state is None else size(memory.optimizer_state)
    fixed = f"parameters {size(memory.parameters)}, gradients {size(memory.gradients)}, optimizer state {state}"
    yield "Memory", f"per process: {fixed}; activations come on top"


def _data(run: Run) -> Iterator[tuple[str, str]]:
    config, plan, data = run_config_of(run.trainer), run.plan, run.train_data
    if data is not None:
        each = "" if config.train_per_device_batch_size is None else f" of {config.train_per_device_batch_size} samples"
        text = f"{_number(plan.num_batches, 'batch')}{each} per epoch and process"
        if config.train_total_batch_size is not None:
            text += f"; {config.train_total_batch_size} samples per optimizer step"
        yield "Training", f"{text} ({_number(plan.accumulation(run.progress.epoch), 'batch')} per step)"
    counts = run.trainer.num_val_batches
    if plan.validate_every is None or not any(counts):
        yield "Validation", "none"
    else:
        batches = " + ".join(_number(count, "batch") for count in counts)
        yield "Validation", f"{batches}, {_rhythm(run)}"
        if plan.sanity_check_due(run.progress):
            yield "", f"before training {_number(plan.sanity_batches, 'batch')} of each loader, as a check"


def _rhythm(run: Run) -> str:
    plan, settings = run.plan, run.trainer.settings
    if settings.validate_each is not None:
        return f"every {settings.validate_each}"
    if plan.validate_every_seconds is not None:
        return f"every {plan.validate_every_seconds:g} s"
    every, epochs = plan.validate_every or math.inf, settings.check_val_every_n_epoch
    if plan.validate_changes or isinstance(epochs, tuple):
        return f"at intervals that change: {plan.validate_changes or epochs}"
    if plan.validate_across_epochs:
        return f"every {_number(every, 'batch')} of the run"
    inner = "at the end" if every == math.inf else f"every {_number(every, 'batch')}"
    return f"{inner} of {'each epoch' if epochs in (None, 1) else f'every {epochs} epochs'}"


def _length(run: Run) -> Iterator[tuple[str, str]]:
    plan, settings, progress = run.plan, run.trainer.settings, run.progress
    limits = [
        *([f"{settings.max_epochs} epochs"] if settings.max_epochs not in (None, -1) else []),
        *([f"{settings.max_steps} optimizer steps"] if settings.max_steps != -1 else []),
        *([f"{settings.max_time:g} s"] if settings.max_time is not None else []),
        *([str(settings.max_duration)] if settings.max_duration is not None else []),
    ]
    total = plan.total_steps_from(progress)
    steps = "" if total == math.inf else f": {_number(total, 'optimizer step')} in all"
    yield "Length", (" or ".join(limits) if limits else "no limit") + steps
    if progress.batch:
        yield "Begins at", f"epoch {progress.epoch}, batch {progress.epoch_batch}, optimizer step {progress.step}"
    source = run.trainer.ckpt_path
    if source is not None:
        yield "Resumes from", str(source)


def _optimization(run: Run) -> Iterator[tuple[str, str]]:
    optimization = run.optimization
    if not run.module.automatic_optimization:
        yield "Steps", "by the module (automatic_optimization = False)"
    for optimizer in optimization.optimizers:
        groups = optimizer.param_groups
        rates = ", ".join(dict.fromkeys(f"{float(group['lr']):g}" for group in groups if "lr" in group))
        number = sum(len(group["params"]) for group in groups)
        name = type(getattr(optimizer, "optim", optimizer)).__name__
        yield (
            "Optimizer",
            f"{name}, lr {rates or 'unknown'}: {_number(number, 'tensor')} in {_number(len(groups), 'group')}",
        )
    for line in optimization.schedules.describe(run.plan):
        yield "Schedule", line
    value, algorithm = optimization.clip_defaults
    if value:
        yield "Clipping", f"gradients by {algorithm or 'norm'} to {value:g}"


def _outputs(run: Run) -> Iterator[tuple[str, str]]:
    trainer = run.trainer
    callbacks = [type(callback).__name__ for callback in trainer.callbacks]
    yield "Callbacks", ", ".join(callbacks) or "none"
    loggers = [f"{type(logger).__name__}{_folder(logger, 'log_dir')}" for logger in trainer.loggers]
    every = trainer.log_every_n_steps
    yield "Loggers", f"{', '.join(loggers)}, every {every} optimizer steps" if loggers else "none"
    saving = [f"{type(callback).__name__}{_folder(callback, 'dirpath')}" for callback in trainer.checkpoint_callbacks]
    yield "Checkpoints", ", ".join(saving) or "none"


def _folder(owner: Any, name: str) -> str:
    folder = getattr(owner, name, None)
    return f" in {folder}" if folder else ""


def _number(number: float, word: str) -> str:
    several = f"{word}es" if word.endswith("ch") else f"{word}s"
    if number == math.inf:
        return f"an unknown number of {several}"
    return f"{int(number):,} {word if number == 1 else several}"
