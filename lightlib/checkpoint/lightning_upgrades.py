"""Upgrades of checkpoints that old versions of Lightning wrote to the layout of Lightning 2.6."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from lightlib.checkpoint.storage.content import OURS

__all__ = ["keeps_no_position", "upgraded"]

# Where each version had what is called "MixedPrecision" now: the state of the loss scaler.
_SCALERS = ("MixedPrecisionPlugin", "NativeMixedPrecisionPlugin", "native_amp_scaling_state")
# Beginnings of keys in a loop's state, and what they became: optimizers' and evaluations' loops lost a level in 2.0.
_LOOPS = {
    "epoch_loop.batch_loop.manual_loop.": "epoch_loop.manual_optimization.",
    "epoch_loop.batch_loop.optimizer_loop.": "epoch_loop.automatic_optimization.",
    "epoch_loop.val_loop.epoch_loop.": "epoch_loop.val_loop.",
}
_EVALUATION_LOOPS = ("validate_loop", "test_loop", "predict_loop")
_WITH_POSITION = Version("1.6")
_LEFT_OUT_OF_KEYS = re.compile(r", 'save_on_train_epoch_end': (None|True|False)")  # of ModelCheckpoint, since 1.9


def keeps_no_position(content: Mapping[str, Any]) -> bool:
    """Whether the version of Lightning that wrote a checkpoint stored no position within an epoch: before 1.6.

    Example:
        >>> keeps_no_position({"pytorch-lightning_version": "1.5.10", "epoch": 1})
        True
    """
    version = _version(content)
    return version is not None and version < _WITH_POSITION and OURS not in content


def upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint in the layout of Lightning 2.6; unchanged if no old version of Lightning wrote it.

    Example:
        >>> old = {"pytorch-lightning_version": "1.5.10", "epoch": 1, "global_step": 4, "native_amp_scaling_state": {}}
        >>> new = upgraded(old)
        >>> sorted(new), new["loops"]["fit_loop"]["epoch_progress"]["current"]["completed"]
        (['MixedPrecision', 'epoch', 'global_step', 'loops', 'pytorch-lightning_version'], 1)
    """
    version = _version(content)
    if version is None or version.major > 2 or OURS in content:
        return content
    new = dict(content)
    for key in _SCALERS:
        if key in new:
            new.setdefault("MixedPrecision", new.pop(key))
    if isinstance(callbacks := new.get("callbacks"), Mapping):
        new["callbacks"] = {_callback_key(key): state for key, state in callbacks.items()}
    loops = new.get("loops")
    if isinstance(loops, Mapping):
        new["loops"] = {name: _loop(name, loop) for name, loop in loops.items()}
    elif version < _WITH_POSITION and isinstance(new.get("epoch"), int):
        _add_position(new)
    return new


def _version(content: Mapping[str, Any]) -> Version | None:
    written = content.get("pytorch-lightning_version")
    try:
        return Version(written) if isinstance(written, str) else None
    except InvalidVersion:
        return None


def _callback_key(key: Any) -> Any:
    """Return the name of a callback's state: before 1.5 it was the class."""
    if isinstance(key, type):
        return key.__name__
    if isinstance(key, str) and key.startswith("ModelCheckpoint{"):
        return _LEFT_OUT_OF_KEYS.sub("", key)
    return key


def _loop(name: str, state: Any) -> Any:
    if not isinstance(state, Mapping):
        return state
    if name in _EVALUATION_LOOPS:
        renamed = {key.removeprefix("epoch_loop."): value for key, value in state.items()}
        renamed.pop("dataloader_progress", None)
        return renamed
    new = {}
    for key, value in state.items():
        old = next((prefix for prefix in _LOOPS if key.startswith(prefix)), None)
        new[key if old is None else _LOOPS[old] + key.removeprefix(old)] = value
    for key in ("epoch_loop.batch_loop.state_dict", "epoch_loop.val_loop.dataloader_progress"):
        new.pop(key, None)
    return new


def _add_position(content: dict[str, Any]) -> None:
    """Add the position that versions before 1.6 lack; they counted a running epoch as complete, and steps by batch."""
    epochs = dict.fromkeys(("ready", "started", "processed", "completed"), content["epoch"])
    progress = {"total": epochs, "current": dict(epochs)}
    content["loops"] = {"fit_loop": {"epoch_progress": progress}}
    if isinstance(step := content.get("global_step"), int):
        optimizers = content.get("optimizer_states")
        content["global_step"] = step * max(len(optimizers) if isinstance(optimizers, (list, tuple)) else 1, 1)
