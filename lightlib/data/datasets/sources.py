"""Sources of a mixture: the forms in which they are given, checked and put into one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lightlib.data.datasets.reader import is_stream
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, check_number, shown

_OWNER = "MixtureDataset"
_FIX = f'{_OWNER}({{"web": web, "code": code}}, {{"web": 0.7, "code": 0.3}})'


class Sources(NamedTuple):
    """The sources of a mixture: those with a weight above 0.

    Attributes:
        data: The data sets by name: the key of a mapping of names, else "0", "1", ….
        weights: Theirs, as given.
        stream: Whether they can only be iterated.
    """

    data: dict[str, Any]
    weights: list[float]
    stream: bool


def sources_of(given: Any, weights: Any) -> Sources:
    """Return the sources, in the forms that `MixtureDataset` accepts.

    Raises:
        MisconfigurationException: They are none, one has no samples or no weight, or streams and map-style data sets
            are mixed.
    """
    data, weights = _separated(given, weights)
    for name, weight in zip(data, weights, strict=True):
        check_number(_OWNER, f"weights[{name!r}]", weight, least=0, below=math.inf, fix=_FIX)
    streams = {name: _is_stream(name, source) for name, source in data.items()}
    if not any(weights):
        raise MisconfigurationException(
            f"{_OWNER} got the weights {weights}, which sum to 0.", expected="a weight above 0.", fix=_FIX
        )
    if len(set(streams.values())) > 1:
        raise MisconfigurationException(
            f"{_OWNER}: {next(name for name in streams if streams[name])!r} can only be iterated, and "
            f"{next(name for name in streams if not streams[name])!r} is read by index.",
            expected="either streams or map-style data sets.",
            fix="an IterableDataset that yields the samples of each map-style data set; "
            "to_iterable_dataset() in Hugging Face's datasets.",
        )
    used = {name: weight for name, weight in zip(data, weights, strict=True) if weight}
    return Sources({name: data[name] for name in used}, list(used.values()), any(streams.values()))


def _separated(sources: Any, weights: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the data sets by name, and the weights."""
    if not isinstance(sources, (Mapping, Sequence)) or isinstance(sources, str):
        raise ArgumentTypeError(
            f"{_OWNER}({shown(sources)}).", expected="a mapping of data sets, or a list of them.", fix=_FIX
        )
    if weights is None and isinstance(sources, Mapping) and not any(isinstance(key, str) for key in sources):
        sources = list(sources.items())
    if isinstance(sources, Mapping):
        data = {str(name): source for name, source in sources.items()}
    else:
        are_pairs = weights is None and all(isinstance(pair, tuple) and len(pair) == 2 for pair in sources)
        weights = [weight for _, weight in sources] if are_pairs else weights
        data = {str(number): source[0] if are_pairs else source for number, source in enumerate(sources)}
    if isinstance(weights, Mapping):
        for name in weights.keys() - data.keys():
            raise UnknownNameError("source of a mixture", name, data, fix="use the names of the data sets in weights.")
        weights = [weights[name] for name in data if name in weights]
    weights = [1] * len(data) if weights is None else list(weights)
    if len(weights) != len(data) or not data:
        raise MisconfigurationException(
            f"{_OWNER} got {len(data)} data sets and {len(weights)} weights.",
            expected="one data set at least, and a weight for each, or none for equal weights.",
            fix=_FIX,
        )
    return data, weights


def _is_stream(name: str, data: Any) -> bool:
    """Whether a source can only be iterated; it has to be a data set with samples."""
    where = f"{_OWNER}: the source {name!r}"
    if hasattr(data, "__next__") or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise ArgumentTypeError(
            f"{where} is {shown(data)}.", expected="a data set, which each pass reads from its start.", fix=_FIX
        )
    if is_stream(data):
        return True
    if not hasattr(data, "__len__") or not len(data):
        raise MisconfigurationException(
            f"{where} has no {'samples' if hasattr(data, '__len__') else 'length'}.",
            expected="a length, and one sample at least.",
            fix=f"check {name!r}, or leave it out.",
        )
    return False
