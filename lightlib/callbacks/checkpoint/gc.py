"""CheckpointGC: removes all but the best and the latest checkpoints, of a run or an experiment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.files import as_number
from lightlib.callbacks.checkpoint.folder import absolute, is_of_the_user, label_at, labels_in
from lightlib.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from lightlib.callbacks.checkpoint.policy import Saved, retained
from lightlib.callbacks.direction import Direction
from lightlib.callbacks.monitored import check_mode, is_old, missing, validates
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException, check_int

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

LIST = "checkpoints.json"  # in each run's folder, for the other runs of its experiment
DEEPEST = 6  # folders between the root of an experiment and the checkpoints of a run


class CheckpointGC(Callback):
    """Removes the checkpoints that `ModelCheckpoint` saved, except the best and the latest, by three numbers.

    What counts is the metric of the validation at which a checkpoint was saved; one that was saved at another moment
    has none, and is kept as one of the latest only. While a run trains, its newest checkpoint is always kept.
    `last.ckpt` and files that other code saved are left alone. Of several runs each removes its own files only;
    `sweep` removes those of runs that have ended.

    Args:
        save_experiment_best: How many of the best of all runs below `root` are kept.
        save_trial_best: How many of the best of this run.
        save_trial_latest: How many of the latest of this run.
        monitor: The metric by which they are compared. Not needed when only the latest are kept.
        mode: "min" when less of it is better, "max" when more is. "auto": found from the metric's `higher_is_better` or
            a word in its name. Default: "min", with a warning if more is better by these.
        root: The folder, local or remote, below which all runs of the experiment have theirs. Each then writes
            ``checkpoints.json`` next to its checkpoints: their metrics, which the other runs read.

    Raises:
        MisconfigurationException: A number is negative; `monitor` or `root` is lacking; when `fit` begins: there is no
            `ModelCheckpoint`; while training: `monitor` was not logged.

    Example:
        >>> from lightlib.callbacks import ModelCheckpoint
        >>> callbacks = [
        ...     ModelCheckpoint(every_n_train_steps=500, save_top_k=-1, save_last=True),
        ...     CheckpointGC(save_trial_best=2, save_trial_latest=1, monitor="val_loss"),
        ... ]
    """

    priority = "lowest"
    after_module = True

    def __init__(
        self,
        save_experiment_best: int = 0,
        save_trial_best: int = 1,
        save_trial_latest: int = 1,
        monitor: str | None = None,
        mode: Literal["min", "max", "auto"] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        numbers = {
            "save_experiment_best": save_experiment_best,
            "save_trial_best": save_trial_best,
            "save_trial_latest": save_trial_latest,
        }
        for name, value in numbers.items():
            check_int("CheckpointGC", name, value, 0)
        if monitor is None and (save_experiment_best or save_trial_best):
            raise MisconfigurationException(
                f"CheckpointGC(monitor=None) with save_experiment_best={save_experiment_best} and "
                f"save_trial_best={save_trial_best}.",
                expected="the metric by which a checkpoint is better than another.",
                fix='CheckpointGC(monitor="val_loss"), or save_trial_best=0 to keep the latest only.',
            )
        if save_experiment_best and root is None:
            raise MisconfigurationException(
                f"CheckpointGC(save_experiment_best={save_experiment_best}, root=None).",
                expected="the folder below which all runs of the experiment save.",
                fix="CheckpointGC(root='runs/my_experiment'), or save_trial_best for this run alone.",
            )
        self.numbers = save_experiment_best, save_trial_best, save_trial_latest
        self.monitor = monitor
        self._direction = Direction("CheckpointGC", monitor, mode)
        self.mode = self._direction.first_mode
        self.root = absolute(root)
        self._metrics: dict[int, float] = {}  # by the number of batches at which a validation ended
        self._saved: dict[str, tuple[int, int]] = {}  # this run's checkpoints, and their age
        self._swept = True

    def __repr__(self) -> str:
        return report.described(self, mode=self._direction.given)

    @property
    def state_key(self) -> str:
        return self._generate_state_key(monitor=self.monitor, mode=self._direction.of_state_key)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        savers = self._savers(trainer)
        if not savers:
            raise MisconfigurationException(
                "CheckpointGC without a ModelCheckpoint.",
                expected="a ModelCheckpoint whose files are removed.",
                fix="callbacks=[ModelCheckpoint(every_n_train_steps=…, save_top_k=-1), CheckpointGC(…)]",
            )
        for saver in savers:
            saver.share_files()
        self._metrics, self._saved, self._swept = {}, {}, True
        self.mode = self._direction.settle(self.mode, trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Find the checkpoints that this run saved before it was ended."""
        if not (trainer.continues and trainer.is_global_zero):
            return
        for saver in self._savers(trainer):
            for path, label in labels_in(saver.dirpath or "", saver.FILE_EXTENSION, saver.names.depth).items():
                if (
                    label.run == trainer.run_id
                    and label.batch <= trainer.progress.batch
                    and saver.names.is_ranked(path)
                ):
                    self._saved[path] = label.age
        self._swept = False

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.state.fn != "fit":
            return
        self.mode = self._direction.look(self.mode, trainer)
        if not trainer.sanity_checking:
            self._note(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Without any validation, take the metric from the training epoch."""
        if not validates(trainer):
            self.mode = self._direction.look(self.mode, trainer)
            self._note(trainer)

    def _note(self, trainer: Trainer) -> None:
        if self.monitor is None or is_old(trainer, self.monitor):
            return
        value = as_number(trainer.callback_metrics.get(self.monitor))
        if value is None:
            raise missing("CheckpointGC", self.monitor, trainer.callback_metrics)
        there = {batch for batch, _ in self._saved.values()}
        newest = max(there, default=-1)  # one that is newer may be being written
        self._metrics = {batch: metric for batch, metric in self._metrics.items() if batch in there or batch > newest}
        self._metrics[trainer.progress.batch] = float(value)

    def on_checkpoint_written(self, trainer: Trainer, pl_module: Module, path: str) -> None:
        """Note a new checkpoint. Those that it makes superfluous are removed when its save is complete."""
        if trainer.is_global_zero and any(saver.names.is_ranked(path) for saver in self._savers(trainer)):
            label = label_at(path)
            if label is not None:
                self._saved[path] = label.age
                self._swept = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if not self._swept:
            self._sweep(trainer, at_end=False)

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.is_global_zero and not trainer.fast_dev_run:
            self._sweep(trainer, at_end=True)

    def _sweep(self, trainer: Trainer, at_end: bool) -> None:
        self._swept = True
        savers = self._savers(trainer)
        by_path = {
            path: Saved(trainer.run_id, age, self._metrics.get(age[0]))
            for path, age in self._saved.items()
            if filesystem.exists(path)
        }
        others: dict[str, Saved] = {}
        if self.root is not None:
            for saver in savers:
                _write_list(saver.dirpath or "", trainer.run_id, by_path, self.mode)
            others = {path: saved for listed in _lists_below(self.root).values() for path, saved in listed.items()}
        best, trial_best, latest = self.numbers
        kept = retained({**others, **by_path}, best, trial_best, latest if at_end else max(1, latest), self.mode)
        linked = {os.path.realpath(saver.last_model_path) for saver in savers if saver.last_model_path}
        for path in sorted(path for path in set(by_path) - kept - linked if not is_of_the_user(trainer, path)):
            self._remove(trainer, path, savers)

    def _remove(self, trainer: Trainer, path: str, savers: list[ModelCheckpoint]) -> None:
        del self._saved[path]
        saver = next(saver for saver in savers if saver.names.is_ranked(path))
        try:
            saver._remove_checkpoint(trainer, path)  # noqa: SLF001  the door by which a saver's files are removed
        except OSError as error:
            report.warn(f"The checkpoint {path!r} could not be removed, training continues: {error}")
        for holder in savers:
            holder.forget(path)

    def _savers(self, trainer: Trainer) -> list[ModelCheckpoint]:
        return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]

    def state_dict(self) -> dict[str, Any]:
        metrics = [[batch, metric] for batch, metric in self._metrics.items()]
        return {"metrics": metrics, **self._direction.state(self.mode)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._metrics = {int(batch): float(metric) for batch, metric in state_dict["metrics"]}
        self.mode = state_dict.get("mode", self.mode)


def sweep(
    root: str | os.PathLike[str],
    save_experiment_best: int = 0,
    save_trial_best: int = 1,
    save_trial_latest: int = 1,
    mode: Literal["min", "max"] | None = None,
) -> list[str]:
    """Remove the superfluous checkpoints of all runs of an experiment that have ended; return their paths.

    Args:
        root: The folder below which the runs save; they had a `CheckpointGC` with this `root`.
        save_experiment_best, save_trial_best, save_trial_latest: As in `CheckpointGC`.
        mode: "min" when less of the metric is better, "max" when more is. Default: that of the runs.

    Raises:
        MisconfigurationException: The runs have different modes, and none is given.
        OSError: A checkpoint cannot be removed.
    """
    folders = _lists_below(absolute(root) or "")
    compared_by = _mode_of_all(folders, root) if mode is None else check_mode(mode)
    saved = {path: entry for listed in folders.values() for path, entry in listed.items()}
    kept = retained(saved, save_experiment_best, save_trial_best, save_trial_latest, compared_by)
    removed: list[str] = []
    for folder in sorted(folders):
        try:
            claim = filesystem.claim(folder)
        except MisconfigurationException as error:
            report.warn(f"The checkpoints of a run that has not ended are left as they are. {error}")
            continue
        with claim:
            for path in sorted(folders[folder].keys() - kept):
                filesystem.remove(path)
                removed.append(path)
    return removed


def _mode_of_all(folders: Mapping[str, Mapping[str, Saved]], root: str | os.PathLike[str]) -> str:
    """Return the mode by which all runs compare their metrics."""
    compared = [
        folder for folder, listed in folders.items() if any(entry.metric is not None for entry in listed.values())
    ]
    modes = sorted({_mode_of(folder) for folder in compared})
    if len(modes) > 1:
        raise MisconfigurationException(
            f"The runs below {os.fspath(root)!r} compare their metrics by different modes: {', '.join(modes)}.",
            expected="one experiment, or the mode by which its checkpoints are compared.",
            fix='sweep(root, …, mode="max") if more is better.',
        )
    return modes[0] if modes else "min"


def _mode_of(folder: str) -> str:
    with filesystem.open_for_reading(filesystem.join(folder, LIST)) as file:
        return str(json.load(file).get("mode", "min"))


def _write_list(folder: str, run: str, saved: Mapping[str, Saved], mode: str) -> None:
    names = {
        path[len(folder) :].lstrip("/" + os.sep): {"age": list(entry.age), "metric": entry.metric}
        for path, entry in saved.items()
        if path.startswith(filesystem.join(folder, ""))
    }
    text = json.dumps({"run": run, "mode": mode, "checkpoints": names}, indent=1).encode()

    def produce(file: BinaryIO) -> None:
        file.write(text)

    filesystem.write(filesystem.join(folder, LIST), produce)


def _lists_below(folder: str, depth: int = DEEPEST) -> dict[str, dict[str, Saved]]:
    """Return the checkpoints that are there, of all runs below `folder`, by the folder of the run and their path."""
    names = filesystem.names_in(folder)
    if LIST in names:
        listed = _read_list(folder)
        return {folder: listed} if listed else {}
    lists: dict[str, dict[str, Saved]] = {}
    for name in names if depth > 0 else ():
        path = filesystem.join(folder, name)
        if not name.startswith(".") and filesystem.is_folder(path):
            lists |= _lists_below(path, depth - 1)
    return lists


def _read_list(folder: str) -> dict[str, Saved]:
    try:
        with filesystem.open_for_reading(filesystem.join(folder, LIST)) as file:
            told = json.load(file)
        run = str(told["run"])
        entries: dict[str, Saved] = {}
        for name, entry in told["checkpoints"].items():
            metric = None if entry["metric"] is None else float(entry["metric"])
            entries[str(name)] = Saved(run, (int(entry["age"][0]), int(entry["age"][1])), metric)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        report.warn(f"{filesystem.join(folder, LIST)!r} is not a list of checkpoints, and is passed over: {error!r}")
        return {}
    paths = {
        filesystem.join(folder, name): entry
        for name, entry in entries.items()
        if ".." not in name.replace("\\", "/").split("/")
    }
    labels = {path: label_at(path) for path in paths if path.startswith(filesystem.join(folder, ""))}
    return {path: paths[path] for path, label in labels.items() if label is not None and label.run == run}
