"""ModelCheckpoint: saves while training and keeps the best, the last, or periodic checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from lightlib import report
from lightlib.callbacks.checkpoint.arguments import check_arguments, check_keep_last, check_link, check_save_begin
from lightlib.callbacks.checkpoint.due import Due, warn_if_none_comes
from lightlib.callbacks.checkpoint.folder import (
    CheckpointFolder,
    absolute,
    all_ranks_can_save,
    check_writable,
    on_rank_zero,
)
from lightlib.callbacks.checkpoint.ledger import as_number, numbers_of, write_yaml
from lightlib.callbacks.checkpoint.named import NamedCheckpoints
from lightlib.callbacks.checkpoint.saves import Saves, notify_loggers, writes_in_background
from lightlib.callbacks.checkpoint.top_k import TopK
from lightlib.callbacks.direction import Direction
from lightlib.callbacks.monitored import final_at_epoch_end, validates
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import OURS
from lightlib.checkpoint.storage.mapping import storage_of
from lightlib.errors import CheckpointWriteError

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class ModelCheckpoint(NamedCheckpoints):
    """Saves checkpoints while training, and keeps the best ones by a logged metric.

    A save that is due happens after the validation at the same batch, so that the metric belongs to the saved weights.
    New files are complete before older ones are removed, and files of other runs are never touched. A run that is
    killed at any moment and resumed from its newest file ends with the files of an uninterrupted run.

    Args:
        dirpath: Folder of the checkpoints, local or remote, or a mapping for :func:`lightlib.checkpoint.storage_url`.
            Default: ``checkpoints`` in `trainer.log_dir`, or in `trainer.default_root_dir` when there is no logger.
        filename: Template of the names: metrics in braces, with a format if wanted: ``"{epoch:02d}-{val_loss:.2f}"``.
            ``{{`` and ``}}`` are braces of the name. Default: ``"{epoch}-{step}"``, where step counts optimizer steps.
            The extension is added.
        monitor: Metric by which checkpoints are compared. None: the latest one counts as the best.
        verbose: Print each save.
        save_last: True: also save ``last.ckpt``, whenever a save is due, at the end of every epoch (or after every
            validation, see `save_on_train_epoch_end`) and at the end of training, whatever the interval of the other
            saves. "link": make it a link to the file that was saved at that moment, if there is one.
        save_top_k: How many of the best checkpoints are kept; -1: all, 0: none. Without `monitor` only -1, 0 and 1.
        keep_last: How many of the newest are kept, without `monitor`. To keep the best as well, add a second callback.
        save_begin: The epoch, or with `every_n_train_steps` the step, of the first save, from which the interval
            counts; both count from 1. `save_last` does not wait for it. Default: 0, the end of the first interval.
        save_on_exception: Also save when an exception or Ctrl-C ends training.
        save_weights_only: Leave out everything needed only to resume: optimizers, schedules, callbacks.
        mode: "min" when less of the metric is better, "max" when more is. "auto": found from the metric's
            `higher_is_better` or a word in its name. Default: "min", with a warning if more is better by these.
        auto_insert_metric_name: Write ``epoch=02`` for ``{epoch:02d}``, and not ``02``.
        every_n_train_steps: Save every n optimizer steps.
        train_time_interval: Save when this much time has passed since the last save.
        every_n_epochs: Save every n epochs. Default: 1, unless one of the two above is given.
        save_on_train_epoch_end: True: save at the end of training epochs; False: after validations. Default: at the
            end of epochs if each has one validation at its end, or none; else after validations.
        enable_version_counter: Add ``-v1`` and so on to a name that is taken; when False, such files are overwritten.
        async_save: Training waits only while the state is copied; a thread then writes the copy. Two saves never
            overlap: the next one waits for this one, so at most one copy exists. A failure is raised at the end of the
            batch, the validation or the training in which it is noticed. `last` is a copy of the file before it.
        save_errors: "raise": a file that cannot be written ends training. "warn": a warning; training continues, and
            the next save is tried. In either case all earlier files stay.
        format: "file": one file. "directory": every process writes its shard. Default: the strategy's.

    Attributes:
        best_model_path: The best checkpoint so far, or an empty string.
        best_model_score: Its metric.
        last_model_path: The file of `save_last`, or an empty string.
        best_k_models: The kept files and their metrics. NaN is kept as the worst possible number.
        kth_best_model_path: The worst of them, which is removed next; `kth_value` is its metric.
        current_score: The metric of the latest comparison.

    Raises:
        MisconfigurationException: Arguments exclude each other, or a number is negative; when `fit` begins: another
            live run writes into the folder; while training: `monitor` was not logged.
        CheckpointWriteError: While training: a file could not be written. All earlier files are still there.

    Example:
        >>> callback = ModelCheckpoint("runs", "{epoch:02d}-{val_loss:.2f}", monitor="val_loss", save_top_k=3)
        >>> os.path.basename(callback.format_checkpoint_name({"epoch": 3, "val_loss": 0.123}))
        'epoch=03-val_loss=0.12.ckpt'
    """

    _candidates: dict[str, Tensor]

    def __init__(
        self,
        dirpath: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: Literal["min", "max", "auto"] | None = None,
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
        *,
        keep_last: int | None = None,
        save_begin: int = 0,
        async_save: bool = False,
        save_errors: Literal["raise", "warn"] = "raise",
        format: Literal["file", "directory"] | None = None,  # noqa: A002  as in Trainer.save_checkpoint
    ) -> None:
        super().__init__()
        self._storage = None
        if isinstance(dirpath, Mapping):  # kept, so that a process that gets a copy has the options of the store
            self._storage = storage_of(dirpath)
            dirpath = self._storage.address
        self.dirpath = absolute(dirpath)
        self.filename = filename
        self.monitor = monitor
        self.verbose = verbose
        self.save_last = save_last
        self.save_top_k = save_top_k
        self.save_on_exception = save_on_exception
        self.save_weights_only = save_weights_only
        self._direction = Direction("ModelCheckpoint", monitor, mode)
        self.mode = self._direction.first_mode
        self.auto_insert_metric_name = auto_insert_metric_name
        self.every_n_train_steps = every_n_train_steps or 0
        self.train_time_interval = train_time_interval
        no_trigger = every_n_train_steps is None and train_time_interval is None and every_n_epochs is None
        self.every_n_epochs = 1 if no_trigger else every_n_epochs or 0
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.enable_version_counter = enable_version_counter
        self.keep_last = keep_last
        self.save_begin = save_begin
        self.async_save = async_save
        self.save_errors = save_errors
        self.format = format
        names = ("every_n_train_steps", "train_time_interval", "every_n_epochs")
        triggers = {name: getattr(self, name) for name in names}
        check_arguments(monitor, save_top_k, triggers, filename, save_last, async_save, save_errors, format)
        check_keep_last(keep_last, monitor, save_top_k)
        check_save_begin(save_begin, train_time_interval)
        self.shared_out = False  # whether a CheckpointGC removes files as well
        self._saves = Saves(type(self).__name__, TopK(self.save_top_k, self.mode).worst)
        self._folder = CheckpointFolder()
        self._due = Due()
        self._once = report.Once()
        self._restored: dict[str, Any] | None = None  # between `load_state_dict` and the start of training
        self._last_global_step_saved, self._last_checkpoint_saved = 0, ""
        self._begin(batch=0, step=0)

    def __repr__(self) -> str:
        return report.described(self, mode=self._direction.given)

    @property
    def state_key(self) -> str:
        """Several of these can be used together when they differ in metric, mode or rhythm."""
        return self._generate_state_key(
            monitor=self.monitor,
            mode=self._direction.of_state_key,
            every_n_train_steps=self.every_n_train_steps,
            every_n_epochs=self.every_n_epochs,
            train_time_interval=self.train_time_interval,
        )

    # when a save is due

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Choose the folder when `fit` begins, check that it is writable, and claim it for this run."""
        if stage != "fit":
            return
        self._follow(self._direction.settle(self.mode, trainer, pl_module))
        self.dirpath = trainer.strategy.broadcast(self.folder(trainer))
        check_link(self.save_last, self.dirpath)
        check_writable(trainer, self.dirpath, type(self).__name__)
        if not trainer.fast_dev_run:
            outlived = self._folder.enter(trainer, self.dirpath, self.FILE_EXTENSION, self.names.depth)
            self._ledger.record(outlived=outlived)
            in_background = writes_in_background(trainer, self.async_save, self.format)
            self._saves.start(in_background, raises=self.save_errors == "raise")

    def _follow(self, mode: str) -> None:
        if mode != self.mode:
            self.mode = mode
            self._ledger.rank(self._top_k)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Note where the run starts, as nothing is saved before anything was trained; finish a killed run's save."""
        self._begin(trainer.progress.batch, trainer.global_step)
        restored, self._restored = self._restored, None
        if trainer.fast_dev_run:
            return
        if restored and trainer.continues:
            self._epoch, self._candidates = restored["epoch"], dict(restored["candidates"])
            self._ledger.take_pending_save(restored, absolute(trainer.ckpt_path))
            self._due.restore(trainer.progress.batch, restored)
        elif restored is not None:
            self._folder.branch_off(self._ledger.kept - {""})
            self.last_model_path = ""
        self._saves.agree(trainer)
        if self.every_n_epochs and self.save_top_k and not self._should_save_on_train_epoch_end(trainer):
            warn_if_none_comes(trainer, bool(self.save_last))
        if self._pending:
            trainer.saver.request(partial(self._save_due, trainer))
        else:
            self._delete_evicted(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._saves.in_flight:
            self._saves.look(trainer)
        by_batch = self.every_n_train_steps or self.train_time_interval is not None
        if not by_batch:
            return
        due = self._due.after_batch(trainer, self.every_n_train_steps, self.train_time_interval, self.save_begin)
        if due and not self._should_skip_saving_checkpoint(trainer):
            self._request(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.state.fn != "fit":
            return
        self._follow(self._direction.look(self.mode, trainer))
        if trainer.sanity_checking:
            return
        self._saves.look(trainer)
        compared = None if self.every_n_epochs else self.monitor
        value = None if compared is None else trainer.callback_metrics.get(compared)
        self._due.note_validation(trainer.global_step, as_number(value))
        if not self._should_save_on_train_epoch_end(trainer):
            self._request_for_epoch(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._saves.look(trainer)
        self._due.note_epoch_end()
        if self._should_save_on_train_epoch_end(trainer):
            self._request_for_epoch(trainer)
        elif self.save_last and not validates(trainer):
            self._request(trainer, "last alone")

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Save the last checkpoint if no validation came after the last steps, and wait for the background save."""
        if self.save_last:
            position = trainer.progress
            self._request(trainer, "last alone", position.epoch - (not position.epoch_batch))
        self._saves.settle(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Remove the stale checkpoints of earlier attempts, and files that were saved because one was ended."""
        if not trainer.fast_dev_run and self.dirpath is not None:
            stale = [path for path in self._folder.end() if self.names.may_be_ours(path)]
            self._saves.clear_up(trainer, self._folder, stale, partial(self._remove_checkpoint, trainer))

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Save the run as it is if `save_on_exception`; a failure is a warning and does not hide `exception`."""
        if trainer.state.fn != "fit":
            return
        self._saves.stop()
        if not self._should_save_on_exception(trainer):
            return
        if self.dirpath is None or not all_ranks_can_save(trainer, exception):
            return
        self._epoch = trainer.current_epoch
        try:
            self._save_as_it_is(trainer)
        except Exception as error:  # noqa: BLE001 - the exception that ended training must stay visible
            report.warn(f"ModelCheckpoint could not save after {type(exception).__name__}: {error}")
        else:
            report.info(f"{type(exception).__name__}: the run was saved to {self._latest!r}.")

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit":
            self._saves.stop()
            self._folder.leave()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Wait for this callback's background save, so that two saves never overlap."""
        if self._saves.writer is not None:
            self._saves.writer.join()

    def on_checkpoint_written(self, trainer: Trainer, pl_module: Module, path: str) -> None:
        """Note that a file, whichever object saved it, is of the present."""
        self._folder.note_written(path)

    def _begin(self, batch: int, step: int) -> None:
        """Start at a position from which on nothing has been trained yet."""
        self._pending, self._saved_at_batch = "", batch
        self._epoch = 0  # in which the pending save became due
        self._candidates = {}  # the metrics of the pending save
        self._asked_of: Trainer | None = None  # while a save is pending
        self._due.begin(batch, step)

    def _should_save_on_train_epoch_end(self, trainer: Trainer) -> bool:
        chosen = self.save_on_train_epoch_end
        return final_at_epoch_end(trainer) if chosen is None else chosen

    def _should_skip_saving_checkpoint(self, trainer: Trainer) -> bool:
        """Whether no file is due: nothing is trained, or nothing since the last file. A subclass may skip more."""
        skips = trainer.fast_dev_run or trainer.state.fn != "fit" or trainer.sanity_checking
        return bool(skips or trainer.progress.batch == self._saved_at_batch)

    def _should_save_on_exception(self, trainer: Trainer) -> bool:
        return self.save_on_exception and not ModelCheckpoint._should_skip_saving_checkpoint(self, trainer)

    def _request_for_epoch(self, trainer: Trainer) -> None:
        if self._should_skip_saving_checkpoint(trainer):
            return
        since = trainer.current_epoch + 1 - self.save_begin
        if self.every_n_epochs and since >= 0 and since % self.every_n_epochs == 0:
            self._request(trainer)
        elif self.save_last:
            self._request(trainer, "last alone")

    def _request(self, trainer: Trainer, what: str = "all", epoch: int | None = None) -> None:
        nothing_new = trainer.progress.batch == self._saved_at_batch
        if self._pending in ("all", "last") or trainer.fast_dev_run or nothing_new:
            return
        self._follow(self._direction.look(self.mode, trainer))
        waits, self._pending, self._asked_of = bool(self._pending), what, trainer
        # at the save point the epoch may have been counted
        self._epoch = trainer.current_epoch if epoch is None else epoch
        if not waits:
            trainer.saver.request(partial(self._save_due, trainer))

    # the save

    def _save_due(self, trainer: Trainer) -> None:
        if not self._pending:
            return  # a hook of a subclass has saved meanwhile
        try:
            if self._pending == "last":
                self._finish_save(trainer)
            else:
                self._save_all(trainer, ranked=self._pending == "all")
        except CheckpointWriteError as error:
            if self.save_errors == "raise":
                raise
            self._saves.warn(error)

    def _save_all(self, trainer: Trainer, ranked: bool = True) -> None:
        def ranked_file(candidates: dict[str, Tensor]) -> None:
            if ranked:
                self._save_topk_checkpoint(trainer, candidates)

        self._save(trainer, self._monitor_candidates(trainer), ranked_file, bool(self.save_last))

    def _save(
        self,
        trainer: Trainer,
        candidates: dict[str, Tensor],
        ranked_file: Callable[[dict[str, Tensor]], None],
        with_last: bool,
    ) -> None:
        self._saves.settle(trainer)
        self._saves.agree(trainer)
        # A metric of a step differs between ranks: that of rank zero counts, so that all decide the same.
        candidates = trainer.strategy.broadcast(candidates)

        def last_path() -> str | None:
            self._candidates = candidates
            return self._last_path(trainer, candidates) if with_last else None

        with self._saving(trainer):
            last_file = partial(self._save_last_checkpoint, trainer, candidates)
            self._saves.save(trainer.progress.batch, last_path, partial(ranked_file, candidates), last_file)

    def _finish_save(self, trainer: Trainer) -> None:
        """Write the second half of a save, after a resume from the file that the first half wrote."""

        def last_file() -> None:
            self._latest = self._latest if self._latest and self.file_exists(self._latest, trainer) else ""
            self._save_last_checkpoint(trainer, self._candidates)

        with self._saving(trainer):
            self._saves.finish(last_file)

    @contextmanager
    def _saving(self, trainer: Trainer) -> Iterator[None]:
        try:
            yield
        finally:
            self._candidates, self._asked_of = {}, None
        self._delete_evicted(trainer)

    def _save_as_it_is(self, trainer: Trainer) -> None:
        """Save an additional file. A run that is resumed from it removes it after its next save."""
        candidates = trainer.strategy.broadcast(self._monitor_candidates(trainer))
        path = self._get_metric_interpolated_filepath_name(candidates, trainer)
        last_path = self._last_path(trainer, candidates) if self.save_last else None
        self._saves.save_extra(trainer.progress.batch, path, last_path, partial(self._save_checkpoint, trainer))
        self._delete_evicted(trainer)

    # which files

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Save a file that is among the best. A hook of a subclass that calls this saves at once."""
        if not self._saves.are_open:
            self._save(trainer, monitor_candidates, partial(self._save_ranked, trainer), with_last=False)
        else:
            self._save_ranked(trainer, monitor_candidates)

    def _save_ranked(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.save_top_k == 0:
            return
        if self.monitor is None:
            self._save_none_monitor_checkpoint(trainer, monitor_candidates)
        else:
            self._save_monitor_checkpoint(trainer, monitor_candidates)

    def _save_none_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        replaced = self.best_model_path if self.save_top_k == 1 else None
        if self.keep_last is not None:
            replaced = self._ledger.leaves_next(self.keep_last)
        path = self._get_metric_interpolated_filepath_name(monitor_candidates, trainer, replaced)
        if self.keep_last is not None:
            self._ledger.take_newest(path, replaced)
        self.best_model_path = path
        if replaced and replaced != path:
            self._evicted = [*self._evicted, replaced]
        self._save_checkpoint(trainer, path)

    def _save_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        assert self.monitor is not None
        current = self._due.current_metric(trainer, self.monitor, monitor_candidates, self._once)
        if current is None:
            return
        if self.check_monitor_top_k(trainer, current):
            self._update_best_and_save(current, trainer, monitor_candidates)
        else:
            self.current_score = current
            if self.verbose:
                report.info(
                    f"Epoch {self._epoch}, step {trainer.global_step}: {self.monitor!r} = {current.item():.5g} is not "
                    f"among the best {self.save_top_k}."
                )

    def _update_best_and_save(self, current: Tensor, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        top = self._top_k
        evicted = top.evicted
        path = self._get_metric_interpolated_filepath_name(monitor_candidates, trainer, evicted[0] if evicted else None)
        if current.isnan():
            current = top.worst
            self._once.warn(
                "nan",
                f"ModelCheckpoint: {self.monitor!r} is nan at epoch {self._epoch}, step {trainer.global_step}. Its "
                f"checkpoint {path!r} counts as the worst possible one ({current.item()}) and is the first to be "
                "replaced.",
                report.PossibleUserWarning,
            )
        self.current_score = current
        top = top.add(path, current)
        self._ledger.rank(top)
        self._evicted = [*self._evicted, *(old for old in evicted if old != path)]
        self._save_checkpoint(trainer, path)
        if self.verbose:
            report.info(
                f"Epoch {self._epoch}, step {trainer.global_step}: {self.monitor!r} = {current.item():.5g}, saved as "
                f"number {top.ranked.index(path) + 1} to {path!r}."
            )

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Write the last checkpoint: a link to, or a copy of, the file that this save has written, or a new file."""
        if not self._saves.are_open:  # called by a hook of a subclass
            if self.save_last:
                latest = self._latest if self._saved_at_batch == trainer.progress.batch else ""
                self._save(trainer, monitor_candidates, lambda _: self._saves.ledger.record(latest=latest), True)
            return
        path, saved, as_link = self.last_model_path, self._latest, self.save_last == "link"
        if trainer.strategy.extension.store is not None:  # what it has written need not be a file
            self._save_checkpoint(trainer, path)
        elif saved and self._saves.writer is not None:
            make = filesystem.link if as_link else filesystem.copy
            self._take_name(trainer, path)
            self._saves.in_order(partial(make, saved, path) if trainer.is_global_zero else lambda: None)
        elif saved and as_link:
            self._link_checkpoint(trainer, saved, path)
            self._take_name(trainer, path)
        else:
            self._save_checkpoint(trainer, path)

    @property
    def _top_k(self) -> TopK:
        return TopK(self.save_top_k, self.mode, self.best_k_models)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether a checkpoint with the metric `current` belongs to the best; all ranks get the same answer."""
        top = self._top_k
        if current is None or top.k == 0 or top.has_room:
            return current is not None and top.k != 0
        return bool(trainer.strategy.reduce_boolean_decision(top.admits(current)))

    def forget(self, path: str) -> None:
        """Take a file that another object removes from the list of the best."""
        self._ledger.forget(path, self._top_k)

    def share_files(self) -> None:
        """Expect that another object removes files as well."""
        self.shared_out = True

    def _monitor_candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        """Return the metrics for names and decisions; those of a pending save until the run has logged them again."""
        epoch = self._epoch if self._pending else trainer.current_epoch
        return {**self._candidates, **numbers_of(trainer.callback_metrics, epoch, trainer.global_step)}

    # files

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Write one file and notify the loggers. Override it to write something else, or more."""
        options: dict[str, Any] = {} if self.format is None else {"format": self.format}
        if self._saves.writer is not None:
            options["writer"] = self._saves.writer
        self._ledger.begin_file(filepath, resumable=not self.save_weights_only)
        trainer.save_checkpoint(filepath, self.save_weights_only, **options)
        self._last_global_step_saved, self._last_checkpoint_saved = trainer.global_step, filepath
        self._take_name(trainer, filepath)
        self._saves.in_order(lambda: None, then=partial(notify_loggers, trainer, self, self._once))

    def _take_name(self, trainer: Trainer, path: str) -> None:
        """Let all callbacks treat `path` as a file of the present, although it may not be complete yet."""
        self._saves.take_name(path)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback._folder.note_written(path)  # noqa: SLF001  another instance of this class

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Remove one file. Override it to keep or to move it."""
        store = trainer.strategy.extension.store
        if trainer.is_global_zero:
            (filesystem.remove if store is None else store.remove)(filepath)

    @staticmethod
    def _link_checkpoint(trainer: Trainer, filepath: str, linkpath: str) -> None:
        """Make `linkpath` a link to `filepath`."""
        on_rank_zero(trainer, partial(filesystem.link, filepath, linkpath), CheckpointWriteError)

    def _delete_evicted(self, trainer: Trainer) -> None:
        self._saves.remove_evicted(trainer, self._folder, partial(self._remove_checkpoint, trainer))

    # state

    def state_dict(self) -> dict[str, Any]:
        """Return the files saved so far under Lightning's names, and under "lightlib" where a killed run continues."""
        ledger, candidates = self._saves.settled_ledger, self._candidates
        if ledger.pending in ("all", "last alone") and self._asked_of is not None:
            candidates = self._monitor_candidates(self._asked_of)
        position = self._due.state(timed=self.train_time_interval is not None)
        pending = ledger.pending_save(self._epoch, candidates)
        return {
            **ledger.state(self.monitor, self.dirpath),
            OURS: {**pending, **position, **self._direction.state(self.mode), **(self._restored or {})},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the files of an earlier run if they still exist and are in the same folder."""
        self._follow((state_dict.get(OURS) or {}).get("mode", self.mode))
        comes_again = any(self.names.may_be_ours(path) for path in self._folder.future)
        ledger, owner = self._ledger, type(self).__name__
        state = ledger.load(state_dict, self.dirpath, owner, self._top_k, comes_again, self.shared_out)
        self._restored = self._restored if state is None else dict(state.get(OURS) or {})

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the kept files and their metrics as YAML. Default: ``best_k_models.yaml`` in the folder."""
        write_yaml(filepath or os.path.join(self.dirpath or "", "best_k_models.yaml"), self.best_k_models)
