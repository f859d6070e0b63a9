"""BatchSize: how many samples a batch has, by its tensors, its lists and its loader's batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lightlib import report
from lightlib.tree import children

_SCALARS = (str, bytes, Number, type(None))


class Sizes(NamedTuple):
    """The numbers that may be the size of a batch.

    Attributes:
        numbers: At least one, by the place in the batch that each is read from.
        default: The likeliest place.
        certain: Whether the structure leaves no doubt about it.
    """

    numbers: dict[str, int]
    default: str
    certain: bool = True


class BatchSize:
    """Returns the number of samples of each batch of a stage.

    Where the structure of a batch allows several numbers, the one that is the loader's batch size decides how this and
    all later batches are read.

    Args:
        loaders: The size of a full batch of each loader; None where it is unknown.
        parts: Returns the batches of the loaders that a batch is combined of; None if it comes from one loader.

    Attributes:
        chosen: By loader, the place that its batches are read from.
    """

    def __init__(self, loaders: Sequence[int | None] = (), parts: Callable[[Any], Iterable[Any]] | None = None) -> None:
        self._loaders, self._parts = loaders, parts
        self.chosen: dict[int, str] = {}

    def expect(self, loaders: Sequence[int | None], parts: Callable[[Any], Iterable[Any]] | None) -> None:
        """Read batches of other loaders from now on, where they allow it in the same way."""
        self._loaders, self._parts = loaders, parts

    def choose(self, chosen: Mapping[int, str]) -> None:
        """Read batches as the run did that is being resumed."""
        self.chosen = dict(chosen)

    def __call__(self, batch: Any, loader: int = 0) -> int:
        """Return the size of a batch of this loader; of combined batches, the size of the first."""
        if self._parts is None:
            return self._size(batch, loader)
        sizes = [self._size(part, i) for i, part in enumerate(self._parts(batch)) if part is not None]
        if len(set(sizes)) > 1:
            _warn(f"The batches of the loaders differ in size ({' and '.join(map(str, sizes))})", sizes[0])
        return sizes[0] if sizes else 1

    def _size(self, batch: Any, loader: int) -> int:
        if (size := _of_usual_batch(batch)) is not None:
            return size
        numbers, place, certain = possible_sizes(batch)
        if (chosen := self.chosen.get(loader)) in numbers:
            return numbers[chosen]
        full = self._loaders[loader] if loader < len(self._loaders) else None
        fitting = place if numbers[place] == full else next((key for key in numbers if numbers[key] == full), None)
        if fitting is not None:  # [x, y] with one sample each looks like two samples of one number
            self.chosen[loader] = place = fitting
        elif not certain:
            size, kind = numbers[place], place.split()[0]
            likeliest_first = sorted(numbers, key=lambda key: (numbers[key] != size, not key.startswith(kind)))
            shown = " and ".join(map(str, list(dict.fromkeys(numbers[key] for key in likeliest_first))[:2]))
            _warn(f"The batch holds tensors or lists whose first dimensions differ ({shown})", size)
        return numbers[place]


def _of_usual_batch(batch: Any) -> int | None:
    """Return the size of a list of tensors with one first dimension and different numbers of them, with few calls."""
    if type(batch) is not list and type(batch) is not tuple:
        return None
    size: int | None = None
    fewest = most = 0
    for tensor in batch:
        if type(tensor) is not Tensor or not (ndim := tensor.ndim) or size not in (None, tensor.size(0)):
            return None
        size = tensor.size(0)
        fewest, most = (ndim if not fewest or ndim < fewest else fewest), (max(most, ndim))
    return size if fewest < most else None  # else it may be a list of samples


def _warn(why: str, size: int) -> None:
    report.warn(
        f"{why}, so the batch size by which logged means are weighted was guessed as {size}.\n"
        "  Expected: one number of samples, first in each tensor of the batch, or as the length of a list of samples.\n"
        "  Fix: self.log(…, batch_size=…).",
        report.PossibleUserWarning,
    )


def possible_sizes(batch: Any) -> Sizes:
    """Return the numbers that may be the size of a batch.

    Tensors count with their first dimension, and nothing below them is looked at. A list of samples counts its entries,
    as do lists of samples within a mapping. Where neither is found, the size is 1.

    Example:
        >>> import torch
        >>> possible_sizes([torch.zeros(4, 2), torch.zeros(4)]).numbers
        {'tensor': 4}
        >>> possible_sizes([{"image": torch.zeros(3, 8, 8), "label": 1}] * 5).numbers
        {'entries': 5}
    """
    size = _own_size(batch)
    if size is not None:
        return _only("tensor", size)
    if not _is_plain_sequence(batch):
        return _of_record(list(_fields(batch)))
    if not batch:
        return _only("entries", 0)
    entry_sizes = [size for size in map(_own_size, batch) if size is not None]
    if len(entry_sizes) == len(batch):
        return _of_tensors(batch, entry_sizes)
    if not entry_sizes and _are_samples(batch):
        return _of_samples(batch)
    if all(map(_is_scalar, batch)):
        return Sizes({"sample": 1, "entries": len(batch)}, "sample")  # of several numbers, or one number each
    return _of_record(batch, len(batch))


def _only(place: str, size: int) -> Sizes:
    return Sizes({place: size}, place)


def _numbered(name: str, sizes: Sequence[int]) -> dict[str, int]:
    """Return the sizes by names: one name if all are equal."""
    if len(set(sizes)) == 1:
        return {name: sizes[0]}
    return {f"{name} {i}": size for i, size in enumerate(sizes)}


def _of_tensors(batch: Sequence[Any], sizes: list[int]) -> Sizes:
    """Return the sizes of a list of tensors: inputs and targets, or, rarely, one tensor for each sample."""
    tensors = _numbered("tensor", sizes)
    first = next(iter(tensors))
    of_samples = len({getattr(value, "ndim", 0) for value in batch}) == 1
    entries = {"entries": len(batch)} if of_samples and set(sizes) != {len(batch)} else {}
    return Sizes(entries | tensors, first, certain=len(tensors) == 1)


def _of_samples(batch: Sequence[Any]) -> Sizes:
    """Return the sizes of a list of samples, which might be the batches of several parts of a data set."""
    number, stacked = len(batch), _common_size(batch)
    values = (value for sample in batch for value in ([sample] if _is_scalar(sample) else _fields(sample)))
    if stacked is None or stacked == number or any(map(_is_scalar, values)):
        return _only("entries", number)
    return Sizes({"entries": number, "stacked": stacked}, "entries", certain=False)


def _of_record(fields: Sequence[Any], entries: int | None = None) -> Sizes:
    """Return the sizes of a mapping, an object, or a sequence of `entries` different values."""
    field_sizes = [size for size in map(_own_size, fields) if size is not None]
    lists = [value for value in fields if _is_plain_sequence(value) and value]
    lengths = _numbered("list", [len(value) for value in lists])
    if field_sizes:
        tensors = _numbered("tensor", field_sizes)
        lengths = lengths if {*field_sizes} != {*lengths.values()} else {}
        return Sizes(tensors | lengths, next(iter(tensors)), certain=len(tensors) == 1)
    if lists:
        return _of_lists(lists, lengths, entries)
    below = [possible_sizes(value) for value in fields if not _is_scalar(value) and not _is_plain_sequence(value)]
    if len(below) < 2:
        return below[0] if below else _only("sample", 1)
    likeliest = _numbered("part", [sizes.numbers[sizes.default] for sizes in below])
    others = {f"part {i} {name}": size for i, sizes in enumerate(below) for name, size in sizes.numbers.items()}
    certain = len(likeliest) == 1 and all(sizes.certain for sizes in below)
    return Sizes(likeliest if certain else likeliest | others, next(iter(likeliest)), certain)


def _of_lists(lists: Sequence[Any], lengths: dict[str, int], entries: int | None) -> Sizes:
    """Return the sizes of lists without a tensor above them: of samples, or of tensors that hold a batch each."""
    common = _common_size(lists)
    stacked = {} if common is None else {"stacked": common}
    first, *others = lengths
    outer = {} if entries is None else {"entries": entries}
    if others:
        numbers = stacked | outer | lengths
        return Sizes(numbers, next(iter(numbers)), certain=bool(stacked or outer))
    if not all(_own_size(value) is not None for each in lists for value in each):
        return Sizes(lengths if stacked or not outer else lengths | outer, first)
    if common in (None, lengths[first]):
        return Sizes(lengths, first)
    if outer and all(isinstance(each, list) for each in lists):  # as torch collates nested samples
        return Sizes(stacked | lengths, "stacked")
    return Sizes(lengths | stacked, first, certain=False)


def _are_samples(batch: Sequence[Any]) -> bool:
    """Whether the entries of a list look like samples: mappings or objects of one kind, tuples, or plain values."""
    first = batch[0]
    if isinstance(first, Mapping):
        return all(isinstance(each, Mapping) and (each.keys() & first.keys() or not first) for each in batch)
    if isinstance(batch, list) and _is_scalar(first):
        return all(map(_is_scalar, batch))
    if _is_plain_sequence(first):
        return isinstance(batch, list) and all(isinstance(each, tuple) for each in batch)
    return not _is_scalar(first) and all(type(each) is type(first) for each in batch)


def _own_size(value: Any) -> int | None:
    """Return the first dimension of a tensor or an array, or the number of samples that an object states."""
    if isinstance(value, Tensor):
        return int(value.size(0)) if value.ndim else None
    if type(value) in (list, tuple, dict) or isinstance(value, (*_SCALARS, type)):
        return None
    if isinstance(value, PackedSequence):
        return int(value.batch_sizes[0])
    for name in ("batch_size", "num_graphs", "shape"):  # of graphs, of tensor dicts, of arrays
        stated = _attribute(value, name)
        stated = stated[0] if isinstance(stated, tuple) and stated else stated
        if isinstance(stated, int) and not isinstance(stated, bool):
            return stated
    return None


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001  an object of the user's: its property or __getattr__ may raise anything
        return None


def _fields(value: Any) -> Iterable[Any]:
    """Return the direct children of a container, and the attributes of any other object."""
    fields = list(children(value))
    if fields or isinstance(value, (list, tuple, Mapping, nn.Module, type)):
        return fields
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def _common_size(data: Any) -> int | None:
    """Return the first dimension that all tensors in `data` have; None if there are none, or they differ."""
    common: int | None = None
    for size in _sizes_in(data, set()):
        if common is not None and size != common:
            return None
        common = size
    return common


def _sizes_in(data: Any, ids: set[int]) -> Iterator[int]:
    for value in _fields(data):
        size = _own_size(value)
        if size is not None:
            yield size
        elif not _is_scalar(value) and id(value) not in ids:
            ids.add(id(value))  # an object may refer to itself
            yield from _sizes_in(value, ids)


def _is_plain_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, _SCALARS) or (isinstance(value, Tensor) and not value.ndim)
