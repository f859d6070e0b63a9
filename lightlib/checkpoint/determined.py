"""Checkpoints of Determined: reads their layout as Lightning's, and writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lightlib.errors import CheckpointError

__all__ = ["from_determined", "is_determined", "to_determined"]

_MODELS = "models_state_dict"
_LISTS = {"optimizers_state_dict": "optimizer_states", "lr_schedulers_state_dict": "lr_schedulers"}
_SCALER = "scaler_state_dict"
_WRAPPED = "module."  # names of a model that DistributedDataParallel had wrapped
_NUMBERED = re.compile(r"models\.(\d+)\.(.+)", re.DOTALL)


def is_determined(content: Any) -> bool:
    """Whether a file of Determined's PyTorchTrial has this content.

    Example:
        >>> is_determined({"models_state_dict": [{}]}), is_determined({"state_dict": {}})
        (True, False)
    """
    return isinstance(content, Mapping) and _MODELS in content and "state_dict" not in content


def from_determined(content: dict[str, Any]) -> dict[str, Any]:
    """Return such a content in the layout of Lightning; any other content unchanged.

    The names of one model stay; those of several begin with ``models.0.``, ``models.1.``, as in a
    `torch.nn.ModuleList`. There is no position in the file: a run resumes at epoch 0. States of random generators are
    left out.

    Raises:
        CheckpointError: An entry has another type.

    Example:
        >>> file = {"models_state_dict": [{"w": 1}, {"w": 2}], "optimizers_state_dict": [], "callbacks": {}}
        >>> from_determined(file)["state_dict"]
        {'models.0.w': 1, 'models.1.w': 2}
    """
    if not is_determined(content):
        return content
    models = _states(content, _MODELS)
    weights = [_unwrapped(model) for model in models]
    several = len(weights) > 1
    state = {
        f"models.{number}.{name}" if several else name: value
        for number, model in enumerate(weights)
        for name, value in model.items()
    }
    callbacks = content.get("callbacks", {})
    if not isinstance(callbacks, Mapping):
        raise _wrong("callbacks", callbacks, "a dict")
    counts = dict.fromkeys(("ready", "started", "processed", "completed"), 0)
    converted = {
        "epoch": 0,
        "global_step": 0,
        "state_dict": state,
        "loops": {"fit_loop": {"epoch_progress": {"total": dict(counts), "current": dict(counts)}}},
        "callbacks": dict(callbacks),
        **{ours: [dict(state) for state in _states(content, theirs)] for theirs, ours in _LISTS.items()},
    }
    if _SCALER in content:
        converted["MixedPrecision"] = content[_SCALER]
    return converted


def to_determined(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a content in the layout of Determined: four entries; the reverse of `from_determined`.

    Example:
        >>> list(to_determined({"state_dict": {"w": 1}}))
        ['models_state_dict', 'optimizers_state_dict', 'lr_schedulers_state_dict', 'callbacks']
    """
    weights: Mapping[str, Any] = content["state_dict"]
    matches = {name: _NUMBERED.fullmatch(name) for name in weights}
    models: dict[int, dict[str, Any]] = {}
    for name, match in matches.items():
        number, key = (int(match[1]), match[2]) if match is not None and all(matches.values()) else (0, name)
        models.setdefault(number, {})[key] = weights[name]
    return {
        _MODELS: [models[number] for number in sorted(models)],
        **{theirs: list(content.get(ours, ())) for theirs, ours in _LISTS.items()},
        "callbacks": dict(content.get("callbacks", {})),
    }


def _states(content: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    states = content.get(key, ())
    if not isinstance(states, (list, tuple)) or not all(isinstance(state, Mapping) for state in states):
        raise _wrong(key, states, "a list of states")
    return states


def _unwrapped(model: Mapping[str, Any]) -> dict[str, Any]:
    wrapped = bool(model) and all(str(name).startswith(_WRAPPED) for name in model)
    return {str(name).removeprefix(_WRAPPED) if wrapped else str(name): value for name, value in model.items()}


def _wrong(key: str, value: object, expected: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint of Determined is damaged: its {key!r} is a {type(value).__name__}.",
        expected=f"{expected}, as Determined's PyTorchTrial writes it.",
        fix="use another checkpoint.",
    )
