"""ModelCheckpoint: saves while training and keeps the best, the last, or periodic checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from lightlib import report
from lightlib.callbacks.checkpoint.checkpoint_arguments import check_arguments, check_place, triggers_of
from lightlib.callbacks.checkpoint.due import Due, stepped_since, warn_if_none_comes
from lightlib.callbacks.checkpoint.files import CheckpointFiles, as_number, write_yaml
from lightlib.callbacks.checkpoint.folder import (
    CheckpointFolder,
    absolute,
    all_ranks_can_save,
    check_writable,
    on_rank_zero,
)
from lightlib.callbacks.checkpoint.named import NamedCheckpoints, NextFile
from lightlib.callbacks.checkpoint.top_k import TopK
from lightlib.callbacks.checkpoint.transactions import SaveTransactions, notify_loggers, writes_in_background
from lightlib.callbacks.direction import Direction
from lightlib.callbacks.monitored import final_at_epoch_end, new_metrics, validates
from lightlib.checkpoint.frozen import FrozenWeights
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
        save_begin: The first epoch or step to save, from 1 on; the interval counts from it, and `save_last` ignores it.
        save_on_exception: Also save when an exception or Ctrl-C ends training.
        save_weights_only: Leave out everything needed only to resume: optimizers, schedules, callbacks.
        mode: "min" when less of the metric is better, "max" when more is. "auto": found from the metric's
            `higher_is_better` or a word in its name. Default: "min", with a warning if more is better by these.
        auto_insert_metric_name: Write ``epoch=02`` for ``{epoch:02d}``, and not ``02``.
        every_n_train_steps: Save every n optimizer steps.
        train_time_interval: Save when this much time has passed since the last save.
        every_n_epochs: Save every n epochs. Default: 1, unless another interval is given.
        save_on_train_epoch_end: True: save at the end of training epochs; False: after validations. Default: at the
            end of epochs if each has one validation at its end, or none; else after validations.
        enable_version_counter: Add ``-v1`` and so on to a name that is taken; when False, such files are overwritten.
        async_save: Training waits only while the state is copied; a thread then writes the copy, and the next save
            waits for it. A failure is raised at the end of the batch, the validation or the training that notices it.
        save_errors: "raise": a file that cannot be written ends training. "warn": a warning; training continues, and
            the next save is tried. In either case all earlier files stay.
        format: "file": one file. "directory": every process writes its shard. Default: the strategy's.
        save: "trainable": leave out frozen weights that do not change; readers take them, by their checksums, from the
            module as it is built, or from `frozen_source`, a checkpoint or safetensors file. Default: "all".
        every: An interval as text, in place of the three above: "2ep", "500st", "100ba", "1e6sp", "1e9tok", "2h".

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
        save: Literal["all", "trainable"] = "all",
        frozen_source: str | os.PathLike[str] | None = None,
        every: str | None = None,
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
        triggers = triggers_of(every_n_train_steps, train_time_interval, every_n_epochs, every)
        self.every_n_train_steps, self.train_time_interval, self.every_n_epochs, self.every = triggers
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.enable_version_counter = enable_version_counter
        self.keep_last = keep_last
        self.save_begin = save_begin
        self.async_save = async_save
        self.save_errors = save_errors
        self.format = format
        self.save = save
        self.frozen_source = frozen_source
        check_arguments(vars(self))
        self._files = CheckpointFiles(TopK(self.save_top_k, self.mode).worst)
        self._transactions = SaveTransactions(type(self).__name__, self._files)
        self._folder = CheckpointFolder()
        self._due = Due()
        self._once = report.Once()
        self.frozen_weights = FrozenWeights(absolute(frozen_source), save == "trainable")
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
            **({"every": str(self.every)} if self.every else {}),
        )

    # when a save is due

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Choose the folder when `fit` begins, check that it is writable, and claim it for this run."""
        if stage != "fit":
            return
        self._take_mode(self._direction.settle(self.mode, trainer, pl_module))
        self.dirpath = trainer.strategy.broadcast(self.folder(trainer))
        check_place(self.save_last, self.dirpath, self.save, trainer)
        check_writable(trainer, self.dirpath, type(self).__name__)
        if not trainer.fast_dev_run:
            outlived = self._folder.enter(trainer, self.dirpath, self.FILE_EXTENSION, self.names.depth)
            self._files.record(outlived=outlived)
            in_background = writes_in_background(trainer, self.async_save, self.format)
            self._transactions.start(in_background, raises=self.save_errors == "raise")

    def _take_mode(self, mode: str) -> None:
        self.mode = mode
        self._files.rank(self._top_k)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Note where the run starts, as nothing is saved before anything was trained; finish a killed run's save."""
        self._begin(trainer.progress.batch, trainer.global_step)
        restored, self._restored = self._restored, None
        if trainer.fast_dev_run:
            return
        if self.save == "trainable":
            self.frozen_weights.begin(trainer, pl_module, type(self).__name__)
        if restored and trainer.continues:
            self._epoch, self._candidates = restored["epoch"], dict(restored["candidates"])
            self._files.take_pending_save(restored, absolute(trainer.ckpt_path))
            self._due.restore(trainer.progress.batch, restored)
        elif restored is not None:
            self._folder.branch_off(self._files.kept - {""})
            self._files.record(last_model_path="")
        self._transactions.agree(trainer)
        if self.every_n_epochs and self.save_top_k and not self._should_save_on_train_epoch_end(trainer):
            warn_if_none_comes(trainer, bool(self.save_last))
        if self._files.pending:
            self._asked_of: Trainer | None = trainer
            trainer.saver.request(partial(self._save_due, trainer), of_validation=self._files.pending == "last")
        else:
            self._transactions.remove_evicted(trainer, self._folder, self._remove_checkpoint)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._transactions.in_flight:
            self._transactions.look(trainer)
        interval = self.every or self.train_time_interval
        if not self.every_n_train_steps and interval is None:
            return
        due = self._due.after_batch(trainer, self.every_n_train_steps, interval, self.save_begin)
        if due and not self._should_skip_saving_checkpoint(trainer):
            self._request(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.state.fn != "fit":
            return
        if (mode := self._direction.look(self.mode, trainer)) != self.mode:
            self._take_mode(mode)
        if trainer.sanity_checking:
            return
        if self._transactions.in_flight:
            self._transactions.look(trainer)
        compared = None if self.every_n_epochs else self.monitor
        value = None if compared is None else trainer.callback_metrics.get(compared)
        self._due.note_validation(trainer.global_step, as_number(value))
        if not self._should_save_on_train_epoch_end(trainer):
            self._request_for_epoch(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._transactions.in_flight:
            self._transactions.look(trainer)
        self._due.note_epoch_end()
        if self._should_save_on_train_epoch_end(trainer):
            self._request_for_epoch(trainer)
        elif self.save_last and not validates(trainer):
            self._request(trainer, "last alone")

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Save the last checkpoint if no validation came after the last steps, and wait for the background save."""
        if self.save_last:
            self._request(trainer, "last alone", trainer.progress.epoch - (not trainer.progress.epoch_batch))
        self._transactions.settle(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Remove the stale checkpoints of earlier attempts, and files that were saved because one was ended."""
        if not trainer.fast_dev_run and self.dirpath is not None:
            stale = [path for path in self._folder.end() if self.names.may_be_of_callback(path)]
            self._transactions.clear_up(trainer, self._folder, stale, self._remove_checkpoint)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Save the run as it is if `save_on_exception`; a failure is a warning and does not hide `exception`."""
        if trainer.state.fn != "fit":
            return
        self._transactions.stop()
        saves = self.dirpath is not None and self._should_save_on_exception(trainer)
        if not saves or not all_ranks_can_save(trainer, exception):
            return
        self._epoch = trainer.current_epoch
        try:
            self._save_as_it_is(trainer)
        except Exception as error:  # noqa: BLE001 - the exception that ended training must stay visible
            report.warn(f"ModelCheckpoint could not save after {type(exception).__name__}: {error}")
        else:
            report.info(f"{type(exception).__name__}: the run was saved to {self._files.latest!r}.")

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit":
            self._transactions.stop()
            self._folder.leave()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Wait for this callback's background save, so that two saves never overlap; leave out frozen weights."""
        if self._transactions.writer is not None:
            self._transactions.writer.join()
        self.frozen_weights.leave_out(trainer, pl_module, checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        self.frozen_weights.note_loaded(checkpoint)

    def on_checkpoint_written(self, trainer: Trainer, pl_module: Module, path: str) -> None:
        """Note that a file, whichever object saved it, is of the present."""
        self._folder.future.discard(path)

    def _begin(self, batch: int, step: int) -> None:
        """Start at a position from which on nothing has been trained yet."""
        self._files.record(pending="", saved_at_batch=batch)
        self._epoch = 0  # in which the pending save became due
        self._candidates = {}  # the metrics of the pending save
        self._asked_of = None  # while a save is pending
        self._due.begin(batch, step)

    def _should_save_on_train_epoch_end(self, trainer: Trainer) -> bool:
        chosen = self.save_on_train_epoch_end
        return final_at_epoch_end(trainer) if chosen is None else chosen

    def _should_skip_saving_checkpoint(self, trainer: Trainer) -> bool:
        """Whether no file is due: nothing is trained, or nothing since the last file. A subclass may skip more."""
        skips = trainer.fast_dev_run or trainer.state.fn != "fit" or trainer.sanity_checking
        return bool(skips or trainer.progress.batch == self._files.saved_at_batch)

    def _should_save_on_exception(self, trainer: Trainer) -> bool:
        return self.save_on_exception and not ModelCheckpoint._should_skip_saving_checkpoint(self, trainer)

    def _request_for_epoch(self, trainer: Trainer) -> None:
        if self._should_skip_saving_checkpoint(trainer) or not stepped_since(trainer, self._files.saved_at_batch):
            return
        since = trainer.current_epoch + 1 - self.save_begin
        if self.every_n_epochs and since >= 0 and since % self.every_n_epochs == 0:
            self._request(trainer)
        elif self.save_last:
            self._request(trainer, "last alone")

    def _request(self, trainer: Trainer, what: str = "all", epoch: int | None = None) -> None:
        pending, nothing_new = self._files.pending, trainer.progress.batch == self._files.saved_at_batch
        validated = trainer.validating
        if pending == "last" or (pending == "all" and not validated) or trainer.fast_dev_run or nothing_new:
            return
        if (mode := self._direction.look(self.mode, trainer)) != self.mode:
            self._take_mode(mode)
        self._files.record(pending="all" if pending == "all" else what)
        self._asked_of = trainer
        # at the save point the epoch may have been counted
        self._epoch = trainer.current_epoch if epoch is None else epoch
        if not pending or validated:
            trainer.saver.request(partial(self._save_due, trainer), of_validation=validated)

    # the save

    def _save_due(self, trainer: Trainer) -> None:
        pending = self._files.pending
        if not pending:
            return  # a hook of a subclass has saved meanwhile
        try:
            if pending == "last":
                self._finish_save(trainer)
            else:
                save = self._save_topk_checkpoint if pending == "all" else None
                self._save(trainer, self._monitor_candidates(trainer), save, bool(self.save_last))
        except CheckpointWriteError as error:
            if self.save_errors == "raise":
                raise
            self._transactions.warn(error)

    def _save(
        self,
        trainer: Trainer,
        candidates: dict[str, Tensor],
        save_ranked: Callable[[Trainer, dict[str, Tensor]], None] | None,
        with_last: bool,
    ) -> None:
        """Write the files of one save: by `save_ranked`, unless it is None, that which may be among the best."""
        if self._transactions.in_flight:
            self._transactions.settle(trainer)
        next_file: NextFile = self._next_file if save_ranked is not None else lambda _: (False, None)
        try:
            self._decision = decision = self._agree(trainer, candidates, next_file, with_last)
            self._candidates = candidates = decision.candidates
            with self._transactions.transaction() as before:
                self._files.begin_save(trainer.progress.batch, decision.last_path)
                if save_ranked is not None:
                    save_ranked(trainer, candidates)
                if with_last:
                    self._transactions.keep_first_file(before)
                    self._save_last_checkpoint(trainer, candidates)
        except BaseException:
            self._files.record(pending="")
            raise
        finally:
            self._decision, self._candidates, self._asked_of = None, {}, None
        self._transactions.remove_evicted(trainer, self._folder, self._remove_checkpoint)

    def _finish_save(self, trainer: Trainer) -> None:
        """Write the second half of a save, after a resume from the file that the first half wrote."""
        latest = self._files.latest
        try:
            with self._transactions.transaction():
                there = bool(latest) and self.file_exists(latest, trainer)
                self._files.record(pending="", latest=latest if there else "")
                self._save_last_checkpoint(trainer, self._candidates)
        finally:
            self._candidates, self._asked_of = {}, None
        self._transactions.remove_evicted(trainer, self._folder, self._remove_checkpoint)

    def _save_as_it_is(self, trainer: Trainer) -> None:
        """Save an additional file. A run that is resumed from it removes it after its next save."""
        self._decision = decision = self._agree(
            trainer, self._monitor_candidates(trainer), lambda _: (True, None), bool(self.save_last)
        )
        try:
            path = self._get_metric_interpolated_filepath_name(decision.candidates, trainer)
            save = partial(self._save_checkpoint, trainer)
            self._transactions.save_extra(trainer.progress.batch, path, decision.last_path, save)
        finally:
            self._decision = None
        self._transactions.remove_evicted(trainer, self._folder, self._remove_checkpoint)

    # which files

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Save a file that is among the best. A hook of a subclass that calls this saves at once."""
        if not self._transactions.is_open:
            save = partial(ModelCheckpoint._save_topk_checkpoint, self)
            self._save(trainer, monitor_candidates, save, with_last=False)
        elif self.save_top_k == 0:
            return
        elif self.monitor is None:
            self._save_none_monitor_checkpoint(trainer, monitor_candidates)
        else:
            self._save_monitor_checkpoint(trainer, monitor_candidates)

    def _next_file(self, candidates: dict[str, Tensor]) -> tuple[bool, str | None]:
        """Whether a file with these metrics is to be saved, and the file that it replaces."""
        if self.monitor is not None:
            current, top = candidates.get(self.monitor), self._top_k
            return current is not None and top.admits(current), next(iter(top.evicted), None)
        if self.keep_last is not None:
            return True, self._files.oldest_of(self.keep_last)
        return self.save_top_k != 0, self._files.best_model_path if self.save_top_k == 1 else None

    def _save_none_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        files = self._files
        decision = self._decision or self._agree(trainer, monitor_candidates, self._next_file, with_last=False)
        replaced = decision.replaced
        path = self._get_metric_interpolated_filepath_name(monitor_candidates, trainer, replaced)
        if self.keep_last is not None:
            files.add_newest(path, replaced)
        files.record(
            best_model_path=path, evicted=[*files.evicted, *([replaced] if replaced and replaced != path else [])]
        )
        self._save_checkpoint(trainer, path)

    def _save_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        assert self.monitor is not None
        current = self._due.current_metric(trainer, self.monitor, monitor_candidates, self._once)
        if current is None:
            return
        if self.check_monitor_top_k(trainer, current):
            self._update_best_and_save(current, trainer, monitor_candidates)
        else:
            self._files.record(current_score=current)
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
        top = top.add(path, current)
        self._files.record(current_score=current, evicted=[*self._files.evicted, *filter(path.__ne__, evicted)])
        self._files.rank(top)
        self._save_checkpoint(trainer, path)
        if self.verbose:
            report.info(
                f"Epoch {self._epoch}, step {trainer.global_step}: {self.monitor!r} = {current.item():.5g}, saved as "
                f"number {top.ranked.index(path) + 1} to {path!r}."
            )

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Write the last checkpoint: a link to, or a copy of, the file that this save has written, or a new file."""
        files, transactions = self._files, self._transactions
        if not transactions.is_open:  # called by a hook of a subclass
            if self.save_last:
                latest = files.latest if files.saved_at_batch == trainer.progress.batch else ""
                self._save(trainer, monitor_candidates, lambda *_: files.record(latest=latest), True)
            return
        path, saved, as_link = files.last_model_path, files.latest, self.save_last == "link"
        if trainer.strategy.extension.store is not None:  # what it has written need not be a file
            self._save_checkpoint(trainer, path)
        elif saved and transactions.writer is not None:
            make = filesystem.link if as_link else filesystem.copy
            self._take_name(trainer, path)
            transactions.in_order(partial(make, saved, path) if trainer.is_global_zero else lambda: None)
        elif saved and as_link:
            self._link_checkpoint(trainer, saved, path)
            self._take_name(trainer, path)
        else:
            self._save_checkpoint(trainer, path)

    @property
    def _top_k(self) -> TopK:
        return TopK(self.save_top_k, self.mode, self._files.best_k_models)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether a checkpoint with the metric `current` belongs to the best; all ranks get the same answer."""
        decision = self._decision
        if current is None or self.save_top_k == 0:
            return False
        if decision is not None and current is decision.candidates.get(self.monitor or ""):
            return bool(decision.path)
        return bool(trainer.strategy.reduce_boolean_decision(self._top_k.admits(current)))

    def forget(self, path: str) -> None:
        """Take a file that another object removes from the list of the best."""
        self._files.forget(path, self._top_k)

    def _monitor_candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        """Return the metrics for names and decisions; those of a pending save until the run has logged them again."""
        epoch = self._epoch if self._files.pending else trainer.current_epoch
        candidates = dict(self._candidates)
        for name, value in new_metrics(trainer).items():
            if (number := as_number(value)) is not None:
                candidates[name] = number
        return {**candidates, "epoch": torch.tensor(epoch), "step": torch.tensor(trainer.global_step)}

    # files

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Write one file and notify the loggers. Override it to write something else, or more."""
        options: dict[str, Any] = {} if self.format is None else {"format": self.format}
        if self._transactions.writer is not None:
            options["writer"] = self._transactions.writer
        self._files.begin_file(filepath, resumable=not self.save_weights_only)
        with self.frozen_weights.left_out():
            trainer.save_checkpoint(filepath, self.save_weights_only, **options)
        self._last_global_step_saved, self._last_checkpoint_saved = trainer.global_step, filepath
        self._take_name(trainer, filepath)
        if trainer.loggers:
            self._transactions.in_order(lambda: None, then=partial(notify_loggers, trainer, self, self._once))

    def _take_name(self, trainer: Trainer, path: str) -> None:
        """Let all callbacks treat `path` as a file of the present, although it may not be complete yet."""
        if self._transactions.writer is not None:
            self._transactions.writing.add(path)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback._folder.future.discard(path)  # noqa: SLF001  another instance of this class

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Remove one file. Override it to keep or to move it."""
        store = trainer.strategy.extension.store
        if trainer.is_global_zero:
            (filesystem.remove if store is None else store.remove)(filepath)

    @staticmethod
    def _link_checkpoint(trainer: Trainer, filepath: str, linkpath: str) -> None:
        """Make `linkpath` a link to `filepath`."""
        on_rank_zero(trainer, partial(filesystem.link, filepath, linkpath), CheckpointWriteError)

    # state

    def state_dict(self) -> dict[str, Any]:
        """Return the files saved so far under Lightning's names, and under "lightlib" where a killed run continues."""
        files = self._files if self._transactions.writer is None else self._transactions.settled_files()
        candidates = self._candidates
        if files.pending in ("all", "last alone") and self._asked_of is not None:
            candidates = self._monitor_candidates(self._asked_of)
        state = files.state(self.monitor, self.dirpath, self._epoch, candidates)
        position = self._due.state(timed=self.train_time_interval is not None)
        state[OURS] |= {**position, **self._direction.state(self.mode), **(self._restored or {})}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the files of an earlier run if they still exist and are in the same folder."""
        self._take_mode((state_dict.get(OURS) or {}).get("mode", self.mode))
        comes_again = any(self.names.may_be_of_callback(path) for path in self._folder.future)
        owner, top = type(self).__name__, self._top_k
        state = self._files.load(state_dict, self.dirpath, owner, top, comes_again, self.shared_out)
        self._restored = self._restored if state is None else dict(state.get(OURS) or {})

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the kept files and their metrics as YAML. Default: ``best_k_models.yaml`` in the folder."""
        write_yaml(filepath or os.path.join(self.dirpath or "", "best_k_models.yaml"), self._files.best_k_models)
