"""The plan of an experiment: brackets, trials of each length, and the units that they train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib.errors import MisconfigurationException
from lightlib.experiment.searchers.preview import Preview, preview
from lightlib.experiment.space import Space

if TYPE_CHECKING:
    from lightlib.experiment.file import ExperimentConfig


def plan_of(config: ExperimentConfig, seconds: float | None = None) -> Preview:
    """Return the plan of an experiment's search.

    Args:
        config: The experiment. Without a length, each trial counts as one fit.
        seconds: That a trial takes for one unit. Default: unknown.

    Raises:
        MisconfigurationException: The space does not fit the searcher, or the searcher is the user's own.

    Example:
        >>> from lightlib.experiment.file import read
        >>> grid = {"lr": {"type": "log", "minval": -4, "maxval": -1, "count": 4}}
        >>> config = read({"name": "a", "fit": {"trainer": {}}, "hyperparameters": grid,
        ...                "searcher": {"name": "grid", "metric": "val_loss", "max_length": {"epochs": 3}}})
        >>> plan_of(config).trials, plan_of(config).units, plan_of(config).unit
        (4, 12, 'epochs')
    """
    searcher = config.searcher
    if searcher.name is None:
        raise MisconfigurationException(
            f"{config.where('searcher.class_path')}: the searcher {searcher.class_path} decides while it runs "
            "how many trials there are and how long they train.",
            expected="a searcher of lightlib, whose plan is known before.",
            fix="start the experiment with a small max_length, and look at its trials.",
        )
    space = Space(config.hyperparameters, lambda key: config.where(f"hyperparameters.{key}"))
    stopping = searcher.stopping
    brackets = stopping or searcher
    length, unit = _length(config)
    return preview(
        searcher.name,
        max_length=length,
        unit=unit,
        max_trials=len(space.grid_numbers()) if searcher.name == "grid" else searcher.max_trials,
        mode=brackets.mode,  # type: ignore[arg-type]
        divisor=brackets.divisor,
        max_rungs=brackets.max_rungs,
        bracket_rungs=brackets.bracket_rungs,
        num_rungs=searcher.num_rungs,
        stop_once=brackets.stop_once,
        stopping=stopping is not None,
        max_concurrent_trials=searcher.max_concurrent_trials,
        seconds_per_unit=seconds,
        slots_per_trial=max(config.resources.slots_per_trial, 1),
    )


def _length(config: ExperimentConfig) -> tuple[int, str]:
    """Return the length of a full trial and its unit."""
    searcher = config.searcher
    timed = searcher.stopping if searcher.stopping and searcher.stopping.max_time else searcher
    if timed.max_time is not None:
        return int(timed.max_time), timed.time_metric or "units"
    if searcher.max_length is None:
        return 1, "fits"
    return int(searcher.max_length.amount), searcher.max_length.unit or "units"
