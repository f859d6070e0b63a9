"""Internals of Lightning that real projects read: views of lightlib's objects, and their users.

| name | needed by |
|---|---|
| `trainer._accelerator_connector` | optuna, darts (`is_distributed`); scvi, rl4co, nequip (the class) |
| `trainer.fit_loop.epoch_loop.val_loop._data_source` | gluonts |
| `trainer._checkpoint_connector.dump_checkpoint` | mlflow, NeMo |
| `_EvaluationLoop`, `trainer.test_loop = …` | torch-uncertainty; `trainer._evaluation_loop`: lightning-ir |
| `trainer.predict_loop.current_batch_indices`, … | pytorch-forecasting, careamics |
| `trainer.fit_loop.max_epochs`, `epoch_progress`, … | recipes in forums and in Lightning's documentation |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightlib_lightning.internals import connectors, loops
from lightlib_lightning.internals.served import absent

__all__ = ["get", "set_by_user"]


def _active_loop(trainer: Any) -> Any:
    if trainer.training:
        return loops.FitLoop(trainer)
    if trainer.predicting:
        return loops.PredictionLoop(trainer)
    return None if trainer.state.stage is None else _evaluation_loop(trainer)


def _evaluation_loop(trainer: Any) -> Any:
    """Return the loop of a call of validate or test, which a user may have set, or the validation within fit."""
    fn = trainer.state.fn
    if fn in ("validate", "test"):
        return getattr(trainer, f"{fn}_loop")
    if fn != "fit":
        raise RuntimeError("The `Trainer._evaluation_loop` property isn't defined. Accessed outside of scope")
    return loops.EvaluationLoop.of(trainer, fn, "sanity_check" if trainer.sanity_checking else "validate")


_OF_TRAINER: dict[str, Callable[[Any], Any]] = {
    "fit_loop": loops.FitLoop,
    "validate_loop": lambda trainer: loops.EvaluationLoop.of(trainer, "validate", "validate"),
    "test_loop": lambda trainer: loops.EvaluationLoop.of(trainer, "test", "test"),
    "predict_loop": loops.PredictionLoop,
    "_accelerator_connector": connectors.AcceleratorConnector.of,
    "_checkpoint_connector": connectors.CheckpointConnector,
    "_data_connector": connectors.DataConnector,
    "_logger_connector": connectors.LoggerConnector,
    "_callback_connector": connectors.CallbackConnector,
    "_signal_connector": connectors.SignalConnector,
    "_evaluation_loop": _evaluation_loop,
    "_active_loop": _active_loop,
    "_detect_anomaly": lambda trainer: trainer.settings.detect_anomaly,
}


def get(owner: Any, name: str) -> Any:
    """Return an attribute of Lightning's Trainer that lightlib's does not have.

    Raises:
        AttributeError: compat does not provide it.
    """
    make = _OF_TRAINER.get(name)
    if make is None:
        raise AttributeError(
            absent(type(owner).__name__, name, sorted(_OF_TRAINER))
            if name.startswith("_")
            else f"'{type(owner).__name__}' object has no attribute {name!r}.",
            name=name,
            obj=owner,
        )
    return make(owner)


def set_by_user(owner: Any, name: str, value: Any) -> None:
    """Set such an attribute: `validate_loop` and `test_loop` print by their own method."""
    if name in ("validate_loop", "test_loop"):
        loops.use_loop(owner, name, value)
    else:
        raise AttributeError(absent(type(owner).__name__, f"{name} = …", ["validate_loop = …", "test_loop = …"]))
