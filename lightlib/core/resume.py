"""Which checkpoint `ckpt_path` means, and what to write to go on after a stop."""

from __future__ import annotations

import os
from typing import Any

from lightlib import report
from lightlib.core import files
from lightlib.core.states import TrainerFn
from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException, shown

__all__ = ["resolve_path", "say_how_to_go_on"]

_LAUNCHERS_THAT_START_AGAIN = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")  # the same command begins and goes on


def resolve_path(trainer: Any, fn: TrainerFn, last_module: bool, given: Any) -> str | None:
    """Return the file that is to be read, or None to take the module as it is.

    Args:
        trainer: Whose checkpoint callbacks are asked.
        fn: What was called.
        last_module: Whether no module was given: then an evaluation takes the best weights of the last fit.
        given: ``"best"``, ``"last"``, a path, or None.

    Raises:
        CheckpointError: There is no such checkpoint.
    """
    if given is None:
        if fn is TrainerFn.FITTING or not last_module:
            return None
        best = _best(trainer)
        if best:
            report.info(f"trainer.{fn.value}() got no model: the best weights of the last fit are taken from {best!r}.")
        return best or None
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise ArgumentTypeError(
            f"ckpt_path is {shown(given)}.",
            expected="'best', 'last', a path, or None to start from nothing.",
            fix=f"trainer.{fn.value}(module, ckpt_path='last')",
        )
    name = os.fspath(given)
    if name == "best":
        best = _best(trainer)
        if not best:
            raise CheckpointError(
                "ckpt_path='best', but no best checkpoint is known.",
                expected="a ModelCheckpoint that has saved in this Trainer.",
                fix="call fit first, or pass a path.",
            )
        return best
    if name == "last":
        return _last(trainer, required=fn is not TrainerFn.FITTING or not _may_be_started_again())
    if name in ("hpc", "registry") or name.startswith("registry:"):
        raise MisconfigurationException(
            f"ckpt_path={name!r} is not part of this version.",
            expected="'best', 'last' or a path.",
            fix=f"trainer.{fn.value}(module, ckpt_path='last')",
        )
    if not files.exists(name):
        raise files.missing(name)
    return name


def _best(trainer: Any) -> str:
    return next((c.best_model_path for c in trainer.checkpoint_callbacks if getattr(c, "best_model_path", "")), "")


def _may_be_started_again() -> bool:
    """Whether a launcher that starts a program again when it has ended has started this one."""
    return any(name in os.environ for name in _LAUNCHERS_THAT_START_AGAIN)


def _last(trainer: Any, required: bool) -> str | None:
    folders = []
    candidates: list[str] = []
    for callback in trainer.checkpoint_callbacks:
        known = getattr(callback, "last_model_path", "")
        if known and files.exists(known):
            candidates.append(str(known))
        if hasattr(callback, "find_last_checkpoints"):
            folders.append(callback.folder(trainer))
            candidates += callback.find_last_checkpoints(trainer)
            interrupted = os.path.join(folders[-1], "interrupted.ckpt")
            candidates += [interrupted] if files.exists(interrupted) else []
    if not candidates:
        where = f" in {', '.join(map(repr, folders))}" if folders else ""
        if not required:
            report.info(f"ckpt_path='last': there is no last checkpoint{where}, so the run begins from nothing.")
            return None
        raise CheckpointError(
            f"ckpt_path='last', but there is no last checkpoint{where}.",
            expected="a file last*.ckpt of a ModelCheckpoint with save_last=True.",
            fix="pass a path, or leave ckpt_path out to start from nothing.",
        )
    return max(candidates, key=lambda path: os.path.getmtime(path) if os.path.exists(path) else 0.0)


def say_how_to_go_on(trainer: Any, saved: str | None, interrupted: bool) -> None:
    """Print where the run stopped and the call that resumes it."""
    progress = trainer.progress
    where = (
        f"Stopped at current_epoch={progress.epoch} after {progress.epoch_batch} of its batches "
        f"(global_step={progress.step})."
    )
    newest = saved or _newest(trainer)
    if newest:
        place = "there" if saved else "the last checkpoint"
        report.info(f'{where} To go on from {place}: trainer.fit(module, …, ckpt_path="{newest}")')
    elif interrupted or progress.step:
        report.info(f"{where} No checkpoint was written, so a new run starts from nothing.")


def _newest(trainer: Any) -> str:
    known = [
        str(path)
        for callback in trainer.checkpoint_callbacks
        for path in (getattr(callback, "last_model_path", ""), getattr(callback, "best_model_path", ""))
        if path and os.path.exists(path)
    ]
    return max(known, key=os.path.getmtime, default="")
