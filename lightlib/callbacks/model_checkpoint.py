"""ModelCheckpoint: which checkpoints a run saves and keeps: the best, the last, or one every so often."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from lightlib import report
from lightlib.callbacks import checkpoint_files as files
from lightlib.callbacks.checkpoint_arguments import check_arguments
from lightlib.callbacks.checkpoint_writer import CheckpointWriter
from lightlib.callbacks.monitored import check_mode, final_at_epoch_end, missing, validates
from lightlib.callbacks.shared_clock import SharedClock
from lightlib.errors import MisconfigurationException, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.module import Module
    from lightlib.core.trainer import Trainer

__all__ = ["ModelCheckpoint"]

# What is put back when a write fails; all processes have that of rank zero.
_KEPT = (
    "best_k_models",
    "best_model_path",
    "best_model_score",
    "current_score",
    "kth_best_model_path",
    "kth_value",
)
_NAMED = ("last_model_path",)


class ModelCheckpoint(CheckpointWriter):
    """Saves checkpoints while training, and keeps the best ones by a logged metric.

    When a save is due, it happens after the validation that belongs to it, so that the metric is that of the saved
    weights. New files are complete before older ones are removed, and files of other runs are never touched.

    Args:
        dirpath: Folder of the checkpoints, local or remote. Default: ``checkpoints`` in `trainer.log_dir`, or in
            `trainer.default_root_dir` when there is no logger.
        filename: Template of the names: metrics in braces, with a format if wanted: ``"{epoch:02d}-{val_loss:.2f}"``.
            Default: ``"{epoch}-{step}"``, where step counts optimizer steps. The extension is added.
        monitor: Metric by which checkpoints are compared. None: the latest one counts as the best.
        verbose: Say each save.
        save_last: True: also save ``last.ckpt`` whenever a save is due. "link": make it a link to the file that was
            saved at that moment, where there is one.
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
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ) -> None:
        super().__init__(dirpath, filename, save_weights_only, auto_insert_metric_name, enable_version_counter)
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
        check_arguments(
            monitor=monitor,
            filename=filename,
            save_last=save_last,
            save_top_k=save_top_k,
            every_n_train_steps=self.every_n_train_steps,
            every_n_epochs=self.every_n_epochs,
            train_time_interval=train_time_interval,
        )

        self.best_k_models: dict[str, Tensor] = {}
        self.best_model_path = ""
        self.best_model_score: Tensor | None = None
        self.current_score: Tensor | None = None
        self.kth_best_model_path = ""
        self.kth_value = self._worst
        self.last_model_path = ""

        self._requested = False
        self._epoch = 0
        self._clock = SharedClock()
        self._begin(batch=0, step=0)

    def _begin(self, batch: int, step: int) -> None:
        self._saved_at_batch = batch
        self._step = step
        self._clock.start(batch)
        self._epoch_ended = False
        self._validated_at_step: int | None = None
        self._validated_value: Tensor | None = None
        self._requested = False

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
        """Choose the folder, once, when `fit` begins, and see whether it can be written."""
        if stage != "fit":
            return
        self.dirpath = trainer.strategy.broadcast(self.folder(trainer))
        if self.save_last == "link" and files.is_remote(self.dirpath):
            raise MisconfigurationException(
                f"ModelCheckpoint(save_last='link') with the remote folder {self.dirpath!r}.",
                expected="a local folder: only there can a file be a link.",
                fix="ModelCheckpoint(save_last=True)",
            )
        files.check_writable_together(trainer, self.dirpath, type(self).__name__)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Take the position where this run starts, so that nothing is saved before something was trained."""
        self._begin(trainer.progress.batch, trainer.global_step)
        vars(self).update(trainer.strategy.broadcast({name: getattr(self, name) for name in (*_KEPT, *_NAMED)}))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Ask for a save every n steps, or when the time has come."""
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
        self._validated_at_step = trainer.global_step
        if self.monitor is not None and not self.every_n_epochs:
            self._validated_value = _number(trainer.callback_metrics.get(self.monitor))
        if not self._at_epoch_end(trainer):
            self._request_for_epoch(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Ask for a save at the end of a training epoch."""
        self._epoch_ended = True
        if self._at_epoch_end(trainer):
            self._request_for_epoch(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Save the run as it is, when asked to; a failure to do so is reported and does not hide `exception`."""
        if (
            not self.save_on_exception
            or trainer.state.fn != "fit"
            or trainer.sanity_checking
            or self._nothing_new(trainer)
        ):
            return
        if self.dirpath is None or not files.others_take_part(trainer, exception):
            return
        self._epoch = trainer.current_epoch
        try:
            self._save_all(trainer, ranked=False)
        except Exception as error:  # noqa: BLE001 - the exception that ended training must stay visible
            report.warn(f"ModelCheckpoint could not save after {type(exception).__name__}: {error}")
        else:
            report.info(f"{type(exception).__name__}: the run was saved to {self._latest!r}.")

    def _at_epoch_end(self, trainer: Trainer) -> bool:
        return final_at_epoch_end(trainer) if self.save_on_train_epoch_end is None else self.save_on_train_epoch_end

    def _request_for_epoch(self, trainer: Trainer) -> None:
        if self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._request(trainer)

    def _request(self, trainer: Trainer) -> None:
        if self._requested or trainer.fast_dev_run or self._nothing_new(trainer):
            return
        self._requested = True
        self._epoch = trainer.current_epoch  # the epoch is counted before the loop answers
        trainer.at_save_point(partial(self._save_due, trainer))

    def _nothing_new(self, trainer: Trainer) -> bool:
        return bool(trainer.progress.batch == self._saved_at_batch)

    # the save

    def _save_due(self, trainer: Trainer) -> None:
        self._requested = False
        self._save_all(trainer, ranked=True)

    def _save_all(self, trainer: Trainer, ranked: bool) -> None:
        # A metric of a step is another on each process: that of rank zero counts, so that all decide alike.
        candidates = trainer.strategy.broadcast(self._monitor_candidates(trainer))
        self._latest, previous = "", self.last_model_path
        try:
            if self.save_last:  # set before anything is written: each file knows the name of the last one
                self.last_model_path = self._last_path(trainer, candidates)
            if not ranked:
                self._save_checkpoint(trainer, self._get_metric_interpolated_filepath_name(candidates, trainer))
            elif self.save_top_k != 0:
                self._save_topk_checkpoint(trainer, candidates)
            if self.save_last:
                self._save_last_checkpoint(trainer, candidates)
        except BaseException:
            self.last_model_path = previous
            raise
        self._saved_at_batch = trainer.progress.batch
        if previous and previous != self.last_model_path:
            self._evicted.append(previous)
        self._delete_evicted(trainer)

    def _monitor_candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        candidates = {name: _number(value) for name, value in trainer.callback_metrics.items()}
        numbers = {name: value for name, value in candidates.items() if value is not None}
        return {**numbers, "epoch": torch.tensor(self._epoch), "step": torch.tensor(trainer.global_step)}

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor is None:
            self._save_none_monitor_checkpoint(trainer, monitor_candidates)
        else:
            self._save_monitor_checkpoint(trainer, monitor_candidates)

    def _save_none_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        previous = self.best_model_path
        replaced = previous if self.save_top_k == 1 else None
        path = self._get_metric_interpolated_filepath_name(monitor_candidates, trainer, replaced)
        with self._undone_when_failing():
            self.best_model_path = path
            self._save_checkpoint(trainer, path)
        if replaced and replaced != path:
            self._evicted.append(replaced)

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

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether a checkpoint with the metric `current` belongs to the best; all ranks answer alike."""
        if current is None or self.save_top_k == 0:
            return False
        if self.save_top_k == -1 or len(self.best_k_models) < self.save_top_k:
            return True
        worst = self.best_k_models[self.kth_best_model_path]
        better = current < worst if self.mode == "min" else current > worst
        return bool(trainer.strategy.reduce_boolean_decision(bool(better)))

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
                f"checkpoint {path!r} never counts as the best and is the first to be replaced.",
            )
        with self._undone_when_failing():
            self.best_k_models = {p: value for p, value in self.best_k_models.items() if p not in evicted}
            self.best_k_models[path] = self._worst if current.isnan() else current
            self.current_score = current
            self._rank()
            self._save_checkpoint(trainer, path)
        self._evicted += [old for old in evicted if old != path]
        if self.verbose:
            place = self._worst_first()[::-1].index(path) + 1
            report.info(
                f"Epoch {self._epoch}, step {trainer.global_step}: {self.monitor!r} = {current.item():.5g}, saved as "
                f"number {place} to {path!r}."
            )

    @contextmanager
    def _undone_when_failing(self) -> Iterator[None]:
        before = {name: getattr(self, name) for name in _KEPT}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    @property
    def _worst(self) -> Tensor:
        return torch.tensor(math.inf if self.mode == "min" else -math.inf)

    def _worst_first(self) -> list[str]:
        """The kept files, the worst first; of equals the older counts as better."""
        sign = 1 if self.mode == "min" else -1
        best_first = sorted(self.best_k_models, key=lambda path: sign * self.best_k_models[path].item())
        return best_first[::-1]

    def _rank(self) -> None:
        order = self._worst_first()
        full = bool(order) and (self.save_top_k == -1 or len(order) >= self.save_top_k)
        self.kth_best_model_path = order[0] if full else ""
        self.kth_value = self.best_k_models[order[0]] if full else self._worst
        best = order[-1] if order else ""
        if best and self.best_k_models[best] != self._worst:
            self.best_model_path, self.best_model_score = best, self.best_k_models[best]

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.save_last == "link" and self._latest:
            self._link_checkpoint(trainer, self._latest, self.last_model_path)
        else:
            self._save_checkpoint(trainer, self.last_model_path)

    # what is kept

    def state_dict(self) -> dict[str, Any]:
        """Return what was saved so far, under Lightning's names."""
        return {
            "monitor": self.monitor,
            "best_model_score": self.best_model_score,
            "best_model_path": self.best_model_path,
            "current_score": self.current_score,
            "dirpath": self.dirpath,
            "best_k_models": dict(self.best_k_models),
            "kth_best_model_path": self.kth_best_model_path,
            "kth_value": self.kth_value,
            "last_model_path": self.last_model_path,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the files of an earlier run, as far as they are still there and in the same folder."""
        self.best_model_path = state_dict["best_model_path"]
        self.best_model_score = _number(state_dict.get("best_model_score"))
        if state_dict.get("dirpath") != self.dirpath:
            report.info(
                f"The checkpoint comes from {state_dict.get('dirpath')!r}, this run saves to {self.dirpath!r}: its "
                f"list of best files begins anew. Until its first save, the best one is {self.best_model_path!r}."
            )
            return
        known = {path: torch.as_tensor(value) for path, value in state_dict.get("best_k_models", {}).items()}
        gone = [path for path in known if not files.exists(path)]
        if gone:
            report.warn(f"Checkpoints that were kept by the earlier run are gone: {', '.join(map(repr, gone))}.")
        self.best_k_models = {path: value for path, value in known.items() if path not in gone}
        self.current_score = _number(state_dict.get("current_score"))
        self.last_model_path = state_dict.get("last_model_path", "")
        if self.best_model_path and not files.exists(self.best_model_path):
            self.best_model_path, self.best_model_score = "", None
        self._rank()

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the kept files and their metrics as YAML. Default: ``best_k_models.yaml`` in the folder.

        Only rank zero writes.
        """
        if report.rank_zero_only.rank:
            return
        target = Path(filepath or os.path.join(self.dirpath or "", "best_k_models.yaml"))
        lines = [f"{json.dumps(path)}: {_yaml(value.item())}\n" for path, value in self.best_k_models.items()]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(lines) or "{}\n", encoding="utf-8")


def _number(value: Any) -> Tensor | None:
    return None if value is None else torch.as_tensor(value).detach().cpu().clone()


def _yaml(number: float) -> str:
    return repr(number) if math.isfinite(number) else {math.inf: ".inf", -math.inf: "-.inf"}.get(number, ".nan")
