"""Finds the checkpoint that `ckpt_path` names, and prints how to resume after a stop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.storage.store import each
from lightlib.conventions import leniency
from lightlib.core.progress.states import TrainerFn
from lightlib.core.resume.checkpoint_list import (
    ENDING,
    ListedCheckpoint,
    checkpoints_in,
    folders_of,
    newest_first,
    paths_in,
)
from lightlib.core.resume.selector import Selector
from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException, few, shown

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

_LAUNCHERS_THAT_START_AGAIN = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")  # these run the same command again


@dataclass(frozen=True)
class FoundCheckpoint:
    """The checkpoint that `ckpt_path` names.

    Attributes:
        path: The checkpoint to read; None to begin from nothing.
        continues: Whether the call continues the run that wrote it, with its files and logs, and not a branch of it.
        label: What is written on it; None on one of Lightning or of an older version.
        fallbacks: The checkpoints to try next if it is damaged, in this order.
        skips: Whether a damaged one is skipped if more are left, and none at all is no error: `path` may be None.
        by_path: Whether the user wrote the path, and not a word for it: then the file is never removed.
    """

    path: str | None = None
    continues: bool = False
    label: Label | None = None
    fallbacks: tuple[FoundCheckpoint, ...] = ()
    skips: bool = False
    by_path: bool = False


def resolve_path(trainer: Trainer, fn: TrainerFn, last_module: bool, given: Any) -> FoundCheckpoint:
    """Return the checkpoint that is to be read, or none, to take the module as it is. To be asked on rank zero.

    The newest of one run's checkpoints is the one with the highest batch and serial number in its label, whatever its
    file's time is. Only between different runs in one place a clock counts: the newest run is the one whose newest
    file was written last. Files without a label come after those with one, by their time.

    Args:
        last_module: Whether no module was given: then an evaluation takes the best weights of the last fit.
        given: ``"best"``, ``"last"`` (the newest of ``last*.ckpt`` and ``interrupted.ckpt``), ``"auto"`` (the newest of
            all checkpoints in the folders of the callbacks, or none), ``"epoch:20"`` or ``"step:500"`` (the newest of
            that epoch or step in these folders), a path or URL, or None.
    """
    if given is None:
        best = "" if fn is TrainerFn.FITTING or not last_module else _best(trainer)
        if best:
            report.warn(
                f"trainer.{fn.value}() got neither a model nor a ckpt_path: the best model of the last fit is used, "
                f"from {best!r}.\n"
                f"  Fix: trainer.{fn.value}(ckpt_path='best') to ask for it, or trainer.{fn.value}(model) for the "
                "present weights.",
                report.PossibleUserWarning,
            )
        return FoundCheckpoint(best or None)
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise ArgumentTypeError(
            f"ckpt_path is {shown(given)}.",
            expected="'auto', 'best', 'last', 'epoch:N', 'step:N', a path, or None to start from nothing.",
            fix=f"trainer.{fn.value}(module, ckpt_path='last')",
        )
    name = os.fspath(given)
    if name == "auto":
        return _auto(trainer, fn)
    if name == "last":
        return _last(trainer, fn)
    if name == "best":
        name = _best(trainer) or _best_of_earlier_run(trainer)
        if not name:
            where = few(folders_of(trainer)) or "this Trainer"
            raise CheckpointError(
                f"ckpt_path='best', but no best checkpoint is known to {where}.",
                expected="a ModelCheckpoint that has saved, in this Trainer or in a folder of its runs.",
                fix="call fit first, or pass a path.",
            )
    elif (selector := Selector.of(name)) is not None:
        name = selector.path(checkpoints_in(folders_of(trainer), trainer), folders_of(trainer))
    elif name in ("hpc", "registry") or name.startswith("registry:"):
        raise MisconfigurationException(
            f"ckpt_path={name!r} is not part of this version.",
            expected="'auto', 'best', 'last', 'epoch:N', 'step:N' or a path.",
            fix=f"trainer.{fn.value}(module, ckpt_path='last')",
        )
    if trainer.strategy.extension.store is not None:  # where it is, and whether, only the store knows
        return FoundCheckpoint(name, by_path=os.fspath(given) != "best")
    if not formats.exists(name):
        raise formats.missing(name)
    label = ListedCheckpoint(name).label
    continues = fn is TrainerFn.FITTING and _is_newest_of_its_run(name, label)
    return FoundCheckpoint(name, continues, label, by_path=os.fspath(given) != "best")


def after_damage(found: FoundCheckpoint, error: CheckpointError) -> FoundCheckpoint:
    """Return the checkpoint to read instead of a damaged one, with a warning."""
    if not found.skips:
        raise error
    _warn_of_skipped(found.path, error)
    if not found.fallbacks:
        raise _all_skipped(found.path) from error
    following, *rest = found.fallbacks
    _report_choice(following)
    return replace(following, fallbacks=tuple(rest))


def _warn_of_skipped(path: str | None, error: CheckpointError) -> None:
    report.warn(f"ckpt_path='auto': {path!r} is skipped: {str(error).splitlines()[0]}")


def _all_skipped(path: str | None) -> CheckpointError:
    """Return the error for checkpoints none of which can be read, `path` being the last: a new run would hide them."""
    folder = str(path).rstrip("/").rpartition("/")[0] if filesystem.is_remote(str(path)) else os.path.dirname(str(path))
    return CheckpointError(
        f"ckpt_path='auto': none of the checkpoints can be loaded, {path!r} being the last; see the warnings above.",
        expected="at least one checkpoint from which the run resumes, or none at all.",
        fix=f"repair or restore one of them; or move them out of {folder!r}, or choose another folder, to begin a new "
        "run: none was changed.",
    )


def _auto(trainer: Trainer, fn: TrainerFn) -> FoundCheckpoint:
    folders = folders_of(trainer)
    savers = [callback for callback in trainer.checkpoint_callbacks if hasattr(callback, "save_weights_only")]
    if fn is TrainerFn.FITTING and savers and all(saver.save_weights_only for saver in savers):
        report.warn(
            "ckpt_path='auto' together with save_weights_only=True: the checkpoints of this run hold weights alone, so "
            "it begins again from epoch 0 when it is killed.\n"
            "  Fix: leave out save_weights_only, or add a second ModelCheckpoint(save_last=True) without it.",
            report.PossibleUserWarning,
        )
    checkpoints = list(checkpoints_in(folders, trainer))
    ordered = newest_first(
        [checkpoint for checkpoint in checkpoints if fn is not TrainerFn.FITTING or checkpoint.is_resumable]
    )
    for checkpoint, error in _damaged_before(ordered):
        _warn_of_skipped(checkpoint.path, error)
        ordered.remove(checkpoint)
        if not ordered and not _leads_nowhere(checkpoint.path):
            raise _all_skipped(checkpoint.path) from error
    if not ordered:
        _warn_of_no_checkpoint(
            "auto", folders, [checkpoint for checkpoint in checkpoints if not checkpoint.is_resumable]
        )
        return FoundCheckpoint(skips=True)
    first, *rest = [FoundCheckpoint(checkpoint.path, True, checkpoint.label, skips=True) for checkpoint in ordered]
    _report_choice(first)
    return replace(first, fallbacks=tuple(rest))


def _last(trainer: Trainer, fn: TrainerFn) -> FoundCheckpoint:
    folders = folders_of(trainer)
    names = [getattr(callback, "CHECKPOINT_NAME_LAST", None) for callback in trainer.checkpoint_callbacks]
    prefixes = [name.partition("{")[0] for name in names if name is not None]
    last_paths = [str(getattr(callback, "last_model_path", "") or "") for callback in trainer.checkpoint_callbacks]
    checkpoints = [checkpoint for checkpoint in checkpoints_in(folders, trainer) if checkpoint.is_last(prefixes)]
    paths = {checkpoint.path for checkpoint in checkpoints}
    checkpoints += [
        ListedCheckpoint(path)
        for path in dict.fromkeys(last_paths)
        if path and path not in paths and filesystem.exists(path)
    ]
    resumable = [checkpoint for checkpoint in checkpoints if checkpoint.is_resumable]
    ordered = newest_first(resumable if resumable and fn is TrainerFn.FITTING else checkpoints)
    if ordered:
        damaged = next(iter(_damaged_before(ordered)), None)
        chosen = ordered[0] if damaged is None else damaged[0]  # reading it raises the error
        return FoundCheckpoint(chosen.path, fn is TrainerFn.FITTING, chosen.label)
    if fn is TrainerFn.FITTING and any(name in os.environ for name in _LAUNCHERS_THAT_START_AGAIN):
        _warn_of_no_checkpoint("last", folders)
        return FoundCheckpoint(skips=True)
    where = f" in {few(folders)}" if folders else ""
    missing = CheckpointError(
        f"ckpt_path='last', but there is no last checkpoint{where}.",
        expected="a file last*.ckpt of a ModelCheckpoint with save_last=True.",
        fix="pass a path, or ckpt_path='auto' to start from nothing when there is none.",
    )
    leniency().tolerate(missing, "the call starts from nothing")
    return FoundCheckpoint(skips=fn is TrainerFn.FITTING)


def _report_choice(checkpoint: FoundCheckpoint) -> None:
    label = checkpoint.label
    where = f" (epoch {label.epoch}, step {label.step})" if label is not None else ""
    report.info(f"ckpt_path='auto': the newest checkpoint is {checkpoint.path!r}{where}.")


def _warn_of_no_checkpoint(asked: str, folders: Sequence[str], weights: Sequence[ListedCheckpoint] = ()) -> None:
    missing = "last checkpoint" if asked == "last" else "checkpoint"
    where = f" in {few(folders)}" if folders else ""
    if weights:
        report.warn(
            f"ckpt_path={asked!r}: the run begins from nothing, because the {len(weights)} checkpoints{where} hold "
            f"weights alone (the newest is {newest_first(weights)[0].path!r}).\n"
            "  Fix: ModelCheckpoint without save_weights_only=True saves what a resume needs; "
            "fit(…, ckpt_path=path, resume='weights') trains on from such weights.",
        )
        return
    report.info(f"ckpt_path={asked!r}: there is no {missing}{where}, so the run begins from nothing.")


def _best(trainer: Trainer) -> str:
    paths = (getattr(callback, "best_model_path", "") for callback in trainer.checkpoint_callbacks)
    return next(filter(None, paths), "")


def _best_of_earlier_run(trainer: Trainer) -> str:
    """Return the best checkpoint that the newest one in the folders names, for a process that has trained nothing."""
    for checkpoint in newest_first(
        [checkpoint for checkpoint in checkpoints_in(folders_of(trainer), trainer) if checkpoint.is_resumable]
    ):
        try:
            states = formats.load(checkpoint.path, "meta").get("callbacks") or {}
        except CheckpointError:
            continue  # the one before it knows as well
        paths = ((states.get(each.state_key) or {}).get("best_model_path") for each in trainer.checkpoint_callbacks)
        for path in filter(None, paths):
            beside = filesystem.join(os.path.dirname(checkpoint.path), os.path.basename(path))  # the folder was moved
            best = next((str(candidate) for candidate in (path, beside) if formats.exists(candidate)), "")
            if best:
                report.info(f"ckpt_path='best': {best!r}, named by {checkpoint.path!r}.")
                return best
    return ""


def _damaged_before(ordered: Sequence[ListedCheckpoint]) -> list[tuple[ListedCheckpoint, CheckpointError]]:
    """Return the damaged ones among those that were written after the first: without label they come last in order."""
    damaged = []
    for checkpoint in ordered:
        later = ordered[0].label is not None and checkpoint.label is None and checkpoint.written >= ordered[0].written
        try:
            if checkpoint.label is None and _leads_nowhere(checkpoint.path):
                raise formats.missing(checkpoint.path)
            if later:
                formats.verify(checkpoint.path)
        except CheckpointError as error:
            damaged.append((checkpoint, error))
    return damaged


def _leads_nowhere(path: str) -> bool:
    """Whether a path is a link to a file that does not exist."""
    return not filesystem.is_remote(path) and not os.path.exists(filesystem.local_path(path))


def _is_newest_of_its_run(path: str, label: Label | None) -> bool:
    """Whether the run that wrote `path` went no further, as far as its folder shows."""
    if label is None or not label.run or label.weights_only:
        return False
    folder = (
        path.rstrip("/").rpartition("/")[0] if filesystem.is_remote(path) else os.path.dirname(os.path.abspath(path))
    )
    paths = paths_in(folder, (ENDING, os.path.splitext(path)[1] or ENDING), 0)
    beside = [
        checkpoint.label
        for checkpoint in each(ListedCheckpoint, paths, "reading the labels of checkpoints")
        if checkpoint.label is not None
    ]
    return not any(other.run == label.run and other.batch > label.batch and not other.weights_only for other in beside)


def report_how_to_resume(trainer: Trainer, saved: str | None, interrupted: bool) -> None:
    """Print where the run stopped and the call that resumes it."""
    progress = trainer.progress
    where = (
        f"Stopped at current_epoch={progress.epoch} after {progress.epoch_batch} of its batches "
        f"(global_step={progress.step})."
    )
    newest = saved or newest_of_callbacks(trainer)
    if newest:
        place = "there" if saved else "the last checkpoint"
        report.info(
            f'{where} To resume from {place}: trainer.fit(module, …, ckpt_path="{newest}"); with ckpt_path="auto" '
            "(`--ckpt_path auto`) rerunning the same command resumes automatically."
        )
    elif interrupted or progress.step:
        report.info(f"{where} No checkpoint was written, so a new run starts from nothing.")


def newest_of_callbacks(trainer: Trainer) -> str:
    """Return the newest of the checkpoints that the callbacks know of; an empty string without any."""
    checkpoints = [
        ListedCheckpoint(str(path))
        for callback in trainer.checkpoint_callbacks
        for path in (getattr(callback, "last_model_path", ""), getattr(callback, "best_model_path", ""))
        if path and filesystem.exists(path)
    ]
    return next((checkpoint.path for checkpoint in newest_first(checkpoints)), "")
