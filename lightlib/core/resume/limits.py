"""ChangedLimits: the limits and intervals of the Trainer that hooks have changed since training began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightlib import report

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

NAMES = (
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time"),
    *("val_check_interval", "val_check_seconds", "check_val_every_n_epoch", "val_check_at_end"),
    *("accumulate_grad_batches", "log_every_n_steps", "gradient_clip_val", "gradient_clip_algorithm"),
    *("limit_train_batches", "limit_val_batches", "reload_dataloaders_every_n_epochs"),
)


class ChangedLimits:
    """Restores in a resumed run the values that hooks had set: only some of these hooks are called again.

    A value is restored before `fit` decides whether anything is left to do, and again when training begins, because
    `on_train_start` may set it as it did in the saved run. If the program has another value than when the saved run
    began, the program's counts.
    """

    __slots__ = ("_at_start", "_saved")

    def __init__(self) -> None:
        self._at_start: dict[str, Any] | None = None  # None before training begins
        self._saved: Mapping[str, Any] = {}

    def load_state_dict(self, state: Mapping[str, Any], run: Run) -> None:
        """Restore the values of a checkpoint that were this program's when the saved run began."""
        self._saved = {name: (pair[0], pair[1]) for name, pair in state.items() if name in NAMES}
        settings = run.trainer.settings
        for name, (before, after) in self._saved.items():
            if getattr(settings, name) == before:
                settings.restore(name, after)
        self._replan(run, bool(self._saved))

    def begin(self, run: Run) -> None:
        """Note the values with which training begins, and put those of a saved run in their place."""
        settings, saved, self._saved = run.trainer.settings, self._saved, {}
        self._at_start = _values(settings)
        for name, (before, after) in saved.items():
            now = self._at_start[name]
            if now not in (before, after):
                report.info(
                    f"trainer.{name} was {before!r} when the saved run began and {after!r} in the checkpoint; this "
                    f"program has {now!r}, which is kept."
                )
                continue
            self._at_start[name] = before
            settings.restore(name, after)
        self._replan(run, bool(saved))

    def _replan(self, run: Run, changed: bool) -> None:
        if changed and run.train_data is not None:
            run.use_plan(run.replan(run.train_data.expected_batches))

    def state_dict(self, run: Run) -> dict[str, Any]:
        """Return the changed values: by name the value at the start, and the present one."""
        now, start = _values(run.trainer.settings), self._at_start
        return {} if start is None else {name: [start[name], now[name]] for name in NAMES if start[name] != now[name]}


def _values(settings: Any) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in NAMES}
