"""NumPy arrays in batches become tensors, and data of arrays or of complete batches become data sets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate, default_convert

from lightlib.data.prefetch import END
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.tree import children, map_children, map_tensors

_KINDS = "biufc"  # bool, int, unsigned, float, complex


def with_tensors(batches: Iterator[Any]) -> Iterator[Any]:
    """Return these batches with tensors in place of NumPy arrays, if the first one holds arrays.

    Otherwise the batches pass unchanged, and no code of ours runs from the second one on.
    """
    return chain.from_iterable(_from_first(batches))


def _from_first(batches: Iterator[Any]) -> Iterator[Iterator[Any]]:
    first = next(batches, END)
    if first is END:
        return
    yield map(as_tensors, chain((first,), batches)) if holds_arrays(first) else chain((first,), batches)


def may_hold_arrays(loader: Any) -> bool:
    """Whether batches of a loader may hold NumPy arrays: torch's collate functions make tensors of them."""
    collate = loader.collate_fn if isinstance(loader, DataLoader) else None
    return collate is not default_collate and collate is not default_convert


def holds_arrays(data: Any) -> bool:
    """Whether `data` holds a NumPy array of numbers, at any depth."""
    numpy = sys.modules.get("numpy")
    if numpy is None or isinstance(data, Tensor):
        return False
    if isinstance(data, numpy.ndarray):
        return data.dtype.kind in _KINDS
    return any(holds_arrays(child) for child in children(data))


def as_tensors(data: Any) -> Any:
    """Return `data` with a tensor in place of each NumPy array of numbers; other arrays stay.

    A tensor shares the memory of its array where torch allows that.

    Example:
        >>> import numpy
        >>> as_tensors({"x": numpy.arange(2), "name": numpy.array(["a"])})
        {'x': tensor([0, 1]), 'name': array(['a'], dtype='<U1')}
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(data, numpy.ndarray):
        return tensor_of(data) if data.dtype.kind in _KINDS else data
    return map_children(as_tensors, data)


def tensor_of(array: Any) -> Any:
    """Return a NumPy array of numbers as a tensor, copied if torch cannot use its memory; else the array itself."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # a dtype that torch lacks
        return array


class Rows(Dataset[Any]):
    """The rows of nested arrays: sample i has row i of each.

    Args:
        data: Tensors with one first dimension, in any nesting.

    Example:
        >>> rows = Rows({"x": torch.arange(6).view(3, 2), "y": torch.arange(3)})
        >>> len(rows), rows[1]
        (3, {'x': tensor([2, 3]), 'y': tensor(1)})
    """

    def __init__(self, data: Any, size: int | None = None) -> None:
        self.data = data
        self._size = len(next(iter(leaves_of(data)))) if size is None else size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return map_tensors(lambda tensor: tensor[index], self.data)


class IndexedBatches(Dataset[Any]):
    """Batches that an object gives by index, as `keras.utils.Sequence` does.

    Args:
        batches: An object with `__getitem__`, which returns a batch, and `__len__`. If it has `on_epoch_end`, that is
            called before each epoch but the first.

    Example:
        >>> class Two:
        ...     def __len__(self):
        ...         return 2
        ...     def __getitem__(self, index):
        ...         return torch.full((3,), index)
        >>> IndexedBatches(Two())[1]
        tensor([1, 1, 1])
    """

    def __init__(self, batches: Any) -> None:
        self.batches, self.epoch = batches, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]

    def set_epoch(self, epoch: int) -> None:
        """Notify the object that an epoch has ended, if this is another one."""
        if epoch != self.epoch and hasattr(self.batches, "on_epoch_end"):
            self.batches.on_epoch_end()
        self.epoch = epoch


class NumpyBatches:
    """The batches of an object with `as_numpy_iterator`, such as a `tf.data.Dataset`.

    Args:
        data: The object; it is read from its start in every epoch.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data.as_numpy_iterator())


def is_array(value: Any) -> bool:
    """Whether `value` is a tensor or a NumPy array."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, Tensor) or (numpy is not None and isinstance(value, numpy.ndarray))


def is_arrays(value: Any) -> bool:
    """Whether `value` is data of arrays: one, a dict of them, or a tuple of arrays and of nested ones, such as (x, y).

    A list is a list of batches, and a tuple without an array of its own a collection of loaders.
    """
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_array, value.values()))
    if isinstance(value, tuple):
        return any(map(is_array, value)) and all(map(_is_nested, value))
    return is_array(value)


def _is_nested(value: Any) -> bool:
    if isinstance(value, (list, tuple, Mapping)):
        return bool(value) and all(map(_is_nested, children(value)))
    return is_array(value)


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the arrays of nested data."""
    if is_array(value):
        yield value
    else:
        for child in children(value):
            yield from leaves_of(child)


def is_indexed(value: Any) -> bool:
    """Whether an object gives batches by index, and cannot be iterated."""
    kind = type(value)
    return hasattr(kind, "__getitem__") and hasattr(kind, "__len__") and not hasattr(kind, "__iter__")


def data_set_of(data: Any, name: str) -> Dataset[Any]:
    """Return a data set of arrays: one, a tuple of them, or nested ones.

    Args:
        data: The arrays.
        name: The name of the data, for errors: "training".

    Raises:
        ArgumentTypeError: An array does not hold numbers.
        MisconfigurationException: They do not have one number of samples.
    """
    arrays = list(leaves_of(data))
    shapes = [tuple(value.shape) for value in arrays]
    if any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        raise MisconfigurationException(
            f"The {name} data are arrays of the shapes {', '.join(map(str, shapes))}.",
            expected="arrays with one first dimension: the number of samples.",
            fix="pass (x, y) with len(x) == len(y).",
        )
    for value in arrays:
        if not isinstance(value if isinstance(value, Tensor) else tensor_of(value), Tensor):
            raise ArgumentTypeError(
                f"The {name} data cannot be made into tensors: an array has the dtype {value.dtype}.",
                expected="arrays of numbers.",
                fix="convert them first, for instance with array.astype('float32').",
            )
    tensors = as_tensors(data)
    if is_array(data):
        return TensorDataset(tensors)
    if isinstance(data, tuple) and all(map(is_array, data)):
        return TensorDataset(*tensors)
    return Rows(tensors)
