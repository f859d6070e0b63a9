"""CheckpointFiles: the files of a ModelCheckpoint and its pending save; a copy undoes a failed save."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightlib import report, safe_files
from lightlib.callbacks.checkpoint.folder import is_inside
from lightlib.callbacks.checkpoint.top_k import TopK
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import OURS


@dataclass
class CheckpointFiles:
    """Everything that one save changes.

    Attributes:
        best_k_models, best_model_path, best_model_score, current_score, kth_best_model_path, kth_value: The best files
            by the metric, as in `ModelCheckpoint`.
        last_model_path: The file of `save_last`.
        newest: The files of `keep_last`, the oldest first.
        pending: "all" or "last alone": a save is due; "last": its first file is written, `last` is not; "": none.
        saved_at_batch: The number of batches at the last save.
        latest: The file that the last save wrote first.
        evicted: Files to remove as soon as something newer is complete.
        outlived: Files to remove at the next save or at the end, but not yet: the run was resumed from one of them.
    """

    kth_value: Tensor
    best_k_models: dict[str, Tensor] = field(default_factory=dict)
    best_model_path: str = ""
    best_model_score: Tensor | None = None
    current_score: Tensor | None = None
    kth_best_model_path: str = ""
    last_model_path: str = ""
    newest: list[str] = field(default_factory=list)
    pending: str = ""
    saved_at_batch: int = 0
    latest: str = ""
    evicted: list[str] = field(default_factory=list)
    outlived: list[str] = field(default_factory=list)

    @property
    def kept(self) -> set[str]:
        """The files that must not be removed."""
        return {self.last_model_path, *self.best_k_models, self.best_model_path, *self.newest}

    def copy(self, **changes: Any) -> CheckpointFiles:
        """Return files that do not change with these."""
        copied = {
            "best_k_models": dict(self.best_k_models),
            "newest": list(self.newest),
            "evicted": list(self.evicted),
            "outlived": list(self.outlived),
        }
        return replace(self, **{**copied, **changes})

    def record(self, **changes: Any) -> None:
        """Set attributes in place: the writer's thread may be removing evicted files."""
        vars(self).update(changes)

    def restore(self, files: CheckpointFiles) -> None:
        """Take the attributes of other files: those of rank zero, or a copy from before a failed save."""
        vars(self).update(vars(files))

    def begin_save(self, batch: int, last_path: str | None) -> None:
        """Note a save before its first file is written, and the file that the last checkpoint replaces."""
        previous, self.latest = self.last_model_path, ""
        self.saved_at_batch, self.pending = batch, "" if last_path is None else "last"
        if last_path is not None and last_path != previous:
            self.last_model_path = last_path
            self.evicted = [*self.evicted, *([previous] if previous else [])]

    def begin_file(self, path: str, resumable: bool) -> None:
        """Note a file before it is written: it holds the list of the files that it replaces if it is resumable."""
        self.latest = path
        if resumable:
            self.evicted, self.outlived = [*self.evicted, *self.outlived], []

    def take_pending_save(self, state: Mapping[str, Any], resumed_from: str | None) -> None:
        """Continue a save from `state`; the file that the run was resumed from stays until a newer one is complete."""
        self.pending, self.latest, self.saved_at_batch = state["pending"], state["latest"], state["saved_at_batch"]
        self.evicted = [path for path in state["evicted"] if path != resumed_from]
        self.outlived = [*self.outlived, *(path for path in state["evicted"] if path == resumed_from)]

    def oldest_of(self, keep: int) -> str | None:
        """Return the file that a new one replaces when `keep` of the newest are kept; None while there is room."""
        newest = self.newest or [path for path in (self.best_model_path,) if path]
        return newest[0] if len(newest) >= keep else None

    def add_newest(self, path: str, replaced: str | None) -> None:
        """Note a new file among the newest, and not `replaced` any more."""
        newest = self.newest or [path for path in (self.best_model_path,) if path]
        self.newest = [*(old for old in newest if old not in (path, replaced)), path]

    def rank(self, top: TopK) -> None:
        """Keep these files as the best."""
        self.best_k_models = dict(top.kept)
        self.kth_best_model_path, self.kth_value = top.kth
        best = top.best_after(self.best_model_path)
        if best is not None:
            self.best_model_path, self.best_model_score = best

    def load(
        self,
        state: Mapping[str, Any],
        dirpath: str | None,
        owner: str,
        top: TopK,
        keep_missing: bool,
        shared: bool,
    ) -> Mapping[str, Any] | None:
        """Take the files from the state of an earlier run's callback; return the state as far as it can be trusted.

        Args:
            state: Of the callback.
            dirpath: This callback's folder. If the earlier run had another one, only the best file is taken.
            owner: Name of the callback, for messages.
            top: How many of the best are kept, and by which mode.
            keep_missing: Keep files that do not exist: they were removed later in this run, which happens again.
            shared: Expect that another object has removed files.

        Returns:
            None if the folder is another one.
        """
        self.best_model_path = state["best_model_path"]
        self.best_model_score = as_number(state.get("best_model_score"))
        if state.get("dirpath") != dirpath:
            report.info(
                f"The checkpoint comes from {state.get('dirpath')!r}, this run saves to {dirpath!r}: its list of best "
                f"files starts empty. Until its first save, the best one is {self.best_model_path!r}."
            )
            return None
        state = without_outsiders(state, owner, dirpath)
        scores = {path: torch.as_tensor(value) for path, value in state.get("best_k_models", {}).items()}
        newest = list((state.get(OURS) or {}).get("newest", ()))
        missing = {path for path in (*scores, self.best_model_path, *newest) if path and not filesystem.exists(path)}
        gone = set() if keep_missing else missing
        lost = gone & {*scores, *newest}
        if lost and not shared:
            names = ", ".join(map(repr, sorted(lost)))
            report.warn(f"Checkpoints that were kept by the earlier run are gone: {names}.")
        self.current_score = as_number(state.get("current_score"))
        self.last_model_path = state.get("last_model_path", "")
        self.newest = [path for path in newest if path not in gone]
        if self.best_model_path in gone:
            self.best_model_path, self.best_model_score = "", None
        self.rank(replace(top, kept={path: value for path, value in scores.items() if path not in gone}))
        return state

    def forget(self, path: str, top: TopK) -> None:
        """Take a file that is gone out of the best ones."""
        if path == self.best_model_path:
            self.best_model_path, self.best_model_score = "", None
        self.newest = [kept for kept in self.newest if kept != path]
        self.rank(top.remove(path))

    def state(
        self, monitor: str | None, dirpath: str | None, epoch: int, candidates: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Return the entries of Lightning's `ModelCheckpoint`, and those from which a resumed run continues a save.

        Args:
            monitor, dirpath: Of the callback.
            epoch: The epoch of the pending save.
            candidates: Its metrics.
        """
        return {
            "monitor": monitor,
            "best_model_score": self.best_model_score,
            "best_model_path": self.best_model_path,
            "current_score": self.current_score,
            "dirpath": dirpath,
            "best_k_models": dict(self.best_k_models),
            "kth_best_model_path": self.kth_best_model_path,
            "kth_value": self.kth_value,
            "last_model_path": self.last_model_path,
            OURS: {
                "pending": self.pending,
                "epoch": epoch if self.pending else 0,
                "latest": self.latest if self.pending else "",
                "candidates": dict(candidates) if self.pending else {},
                "newest": list(self.newest),
                "evicted": list(self.evicted),
                "saved_at_batch": self.saved_at_batch,
            },
        }


def as_number(value: Any) -> Tensor | None:
    """Return a copy of a metric as a tensor on the CPU."""
    return None if value is None else torch.as_tensor(value).detach().cpu().clone()


def without_outsiders(state: Mapping[str, Any], owner: str, dirpath: str | None) -> dict[str, Any]:
    """Return a callback's state without files outside of its folder.

    A forged checkpoint could otherwise have them replaced, copied to a public place, or removed.
    """
    ours = dict(state.get(OURS) or {})
    single = {"last_model_path": state.get("last_model_path", ""), "latest": ours.get("latest", "")}
    outside = {path for path in single.values() if path and not is_inside(path, dirpath)}
    listed = [*state.get("best_k_models", {}), *ours.get("evicted", ()), *ours.get("newest", ())]
    outside |= {path for path in listed if not is_inside(path, dirpath)}
    if not outside:
        return dict(state)
    report.warn(
        f"The checkpoint lists {', '.join(map(repr, sorted(outside)))} among the files of {owner}, which writes to "
        f"{dirpath!r} only: they are left alone."
    )
    ours["latest"] = "" if single["latest"] in outside else single["latest"]
    for name in ("evicted", "newest"):
        ours[name] = [path for path in ours.get(name, ()) if path not in outside]
    best = {path: value for path, value in state.get("best_k_models", {}).items() if path not in outside}
    last = "" if single["last_model_path"] in outside else single["last_model_path"]
    ours["pending"] = ours.get("pending", "") if last else ""
    return {**state, "best_k_models": best, "last_model_path": last, OURS: ours}


def write_yaml(path: str | os.PathLike[str], values: Mapping[str, Tensor]) -> None:
    """Write files and their metrics as YAML, on rank zero alone."""
    import yaml  # optional: pyyaml

    if report.rank_zero_only.rank == 0:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        safe_files.replace(target, yaml.safe_dump({name: value.item() for name, value in values.items()}).encode())
