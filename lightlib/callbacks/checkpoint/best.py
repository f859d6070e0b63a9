"""BestCheckpoints: the files kept by their metric, and the state by which a killed run goes on."""

from __future__ import annotations

import json
import math
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lightlib import report, safe_files
from lightlib.callbacks.checkpoint.folder import absolute
from lightlib.callbacks.checkpoint.writer import CheckpointWriter
from lightlib.callbacks.shared_clock import SharedClock
from lightlib.checkpoint.storage import filesystem

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.trainer import Trainer

__all__ = ["KEPT", "BestCheckpoints", "as_number"]

# Lightning's names; all processes have those of rank zero.
KEPT = (
    "monitor",
    "best_model_score",
    "best_model_path",
    "current_score",
    "dirpath",
    "best_k_models",
    "kth_best_model_path",
    "kth_value",
    "last_model_path",
)
# What else a run must find again, to save and remove what it would have if nobody had killed it.
_POSITION = (
    "pending",
    "epoch",
    "latest",
    "candidates",
    "evicted",
    "saved_at_batch",
    "step",
    "epoch_ended",
    "validated_at_step",
    "validated_value",
)


class BestCheckpoints(CheckpointWriter):
    """Base of `ModelCheckpoint`: the list of the best files, and its state."""

    monitor: str | None
    mode: str
    save_top_k: int
    train_time_interval: timedelta | None
    # "all" or "last alone": a save is due; "last": its first file is written, and `last` is not; "": nothing
    _pending: str
    _epoch: int  # in which it became due
    _candidates: dict[str, Tensor]  # the numbers of the save that is pending
    _saved_at_batch: int
    _step: int
    _epoch_ended: bool
    _validated_at_step: int | None
    _validated_value: Tensor | None
    _asked_of: Trainer | None  # while a save is pending
    _undo: dict[str, Any] | None  # while a save runs: what holds if it fails
    _restored: dict[str, Any] | None  # between `load_state_dict` and the start of training

    def _start_empty(self) -> None:
        self.best_k_models: dict[str, Tensor] = {}
        self.best_model_path = ""
        self.best_model_score: Tensor | None = None
        self.current_score: Tensor | None = None
        self.kth_best_model_path = ""
        self.kth_value = self._worst
        self._clock = SharedClock()
        self._undo = self._restored = None
        self._begin(batch=0, step=0)

    def _begin(self, batch: int, step: int) -> None:
        """Take a position from which on nothing was trained yet."""
        self._pending, self._epoch, self._candidates, self._asked_of = "", 0, {}, None
        self._saved_at_batch = batch
        self._step = step
        self._clock.start(batch)
        self._epoch_ended = False
        self._validated_at_step = None
        self._validated_value = None

    def _monitor_candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        """The numbers that names and decisions are made of; those of a pending save where the run has none yet."""
        candidates = {name: as_number(value) for name, value in trainer.callback_metrics.items()}
        numbers = {name: value for name, value in candidates.items() if value is not None}
        position = {"epoch": torch.tensor(self._epoch), "step": torch.tensor(trainer.global_step)}
        return {**self._candidates, **numbers, **position}

    # ranking

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
        better_is_elsewhere = self.best_model_path not in ("", *order)  # of an earlier run, in another folder
        if best and not (better_is_elsewhere and self.best_k_models[best] == self._worst):
            self.best_model_path, self.best_model_score = best, self.best_k_models[best]

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether a checkpoint with the metric `current` belongs to the best; all ranks answer alike."""
        if current is None or self.save_top_k == 0:
            return False
        if self.save_top_k == -1 or len(self.best_k_models) < self.save_top_k:
            return True
        worst = self.best_k_models[self.kth_best_model_path]
        better = current < worst if self.mode == "min" else current > worst
        return bool(trainer.strategy.reduce_boolean_decision(bool(better)))

    def _kept(self) -> set[str]:
        return {*super()._kept(), *self.best_k_models, self.best_model_path}

    def forget(self, path: str) -> None:
        """Take a file that somebody else removes from the list of the best."""
        if path in self.best_k_models:
            self.best_k_models = {kept: value for kept, value in self.best_k_models.items() if kept != path}
        if path == self.best_model_path:
            self.best_model_path, self.best_model_score = "", None
        self._rank()

    # state

    @property
    def _seconds(self) -> float:
        """Since the last save, when that decides about the next one."""
        return 0.0 if self.train_time_interval is None else self._clock.passed

    def state_dict(self) -> dict[str, Any]:
        """Return what was saved so far, under Lightning's names, and under "lightlib" where a killed run goes on."""
        holds = vars(self)
        if self._writer is not None:  # what is being written is said to be written only when it is
            self._writer.join()
            if self._writer.failed is not None:
                holds = {**holds, **(self._undo or {})}
        position = {name: holds[f"_{name}"] for name in _POSITION}
        position |= {"evicted": list(position["evicted"]), "seconds": self._seconds}
        if position["pending"] in ("all", "last alone") and self._asked_of is not None:
            position["candidates"] = self._monitor_candidates(self._asked_of)
        elif not position["pending"]:
            position |= {"epoch": 0, "latest": "", "candidates": {}}
        state = {name: holds[name] for name in KEPT}
        return {**state, "best_k_models": dict(state["best_k_models"]), "lightlib": position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the files of an earlier run, as far as they are still there and in the same folder."""
        self.best_model_path = state_dict["best_model_path"]
        self.best_model_score = as_number(state_dict.get("best_model_score"))
        if state_dict.get("dirpath") != self.dirpath:
            report.info(
                f"The checkpoint comes from {state_dict.get('dirpath')!r}, this run saves to {self.dirpath!r}: its "
                f"list of best files begins anew. Until its first save, the best one is {self.best_model_path!r}."
            )
            return
        state_dict = self._own_files(state_dict)
        known = {path: torch.as_tensor(value) for path, value in state_dict.get("best_k_models", {}).items()}
        gone = {path for path in (*known, self.best_model_path) if path and not filesystem.exists(path)}
        if any(self._may_have_written(path) for path in self._future):
            gone = set()  # removed by what this run did after this point, and is about to do again
        if (missed := sorted(gone & set(known))) and not self.shared_out:
            report.warn(f"Checkpoints that were kept by the earlier run are gone: {', '.join(map(repr, missed))}.")
        self.best_k_models = {path: value for path, value in known.items() if path not in gone}
        self.current_score = as_number(state_dict.get("current_score"))
        self.last_model_path = state_dict.get("last_model_path", "")
        if self.best_model_path in gone:
            self.best_model_path, self.best_model_score = "", None
        self._rank()
        self._restored = dict(state_dict.get("lightlib") or {})

    def _own_files(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state without files elsewhere: a forged one must not have them replaced, copied or removed."""
        ours = dict(state.get("lightlib") or {})
        one = {"last_model_path": state.get("last_model_path", ""), "latest": ours.get("latest", "")}
        outside = {path for path in one.values() if path and not self._is_inside(path)}
        several = [*state.get("best_k_models", {}), *ours.get("evicted", ())]
        outside |= {path for path in several if not self._is_inside(path)}
        if not outside:
            return state
        report.warn(
            f"The checkpoint lists {', '.join(map(repr, sorted(outside)))} among the files of {type(self).__name__}, "
            f"which writes to {self.dirpath!r} only: they are left alone."
        )
        ours["latest"] = "" if one["latest"] in outside else one["latest"]
        ours["evicted"] = [path for path in ours.get("evicted", ()) if path not in outside]
        best = {path: value for path, value in state.get("best_k_models", {}).items() if path not in outside}
        last = "" if one["last_model_path"] in outside else one["last_model_path"]
        ours["pending"] = ours.get("pending", "") if last else ""
        return {**state, "best_k_models": best, "last_model_path": last, "lightlib": ours}

    def _take_position(self, trainer: Trainer, restored: dict[str, Any]) -> None:
        """Go on where the very same run was ended."""
        vars(self).update({f"_{name}": restored[name] for name in _POSITION if name in restored})
        self._candidates = dict(self._candidates)
        self._clock.start(trainer.progress.batch, passed=float(restored.get("seconds", 0.0)))
        known, self._evicted = list(self._evicted), []
        for path in known:  # what it goes on from is needed until something newer is complete
            (self._outlived if path == absolute(trainer.ckpt_path) else self._evicted).append(path)

    def _branch_off(self) -> None:
        """Leave alone what the run saved from which this one goes another way."""
        self._foreign = {*self.best_k_models, self.best_model_path, self.last_model_path} - {""}
        self.last_model_path = ""

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the kept files and their metrics as YAML. Default: ``best_k_models.yaml`` in the folder.

        Only rank zero writes.
        """
        if report.rank_zero_only.rank:
            return
        target = Path(filepath or os.path.join(self.dirpath or "", "best_k_models.yaml"))
        lines = [f"{json.dumps(path)}: {_yaml(value.item())}\n" for path, value in self.best_k_models.items()]
        target.parent.mkdir(parents=True, exist_ok=True)
        safe_files.replace(target, ("".join(lines) or "{}\n").encode())


def as_number(value: Any) -> Tensor | None:
    """Return a metric as a tensor of its own, on the CPU."""
    return None if value is None else torch.as_tensor(value).detach().cpu().clone()


def _yaml(number: float) -> str:
    return repr(number) if math.isfinite(number) else {math.inf: ".inf", -math.inf: "-.inf"}.get(number, ".nan")
