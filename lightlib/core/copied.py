"""Copies of a Trainer: what pickle and deepcopy keep, and the metrics of runs in other processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightlib.core.metrics.results import Results
from lightlib.core.session import Session

__all__ = ["left_by", "restore_state", "state_of"]

_OF_THIS_PROCESS = ("run", "_session", "processes")
_LEFT = "left by the last call"
Dictionaries = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def left_by(metrics: Dictionaries) -> Results:
    """Return the results of a run that was not run here, of which the metrics alone are known."""
    results = Results()
    results.take_over(metrics)
    return results


def state_of(trainer: Any) -> dict[str, Any]:
    """Return what a copy gets: arguments, callbacks, loggers, position, metrics, module and data module.

    Loaders, optimizers and all that belongs to a process stay behind: a further fit makes them again.
    """
    session, run = trainer._session, trainer.run  # noqa: SLF001  the Trainer asks
    state = {name: value for name, value in vars(trainer).items() if name not in _OF_THIS_PROCESS}
    left = {name: getattr(session, name) for name in ("module", "datamodule", "asked_path", "loaded_path")}
    left["metrics"] = (session.left if run is None else run.results).dictionaries()
    return {**state, "callbacks": list(trainer.callbacks), _LEFT: left}


def restore_state(trainer: Any, state: Mapping[str, Any]) -> None:
    """Make a Trainer of what `state_of` returned."""
    state, trainer.run = dict(state), None
    left = state.pop(_LEFT)
    vars(trainer).update(state)
    trainer._session = session = Session(trainer)  # noqa: SLF001  as above
    trainer.processes = session.processes
    session.left = left_by(left.pop("metrics"))
    for name, value in left.items():
        setattr(session, name, value)
    for owner in (session.module, session.datamodule):
        if owner is not None:
            owner.trainer = trainer
