"""Loaders made from data sets, and an explanation of their batches when the first step fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightlib import report
from lightlib.errors import LightlibError

__all__ = ["explain_batch", "loader_of"]

_made: WeakSet[DataLoader[Any]] = WeakSet()


def loader_of(dataset: Dataset[Any], batch_size: int, shuffle: bool) -> DataLoader[Any]:
    """Return a new loader for a data set."""
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=shuffle)
    _made.add(loader)
    return loader


def explain_batch(error: BaseException, loaders: Iterable[Any], batch: Any) -> None:
    """Add a description of the first batch to the error of a step if lightlib made the loader.

    Args:
        error: The error. lightlib's own errors and exits of the program stay unchanged.
        batch: The argument of the step; None if the step was not called.
    """
    if batch is None or isinstance(error, LightlibError) or not isinstance(error, Exception):
        return
    for loader in loaders:
        if isinstance(loader, DataLoader) and loader in _made:
            text = (
                f"The data are a {type(loader.dataset).__name__}, which lightlib serves in batches of "
                f"{loader.batch_size}: a batch is {_described(batch)}."
            )
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(text)
            else:
                report.info(text)
            return


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return "a dict of " + ", ".join(f"{key!r}: {_described(value)}" for key, value in list(batch.items())[:6])
    if isinstance(batch, (list, tuple)):
        return f"a {type(batch).__name__} of {len(batch)}: {', '.join(map(_described, batch[:6]))}"
    return f"a {type(batch).__name__}"
