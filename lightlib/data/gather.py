"""Gathering: takes each batch of data in memory from its tensors in one call."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from lightlib.torch_private import SingleProcessIterator, collate_tensor_fn, default_collate_fn_map

_ROWS_OF_DTYPES = frozenset(
    (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
)
_LONGEST_ROW = 16_384  # copying longer ones takes so long that the cost of the calls no longer matters
_NOTHING_TO_TAKE = (IndexError, OverflowError, RuntimeError, TypeError, ValueError)
_NAME = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"  # torch's name for it in a profile


def batches_of(loader: Any) -> Iterator[Any]:
    """Iterate a loader.

    A DataLoader without workers takes each sample separately and stacks them. If every component is torch's own and the
    data are rows of tensors in memory, the rows are taken together: the same batches in the same order, with identical
    bits and strides. The iterator and the indices are torch's, with the same random numbers.

    Args:
        loader: Any iterable. Everything but such a DataLoader is iterated as it is.

    Example:
        >>> list(batches_of(DataLoader(TensorDataset(torch.arange(5)), batch_size=3)))
        [[tensor([0, 1, 2])], [tensor([3, 4])]]
    """
    iterator: Any = iter(loader)
    if type(loader) is not DataLoader or type(iterator) is not SingleProcessIterator:
        return iterator  # type: ignore[no-any-return]
    plain = loader.batch_sampler is not None and not loader.pin_memory and _collates_rows(loader.collate_fn)
    levels = _levels(loader.dataset) if plain else []
    if not levels or type(levels[-1].tensors) is not tuple or not all(map(_is_of_rows, levels[-1].tensors)):
        return iterator
    take = _taking(levels, iterator._dataset_fetcher.fetch)  # noqa: SLF001  torch calls it for each batch
    return map(take, iterator._sampler_iter)  # noqa: SLF001  its arguments: then none of torch's Python runs


def _taking(levels: list[Any], as_torch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that makes a batch from a list of indices; `as_torch` handles any other input."""
    *subsets, data = levels
    inner = list(zip(subsets, levels[1:], strict=True))
    autograd: Any = torch.autograd
    numpy = sys.modules.get("numpy")
    kinds = frozenset({int} if numpy is None else {int, numpy.int64})
    tensors_before, is_profiled = data.tensors, autograd._profiler_enabled  # noqa: SLF001  a C function

    def take(indices_given: Any) -> Any:
        tensors, indices = data.tensors, indices_given
        if tensors is not tensors_before or type(indices_given) is not list:
            return as_torch(indices_given)
        try:
            for subset, of in inner:
                if subset.dataset is not of:
                    return as_torch(indices_given)
                indices = list(map(subset.indices.__getitem__, indices))
            if not kinds.issuperset(map(type, indices)):  # a bool, a slice or a list of indices has another meaning
                return as_torch(indices_given)
            rows = torch.frombuffer(array("q", indices), dtype=torch.int64)
            if is_profiled():
                with record_function(_NAME):
                    return [tensor.index_select(0, rows) for tensor in tensors]
            return [tensor.index_select(0, rows) for tensor in tensors]
        except _NOTHING_TO_TAKE:  # an index that counts from the end, or one that torch refuses
            return as_torch(indices_given)

    return take


def _levels(data: Any) -> list[Any]:
    """Return nested Subsets and the TensorDataset within; an empty list for any other data set."""
    levels = [data]
    while type(levels[-1]) is Subset and _is_torchs_own(levels[-1], "__getitem__", "__getitems__"):
        levels.append(levels[-1].dataset)
    if type(levels[-1]) is not TensorDataset or not _is_torchs_own(levels[-1], "__getitem__"):
        return []
    return levels


def _is_torchs_own(data: Any, *methods: str) -> bool:
    kind = type(data)
    here = {name for name in ("__getitem__", "__getitems__") if hasattr(kind, name)}
    of_torch = all(getattr(kind, name).__module__ == kind.__module__ for name in methods)
    return here == set(methods) and of_torch and "__getitems__" not in vars(data)


def _collates_rows(collate: Any) -> bool:
    """Whether tuples of tensors are stacked position by position: users may add types to torch's table."""
    table: Any = default_collate_fn_map
    stacks = collate is default_collate and table.get(Tensor) is collate_tensor_fn
    return stacks and not any(isinstance((), kind) for kind in table)


def _is_of_rows(tensor: Any) -> bool:
    """Whether selecting rows of `tensor` gives the same tensor as stacking them."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in _ROWS_OF_DTYPES
        and tensor[:1].numel() <= _LONGEST_ROW
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not (tensor.is_conj() or tensor.is_neg() or any(getattr(tensor, "names", ())))
    )
