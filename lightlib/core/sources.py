"""Where loaders come from: arguments, data module or module; data sets and arrays are served."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lightlib import report
from lightlib.core.combined import CombinedLoader, flatten, holds_loaders, length
from lightlib.core.datamodule import DataModule
from lightlib.core.hooks import overrides
from lightlib.core.interface import DataHooks
from lightlib.errors import ArgumentTypeError, MisconfigurationException

__all__ = ["DEFAULT_BATCH_SIZE", "check_given", "check_loaders", "find", "serve"]

DEFAULT_BATCH_SIZE = 32
_NAMES = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}


def check_given(loaders: Mapping[str, Any], datamodule: Any) -> None:
    """Refuse what is no loader and no data module, before anything else happens.

    Raises:
        ArgumentTypeError: A class instead of an instance, or something that cannot be iterated.
        MisconfigurationException: Loaders and a data module together.
    """
    if isinstance(datamodule, type):
        raise ArgumentTypeError(
            f"datamodule is the class {datamodule.__name__}.",
            expected="an instance of it.",
            fix=f"datamodule={datamodule.__name__}()",
        )
    if datamodule is not None and not isinstance(datamodule, DataModule):
        raise ArgumentTypeError(
            f"datamodule is {datamodule!r:.80} ({type(datamodule).__name__}).",
            expected="a lightlib.DataModule.",
            fix="subclass lightlib.DataModule, or pass loaders.",
        )
    given = {name: value for name, value in loaders.items() if value is not None}
    if datamodule is not None and given:
        raise MisconfigurationException(
            f"Both `datamodule` and `{next(iter(given))}` were given.",
            expected="one of the two.",
            fix="leave out one of them.",
        )
    for name, value in given.items():
        if isinstance(value, type):
            raise ArgumentTypeError(
                f"{name} is the class {value.__name__}.",
                expected="an instance of it.",
                fix=f"{name}={value.__name__}(…)",
            )
        if not _is_arrays(value) and not isinstance(value, (Dataset, CombinedLoader)):
            flatten(serve(value, name.split("_")[0], None))


def find(stage: str, given: Any, module: Any, datamodule: Any) -> Any:
    """Return a function that gives the loaders of `stage` ("train", "val", "test", "predict"), or None without any."""
    name = f"{stage}_dataloader"
    size = _wanted_batch_size(module, datamodule)
    if given is not None:
        return lambda: serve(given, stage, size)
    for owner, base in ((datamodule, DataModule), (module, DataHooks)):
        if owner is not None and overrides(owner, base, name):
            return lambda owner=owner: serve(getattr(owner, name)(), stage, size)
    return None


def serve(given: Any, stage: str, batch_size: int | None) -> Any:
    """Return loaders: data sets and arrays are put into a DataLoader, everything else is as it was.

    Args:
        given: A loader, a Dataset, an array, a tuple of arrays, or a collection of loaders and Datasets.
        stage: Training data are shuffled.
        batch_size: What the module or data module says about it. Default: 32.
    """
    if given is None:
        return None
    if _is_arrays(given):
        arrays = given if isinstance(given, tuple) else (given,)
        given = TensorDataset(*(value if isinstance(value, Tensor) else torch.from_numpy(value) for value in arrays))
    if isinstance(given, Dataset):
        size = batch_size or DEFAULT_BATCH_SIZE
        shuffle = stage == "train" and not isinstance(given, IterableDataset)
        how = ", shuffled" if shuffle else ""
        report.info(f"{_NAMES[stage].capitalize()} data: a {type(given).__name__} is served in batches of {size}{how}.")
        return DataLoader(given, batch_size=size, shuffle=shuffle)
    if isinstance(given, CombinedLoader):
        return given.with_loaders([serve(one, stage, batch_size) for one in given.flattened])
    if isinstance(given, Mapping):
        return {key: serve(value, stage, batch_size) for key, value in given.items()}
    if isinstance(given, (list, tuple)) and holds_loaders(given):
        return type(given)(serve(value, stage, batch_size) for value in given)
    return given


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return isinstance(value, Tensor) or (numpy is not None and isinstance(value, numpy.ndarray))


def _is_arrays(value: Any) -> bool:
    return _is_array(value) or (isinstance(value, tuple) and bool(value) and all(map(_is_array, value)))


def _wanted_batch_size(module: Any, datamodule: Any) -> int | None:
    for owner in (datamodule, module):
        for place in (owner, getattr(owner, "hparams", None)):
            size = place.get("batch_size") if isinstance(place, dict) else getattr(place, "batch_size", None)
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                return size
    return None


def check_loaders(loaders: Iterable[Any], stage: str) -> None:
    """Refuse empty loaders, and warn for settings that are often mistakes."""
    for loader in loaders:
        sampler = getattr(loader, "sampler", None)
        if stage != "train" and type(sampler).__name__ == "RandomSampler":
            report.warn(
                f"The {_NAMES[stage]} loader shuffles; its batches differ from run to run.",
                report.PossibleUserWarning,
            )
        if length(loader) == 0:
            raise MisconfigurationException(
                f"The {_NAMES[stage]} loader is empty: its length is 0.",
                expected="at least one batch.",
                fix="check the data set, its split, and drop_last with a batch size larger than the data set.",
            )
