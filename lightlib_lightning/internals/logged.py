"""Private functions of Lightning's loggers; dvclive and other loggers of third parties call them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lightlib.loggers.hyperparameters import flatten

__all__ = ["add_prefix", "convert_params", "flatten_dict", "sanitize_callable_params", "sanitize_params",
           "scan_checkpoints", "version"]  # fmt: skip


def add_prefix(metrics: Mapping[str, Any], prefix: str, separator: str) -> Mapping[str, Any]:
    """Return the metrics with a prefix before each name: `_add_prefix`.

    Example:
        >>> add_prefix({"loss": 1.0}, "train", "-"), add_prefix({"loss": 1.0}, "", "-")
        ({'train-loss': 1.0}, {'loss': 1.0})
    """
    return {f"{prefix}{separator}{name}": value for name, value in metrics.items()} if prefix else metrics


def convert_params(params: Any) -> dict[str, Any]:
    """Return hyperparameters as a dict, also those of a Namespace: `_convert_params`."""
    if isinstance(params, Namespace):
        return vars(params)
    return {} if params is None else params


def sanitize_callable_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with the result of each callable in its place: `_sanitize_callable_params`.

    Of a callable that needs arguments the name is kept; None where a call fails or gives a callable again.
    """

    def value_of(value: Any) -> Any:
        if not callable(value):
            return value
        try:
            result = value()
        except TypeError:
            return getattr(value, "__name__", None)
        except Exception:  # noqa: BLE001  the user's callable may raise anything
            return None
        return None if callable(result) else result

    return {name: value_of(value) for name, value in params.items()}


def flatten_dict(params: Any, delimiter: str = "/", parent_key: str = "") -> dict[str, Any]:
    """Return nested parameters as one dict with joined names: `_flatten_dict`.

    Example:
        >>> flatten_dict({"a": {"b": 1}}, ".")
        {'a.b': 1}
    """
    flat: dict[str, Any] = {}
    for name, value in params.items():
        path = f"{parent_key}{delimiter}{name}" if parent_key else str(name)
        inner = vars(value) if isinstance(value, Namespace) else value
        flat |= flatten_dict(inner, delimiter, path) if isinstance(inner, Mapping) else {path: value}
    return flat


def sanitize_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters as numbers, strings and tensors: `_sanitize_params`."""
    kept = {name: value for name, value in params.items() if isinstance(value, torch.Tensor)}
    return {**flatten({name: value for name, value in params.items() if name not in kept}), **kept}


def scan_checkpoints(checkpoint_callback: Any, logged_model_time: Mapping[str, float]) -> list[tuple[Any, ...]]:
    """Return the files of a ModelCheckpoint that are new or have changed, oldest first: `_scan_checkpoints`.

    Args:
        logged_model_time: The time of each file as it was uploaded last.

    Returns:
        For each the time of its file, its path, its score, and "latest", "best" or "best_k".
    """
    checkpoints: dict[str, tuple[Any, str]] = {}
    for path, score, tag in (
        ("last_model_path", "current_score", "latest"), ("best_model_path", "best_model_score", "best")
    ):  # fmt: skip
        if hasattr(checkpoint_callback, path):
            checkpoints[str(getattr(checkpoint_callback, path))] = getattr(checkpoint_callback, score, None), tag
    for path, score in getattr(checkpoint_callback, "best_k_models", {}).items():
        checkpoints[str(path)] = score, "best_k"
    files = [(Path(path).stat().st_mtime, path, *rest) for path, rest in checkpoints.items() if Path(path).is_file()]
    new = [file for file in files if logged_model_time.get(file[1], -1.0) < file[0]]
    return sorted(new, key=lambda path_and_score: path_and_score[:2])


def version(loggers: list[Any], separator: str = "_") -> Any:
    """Return the version of one logger, or those of several joined: `_version`."""
    return (
        loggers[0].version
        if len(loggers) == 1
        else separator.join(dict.fromkeys(str(logger.version) for logger in loggers))
    )
