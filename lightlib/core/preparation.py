"""Preparation of a run: data, loggers, hyperparameters, and the lines that are printed at its start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from lightlib import report
from lightlib.accelerators.resolve import unused
from lightlib.checkpoint.storage.content import lightlib_state
from lightlib.conventions import leniency
from lightlib.core.build import Builder
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.module.overrides import method_of, with_stage
from lightlib.core.progress.states import TrainerFn
from lightlib.core.resume.resume_source import ResumeSource
from lightlib.core.run.hooks import Hooks
from lightlib.core.run.parts import Stage
from lightlib.core.run.run import Run
from lightlib.core.values.restoring import same
from lightlib.errors import MisconfigurationException
from lightlib.loggers.fanout import Fanout
from lightlib.loggers.hyperparameters import from_omegaconf
from lightlib.version import __version__

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def check_source(fn: TrainerFn, sources: Mapping[str, Any]) -> None:
    """Refuse a call without data."""
    name = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}[fn.value]
    if sources[name] is None:
        argument = "train_dataloaders" if name == "train" else "dataloaders"
        raise MisconfigurationException(
            f"trainer.{fn.value}() has no data.",
            expected=f"`{argument}`, a data module, or a method `{name}_dataloader` of the module.",
            fix=f"trainer.{fn.value}(module, {argument}=loader)",
        )


def loader_count(builder: Builder, stage: Stage, fn: TrainerFn) -> int:
    """Return the number of loaders of an evaluation stage; 1 if it does not run, 0 if it is not known yet."""
    key, fits = stage.key, fn is TrainerFn.FITTING
    runs = stage.name == "validation" and bool(builder.settings.limit_val_batches) if fits else stage.state == fn.value
    if not runs or builder.sources[key] is None:
        return 1
    if fits and builder.order.loads_late:
        return 0
    count = builder.eval_data(stage).num_loaders
    if not count and not (fn is not TrainerFn.FITTING and leniency().warns):
        builder.sources[key] = None
        check_source(fn, builder.sources)
    return count or 1


def prepare_loggers(trainer: Trainer, fn: TrainerFn, origin: ResumeSource) -> Fanout:
    """Open the loggers, on all ranks or on none, and return them as one object."""
    if fn is TrainerFn.FITTING:
        warn_of_autolog(trainer)
    strategy, error = trainer.strategy, None
    fanout = Fanout(trainer.loggers)
    if fn is TrainerFn.FITTING and origin.continues:
        fanout.load_state_dict(lightlib_state(origin.content or {}).get("loggers"))
    elif fn is TrainerFn.FITTING and origin.found.skips:
        fanout.start_anew()
    for logger in trainer.loggers:
        try:
            logger.prepare()
        except Exception as raised:  # noqa: BLE001  the other ranks receive it before it ends this one
            error = raised
        message = strategy.broadcast(None if error is None else str(error))
        if error is not None:
            raise error
        if message is not None:
            raise MisconfigurationException(message)
        logger.share(strategy.broadcast)
    return fanout


def warn_of_autolog(trainer: Trainer) -> None:
    """Warn once if ``mlflow.pytorch.autolog()`` is on, which logs fits of Lightning's Trainer only."""
    autologging: Any = sys.modules.get("mlflow.utils.autologging_utils")
    settings = getattr(autologging, "AUTOLOGGING_INTEGRATIONS", {}).get("pytorch")
    patched = hasattr(type(trainer).fit, "__wrapped__")  # the Trainer is Lightning's with compat
    if not settings or settings.get("disable", False) or patched:
        return
    from lightlib.loggers.mlflow import MLFlowLogger  # optional: only with mlflow

    if any(isinstance(logger, MLFlowLogger) for logger in trainer.loggers):
        return
    report.warn_once(
        "mlflow.autolog",
        "mlflow.pytorch.autolog() is on, but it logs nothing of this Trainer: it changes the Trainer of `lightning`.\n"
        "  Expected: a logger of lightlib.\n"
        "  Fix: Trainer(logger=MLFlowLogger()); or call lightlib.compat.install() before autolog().",
        report.PossibleUserWarning,
    )


def prepare_data(trainer: Trainer, builder: Builder, hooks: Hooks, fn: TrainerFn) -> None:
    """Call `prepare_data` and `setup` of the data module, the module and the callbacks."""
    module, datamodule, timed = builder.module, builder.datamodule, builder.timed
    trainer.accelerator.setup(trainer)
    if (profiler := builder.timing.profiler) is not None:
        profiler.watch(module)
        local_rank = trainer.local_rank if trainer.world_size > 1 else None
        profiler.setup(stage=fn.value, local_rank=local_rank, log_dir=trainer.log_dir)
    for owner in (datamodule, module):
        first = trainer.local_rank if getattr(owner, "prepare_data_per_node", True) else trainer.global_rank
        if owner is not None and first == 0:
            timed(owner, "prepare_data", method_of(owner, DataHooks, "prepare_data"))()
    trainer.strategy.barrier("prepare_data")
    if datamodule is not None:
        timed(datamodule, "setup", with_stage(method_of(datamodule, DataModule, "setup")))(fn)
    hooks.setup(fn)


def log_hyperparameters(run: Run) -> None:
    """Log the hyperparameters and the graph of the module."""
    if not run.trainer.settings.enable_autolog_hparams or not run.loggers:
        return
    params: dict[str, Any] = {}
    for owner in (run.datamodule, run.module):
        if owner is not None and owner._log_hyperparams:  # noqa: SLF001  set by save_hyperparameters
            for name, value in from_omegaconf(owner.hparams).items():
                if name in ("_class_path", "_instantiator"):  # LightningCLI's names of the class
                    continue
                if name in params and not same(params[name], value):
                    raise MisconfigurationException(
                        f"The hyperparameter {name!r} is {params[name]!r} in the data module "
                        f"and {value!r} in the module.",
                        expected="the same value in both, or different names.",
                        fix=f"save_hyperparameters(ignore={name!r}) in one of the two.",
                    )
                params[name] = value
    if params:
        run.loggers.log_hyperparams(params)
    run.loggers.log_graph(run.module)
    run.loggers.save()


def start_lines(run: Run) -> list[str]:
    """Return the lines to print at the start: versions, device, precision, strategy, seed, and the schedules."""
    trainer = run.trainer
    device = trainer.accelerator.describe(trainer.strategy.root_device)
    idle = unused(trainer.accelerator)
    seed = os.environ.get("PL_GLOBAL_SEED")
    parts = [
        f"lightlib {__version__}",
        f"torch {torch.__version__}",
        f"{trainer.strategy.world_size}×{device}" + f" (a {idle} device is unused)" * bool(idle),  # noqa: RUF001  it is meant
        trainer.precision,
        trainer.strategy.describe(),
        f"seed {seed}" if seed is not None else "no seed",
    ]
    return [" · ".join(parts), *run.optimization.schedules.describe(run.plan)]


def nothing_to_train(run: Run) -> str:
    """Return the line about a fit that begins beyond its limits, and how to train further."""
    plan, progress, steps = run.plan, run.progress, run.trainer.global_step
    limit = run.trainer.settings.max_duration
    if plan.num_batches == 0:
        fix = "Trainer(limit_train_batches=1.0)"
    elif limit is not None and progress.batch >= plan.max_batches:
        fix = "fit(…, ckpt_path=…) with a Trainer that has a larger max_duration"
    else:
        name, more = "max_epochs", progress.epoch + plan.max_epochs
        if steps >= plan.max_steps:
            name, more = "max_steps", steps + plan.max_steps
        fix = (
            f"set trainer.{name} = {more:g} before fit, or Trainer({name}={more:g}). A new Trainer without ckpt_path "
            "begins at epoch 0"
        )
    return (
        f"Nothing to train: the run is already at epoch {progress.epoch}, step {progress.step}, with "
        f"max_epochs={plan.max_epochs:g}, max_steps={plan.max_steps:g}"
        f"{'' if limit is None else f', max_duration={str(limit)!r}'} and {plan.num_batches:g} training batches.\n"
        f"  Expected: limits beyond this position.\n  Fix: {fix}."
    )
