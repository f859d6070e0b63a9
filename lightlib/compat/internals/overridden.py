"""Private methods of Lightning's callbacks that a project overrides, and that lightlib never calls."""

from __future__ import annotations

from typing import Any

from lightlib import report

__all__ = ["warn_of_overridden"]

# By class: the methods of Lightning's that have no counterpart here.
_NOT_CALLED: dict[str, frozenset[str]] = {
    name: frozenset(methods.split())
    for name, methods in {
        "ModelCheckpoint": "_find_last_checkpoints _format_checkpoint_name _should_remove_checkpoint",
        "EarlyStopping": "_log_info",
        "LearningRateMonitor": """_add_prefix _add_suffix _check_duplicates_and_update_name _extract_stats
            _find_names_from_optimizers _find_names_from_schedulers _get_optimizer_stats _remap_keys""",
        "Timer": "_check_time_remaining",
        "ModelSummary": "_summary",
        "TQDMProgressBar": "_resolve_refresh_rate _should_update",
        "RichProgressBar": "_add_task _get_train_description _init_progress _stop_progress _update_metrics",
    }.items()
}


def warn_of_overridden(callback: Any) -> None:
    """Warn once for each method of a callback's class that overrides one of Lightning's, which lightlib lacks."""
    kinds = type(callback).__mro__
    ours = next((kind for kind in kinds if kind.__module__.startswith("lightlib.")), None)
    if ours is None:
        return
    private = _NOT_CALLED.get(ours.__name__, frozenset())
    names = [name for kind in kinds[: kinds.index(ours)] for name in vars(kind) if name in private]
    for name in dict.fromkeys(names):
        report.warn_once(
            ("overridden", type(callback), name),
            f"{type(callback).__name__}.{name} overrides a private method of Lightning's {ours.__name__}, "
            "which lightlib does not call.\n"
            f"  Expected: hooks of {ours.__name__}, such as on_validation_end, or its public methods.\n"
            f"  Fix: move the code of {name} to such a hook, or do without it.",
        )
