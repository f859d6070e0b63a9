"""Copies of loaders that read another data set."""

from __future__ import annotations

import copy
from typing import Any


def with_dataset(loader: Any, dataset: Any, **attributes: Any) -> Any:
    """Return a shallow copy of a DataLoader that reads `dataset`, and has no workers yet.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> list(with_dataset(DataLoader([1, 2, 3], batch_size=2), [5, 6, 7]))
        [tensor([5, 6]), tensor([7])]
    """
    copied = copy.copy(loader)
    for name, value in {"dataset": dataset, "_iterator": None, **attributes}.items():
        object.__setattr__(copied, name, value)  # a DataLoader's own __setattr__ refuses some of them
    return copied
