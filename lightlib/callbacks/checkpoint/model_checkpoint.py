"""ModelCheckpoint: which checkpoints a run saves and keeps: the best, the last, or one every so often."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from lightlib import report
from lightlib.callbacks.checkpoint.arguments import check_arguments
from lightlib.callbacks.checkpoint.best import as_number
from lightlib.callbacks.checkpoint.folder import check_writable, others_take_part
from lightlib.callbacks.checkpoint.guarded_saves import GuardedSaves
from lightlib.callbacks.monitored import check_mode, final_at_epoch_end, missing, validates
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import CheckpointWriteError, MisconfigurationException, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

__all__ = ["ModelCheckpoint"]


class ModelCheckpoint(GuardedSaves):
    """Saves checkpoints while training, and keeps the best ones by a logged metric.

    When a save is due, it happens after the validation that belongs to it, so that the metric is that of the saved
    weights. New files are complete before older ones are removed, and files of other runs are never touched. A run that
    was killed, at whatever moment, and goes on from its newest file ends with the files that it would have had.

    Args:
        dirpath: Folder of the checkpoints, local or remote. Default: ``checkpoints`` in `trainer.log_dir`, or in
            `trainer.default_root_dir` when there is no logger.
        filename: Template of the names: metrics in braces, with a format if wanted: ``"{epoch:02d}-{val_loss:.2f}"``.
            Default: ``"{epoch}-{step}"``, where step counts optimizer steps. The extension is added.
        monitor: Metric by which checkpoints are compared. None: the latest one counts as the best.
        verbose: Say each save.
        save_last: True: also save ``last.ckpt``, whenever a save is due and at the end of every epoch (or after every
            validation, see `save_on_train_epoch_end`), whatever the interval of the others. "link": make it a link to
            the file that was saved at that moment, where there is one.
        save_top_k: How many of the best checkpoints are kept; -1: all, 0: none. Without `monitor` only -1, 0 and 1.
        save_on_exception: Also save when an exception or Ctrl-C ends training.
        save_weights_only: Leave out what is needed only to resume: optimizers, schedules, callbacks.
        mode: "min" when less of the metric is better, "max" when more is.
        auto_insert_metric_name: Write ``epoch=02`` for ``{epoch:02d}``, and not ``02``.
        every_n_train_steps: Save every n optimizer steps.
        train_time_interval: Save when this much time has passed since the last save.
        every_n_epochs: Save every n epochs. Default: 1, unless one of the two above is given.
        save_on_train_epoch_end: True: save at the end of training epochs; False: after validations. Default: after
            validations when their rhythm is not that of the epochs, else at the end of epochs.
        enable_version_counter: Add ``-v1`` and so on to a name that is taken; when False, such files are overwritten.
        async_save: Training waits only until the state is copied, and goes on while a thread writes the copy. Two saves
            never overlap: the next one waits for this one, so one copy exists at most. What goes wrong is raised at the
            end of the batch, the validation or the training in which it is seen. `last` is a copy of the file before.
        save_errors: "raise": a file that cannot be written ends training. "warn": it is said, training goes on, and the
            next save is tried. All earlier files are there in either case.
        format: "file": one file. "directory": every process writes its part. Default: as the strategy says.

    Attributes:
        best_model_path: The best checkpoint so far, or an empty string.
        best_model_score: Its metric.
        last_model_path: The file of `save_last`, or an empty string.
        best_k_models: The kept files and their metrics. NaN is kept as the worst possible number.
        kth_best_model_path: The worst of them, which is removed next; `kth_value` is its metric.
        current_score: The metric of the latest comparison.

    Raises:
        MisconfigurationException: Arguments that exclude each other, or a negative number; while training: `monitor`
            was not logged.
        MisconfigurationException: When `fit` begins: another live run writes into the folder.
        CheckpointWriteError: While training: a file could not be written. All earlier files are still there.

    Example:
        >>> callback = ModelCheckpoint("runs", "{epoch:02d}-{val_loss:.2f}", monitor="val_loss", save_top_k=3)
        >>> os.path.basename(callback.format_checkpoint_name({"epoch": 3, "val_loss": 0.123}))
        'epoch=03-val_loss=0.12.ckpt'
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: Literal["min", "max"] = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
        *,
        async_save: bool = False,
        save_errors: Literal["raise", "warn"] = "raise",
        format: Literal["file", "directory"] | None = None,  # noqa: A002  as in Trainer.save_checkpoint
    ) -> None:
        super().__init__(
            dirpath, filename, save_weights_only, auto_insert_metric_name, enable_version_counter, format, async_save
        )
        self.monitor = monitor
        self.verbose = verbose
        self.save_last = save_last
        self.save_top_k = save_top_k
        self.save_on_exception = save_on_exception
        self.mode = check_mode(mode)
        self.every_n_train_steps = every_n_train_steps or 0
        self.train_time_interval = train_time_interval
        no_trigger = every_n_train_steps is None and train_time_interval is None and every_n_epochs is None
        self.every_n_epochs = 1 if no_trigger else every_n_epochs or 0
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.save_errors = save_errors
        check_arguments(
            monitor=monitor,
            filename=filename,
            save_last=save_last,
            save_top_k=save_top_k,
            every_n_train_steps=self.every_n_train_steps,
            every_n_epochs=self.every_n_epochs,
            train_time_interval=train_time_interval,
            async_save=async_save,
            save_errors=save_errors,
            format=format,
        )
        self._start_empty()

    @property
    def state_key(self) -> str:
        """Several of these can be used together when they differ in metric, mode or rhythm."""
        return self._generate_state_key(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=self.every_n_train_steps,
            every_n_epochs=self.every_n_epochs,
            train_time_interval=self.train_time_interval,
        )

    # when a save is due

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Choose the folder when `fit` begins, see whether it can be written, and claim it for this run."""
        if stage != "fit":
            return
        self.dirpath = trainer.strategy.broadcast(self.folder(trainer))
        if self.save_last == "link" and filesystem.is_remote(self.dirpath):
            raise MisconfigurationException(
                f"ModelCheckpoint(save_last='link') with the remote folder {self.dirpath!r}.",
                expected="a local folder: only there can a file be a link.",
                fix="ModelCheckpoint(save_last=True)",
            )
        check_writable(trainer, self.dirpath, type(self).__name__)
        if not trainer.fast_dev_run:
            self._enter(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Take the position where this run starts, and what it had still to do when it was killed there.

        Otherwise nothing is saved before something was trained.
        """
        self._begin(trainer.progress.batch, trainer.global_step)
        restored, self._restored = self._restored, None
        if trainer.fast_dev_run:
            return
        if restored is not None and trainer.continues:
            self._take_position(trainer, restored)
        elif restored is not None:
            self._branch_off()
        self._agree(trainer)
        if self._pending:
            trainer.at_save_point(partial(self._save_due, trainer))
        else:
            self._delete_evicted(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Ask for a save every n steps, or when the time has come."""
        if self._in_flight:
            self._look(trainer)
        every = self.every_n_train_steps
        if every:
            before, self._step = self._step, trainer.global_step
            due = self._step // every > before // every
        elif self.train_time_interval is not None:
            due = self._clock.over(trainer, trainer.progress.batch, self.train_time_interval.total_seconds())
        else:
            return
        if due:
            self._clock.start(trainer.progress.batch)
            self._request(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Ask for a save after a validation."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self._look(trainer)
        self._validated_at_step = trainer.global_step
        if self.monitor is not None and not self.every_n_epochs:
            self._validated_value = as_number(trainer.callback_metrics.get(self.monitor))
        if not self._at_epoch_end(trainer):
            self._request_for_epoch(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Ask for a save at the end of a training epoch."""
        self._look(trainer)
        self._epoch_ended = True
        if self._at_epoch_end(trainer):
            self._request_for_epoch(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Wait for what is still being written."""
        self._settle(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Remove what was saved because the run was ended, now that it has come to its own end."""
        if not trainer.fast_dev_run and self.dirpath is not None:
            self._clear_up(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Save the run as it is, when asked to; a failure to do so is reported and does not hide `exception`."""
        if trainer.state.fn != "fit":
            return
        self._stop_writing()
        if not self.save_on_exception or trainer.fast_dev_run or trainer.sanity_checking or self._nothing_new(trainer):
            return
        if self.dirpath is None or not others_take_part(trainer, exception):
            return
        self._epoch = trainer.current_epoch
        try:
            self._save_as_it_is(trainer)
        except Exception as error:  # noqa: BLE001 - the exception that ended training must stay visible
            report.warn(f"ModelCheckpoint could not save after {type(exception).__name__}: {error}")
        else:
            report.info(f"{type(exception).__name__}: the run was saved to {self._latest!r}.")

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Give the folder back."""
        if stage == "fit":
            self._stop_writing()
            self._leave()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Let nobody write while this callback's last save is being written."""
        if self._writer is not None:
            self._writer.join()

    def _at_epoch_end(self, trainer: Trainer) -> bool:
        return final_at_epoch_end(trainer) if self.save_on_train_epoch_end is None else self.save_on_train_epoch_end

    def _request_for_epoch(self, trainer: Trainer) -> None:
        if self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._request(trainer)
        elif self.save_last:
            self._request(trainer, "last alone")

    def _request(self, trainer: Trainer, what: str = "all") -> None:
        if self._pending in ("all", "last") or trainer.fast_dev_run or self._nothing_new(trainer):
            return
        is_asked, self._pending, self._asked_of = bool(self._pending), what, trainer
        self._epoch = trainer.current_epoch  # the epoch is counted before the loop answers
        if not is_asked:
            trainer.at_save_point(partial(self._save_due, trainer))

    def _nothing_new(self, trainer: Trainer) -> bool:
        return bool(trainer.progress.batch == self._saved_at_batch)

    # the save

    def _save_due(self, trainer: Trainer) -> None:
        try:
            if self._pending == "last":
                self._go_on_saving(trainer)
            else:
                self._save_all(trainer, ranked=self._pending == "all")
        except CheckpointWriteError as error:
            if self.save_errors == "raise":
                raise
            self._say(error)

    def _save_all(self, trainer: Trainer, ranked: bool = True) -> None:
        self._settle(trainer)
        self._agree(trainer)
        # A metric of a step is another on each process: that of rank zero counts, so that all decide alike.
        candidates = trainer.strategy.broadcast(self._monitor_candidates(trainer))
        self._undo = before = {**self._bookkeeping(), "_pending": ""}
        self._latest, previous = "", self.last_model_path

        def save() -> None:
            # Each file says what is done when it is complete, and what is still to do: all that is set before.
            self._candidates, self._saved_at_batch = candidates, trainer.progress.batch
            self._pending = "last" if self.save_last else ""
            if self.save_last:
                self.last_model_path = self._last_path(trainer, candidates)
            others = [previous] if previous and previous != self.last_model_path else []
            self._evicted = [*self._evicted, *others]
            if ranked and self.save_top_k != 0:
                self._save_topk_checkpoint(trainer, candidates)
            kept = [path for path in self._evicted if path not in others]
            without_last = {name: before[name] for name in ("last_model_path", "_saved_at_batch", "_pending")}
            self._in_order(partial(self._set_undo, {**self._bookkeeping(), **without_last, "_evicted": kept}))
            if self.save_last:
                self._pending = ""
                self._save_last_checkpoint(trainer, candidates)

        self._save_and_remove(trainer, save)

    def _go_on_saving(self, trainer: Trainer) -> None:
        """Make up for the second half of a save, after a resume from the file that the first half wrote."""
        self._undo = {**self._bookkeeping(), "_pending": ""}

        def save() -> None:
            self._pending = ""
            self._latest = self._latest if self._latest and self.file_exists(self._latest, trainer) else ""
            self._save_last_checkpoint(trainer, self._candidates)

        self._save_and_remove(trainer, save)

    def _save_as_it_is(self, trainer: Trainer) -> None:
        """Save beside what is kept. A run that goes on from there and has come further removes the file."""
        candidates = trainer.strategy.broadcast(self._monitor_candidates(trainer))
        previous, evicted = self.last_model_path, self._evicted
        path = self._get_metric_interpolated_filepath_name(candidates, trainer)
        try:
            if self.save_last:
                self.last_model_path = self._last_path(trainer, candidates)
            others = [previous] if previous and previous != self.last_model_path else []
            self._evicted = [*evicted, *others, path]
            self._save_checkpoint(trainer, path)
            if self.save_last:
                self._save_checkpoint(trainer, self.last_model_path)
        except BaseException:
            self.last_model_path, self._evicted = previous, evicted
            raise
        self._saved_at_batch, self._latest = trainer.progress.batch, path
        self._evicted = [*evicted, *others]
        self._delete_evicted(trainer)

    # which files

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor is None:
            self._save_none_monitor_checkpoint(trainer, monitor_candidates)
        else:
            self._save_monitor_checkpoint(trainer, monitor_candidates)

    def _save_none_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        previous = self.best_model_path
        replaced = previous if self.save_top_k == 1 else None
        path = self._get_metric_interpolated_filepath_name(monitor_candidates, trainer, replaced)
        self.best_model_path = path
        if replaced and replaced != path:
            self._evicted = [*self._evicted, replaced]
        self._save_checkpoint(trainer, path)

    def _save_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        assert self.monitor is not None
        current = monitor_candidates.get(self.monitor)
        if current is None:
            self._metric_is_missing(trainer, monitor_candidates)
            return
        self._warn_when_stale(trainer, current)
        if self.check_monitor_top_k(trainer, current):
            self._update_best_and_save(current, trainer, monitor_candidates)
        else:
            self.current_score = current
            if self.verbose:
                report.info(
                    f"Epoch {self._epoch}, step {trainer.global_step}: {self.monitor!r} = {current.item():.5g} is not "
                    f"among the best {self.save_top_k}."
                )

    def _metric_is_missing(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        assert self.monitor is not None
        logged = set(trainer.callback_metrics)
        could_be_there = self._validated_at_step is not None if validates(trainer) else self._epoch_ended
        if could_be_there:
            raise missing(
                "ModelCheckpoint",
                self.monitor,
                logged,
                fix=f"log it with self.log({self.monitor!r}, …); if it is logged for a whole training epoch, set "
                "ModelCheckpoint(save_on_train_epoch_end=True).",
            )
        self._warn_once(
            "missing",
            f"ModelCheckpoint(monitor={self.monitor!r}): at step {trainer.global_step} this metric does not exist yet, "
            f"so no checkpoint was compared.{nearest(self.monitor, logged)} Saves begin when it was logged for "
            "the first time.",
        )

    def _warn_when_stale(self, trainer: Trainer, current: Tensor) -> None:
        step, value = self._validated_at_step, self._validated_value
        if step is not None and step != trainer.global_step and value is not None and torch.equal(value, current):
            self._warn_once(
                "stale",
                f"ModelCheckpoint(monitor={self.monitor!r}): the checkpoint of step {trainer.global_step} is compared "
                f"by a number of step {step}, because no validation ran since. Let both have the same rhythm, for "
                "example by saving after validations: leave every_n_train_steps and train_time_interval away.",
            )

    def _update_best_and_save(self, current: Tensor, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        evicted = (
            []
            if self.save_top_k == -1
            else self._worst_first()[: max(0, len(self.best_k_models) + 1 - self.save_top_k)]
        )
        path = self._get_metric_interpolated_filepath_name(monitor_candidates, trainer, evicted[0] if evicted else None)
        if current.isnan():
            self._warn_once(
                "nan",
                f"ModelCheckpoint: {self.monitor!r} is nan at epoch {self._epoch}, step {trainer.global_step}. Its "
                f"checkpoint {path!r} counts as the worst possible one ({self._worst.item()}) and is the first to be "
                "replaced.",
            )
            current = self._worst
        self.best_k_models = {p: value for p, value in self.best_k_models.items() if p not in evicted}
        self.best_k_models[path] = current
        self.current_score = current
        self._rank()
        self._evicted = [*self._evicted, *(old for old in evicted if old != path)]
        self._save_checkpoint(trainer, path)
        if self.verbose:
            place = self._worst_first()[::-1].index(path) + 1
            report.info(
                f"Epoch {self._epoch}, step {trainer.global_step}: {self.monitor!r} = {current.item():.5g}, saved as "
                f"number {place} to {path!r}."
            )

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        self._write_last(trainer, self.last_model_path, self._latest, as_link=self.save_last == "link")
