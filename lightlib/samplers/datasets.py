"""Data sets with the samples of another one: repeated, those of rare classes repeated, or a part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils.data import Dataset, Subset

from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_int, check_number, shown
from lightlib.samplers.checks import size_of


class RepeatDataset(Dataset[Any]):
    """Another data set several times in a row: an epoch with more samples, and fewer starts of workers.

    Args:
        dataset: A map-style data set.
        times: How often.

    Raises:
        MisconfigurationException: `dataset` has no length or no samples, or `times` is no int >= 1.

    Example:
        >>> repeated = RepeatDataset(["a", "b"], times=2)
        >>> [repeated[i] for i in range(len(repeated))]
        ['a', 'b', 'a', 'b']
    """

    def __init__(self, dataset: Any, times: int) -> None:
        super().__init__()
        owner = type(self).__name__
        self.dataset, self.times = dataset, check_int(owner, "times", times, 1)
        self._size = size_of(owner, dataset)

    def __len__(self) -> int:
        return self._size * self.times

    def __getitem__(self, index: int) -> Any:
        return self.dataset[_within(index, len(self)) % self._size]

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch of the other data set, if that has `set_epoch`."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)


class ClassBalancedDataset(Dataset[Any]):
    """Another data set with the samples of rare classes repeated, by the repeat factors of Gupta et al. (LVIS, 2019).

    A class that a fraction f of the samples has gets the factor ``max(1, sqrt(threshold / f))``; a sample with several
    classes gets the largest of their factors, rounded up, and is there so many times, in a row.

    Args:
        dataset: A map-style data set.
        threshold: Classes in a smaller fraction of the samples are repeated: a number > 0 and <= 1.
        classes: For each sample its class, or a collection of its classes; a sample without a class is there once.
            Default: ``dataset.get_cat_ids(index)``, or ``dataset.targets``.

    Raises:
        MisconfigurationException: The classes are unknown or too few, or `threshold` is out of range.

    Example:
        >>> data = ClassBalancedDataset("aaab", threshold=0.5, classes=[0, 0, 0, 1])
        >>> [data[i] for i in range(len(data))]  # sqrt(0.5 / 0.25) = 1.41, so twice
        ['a', 'a', 'a', 'b', 'b']
    """

    def __init__(self, dataset: Any, threshold: float, classes: Any = None) -> None:
        super().__init__()
        owner = type(self).__name__
        check_number(owner, "threshold", threshold, above=0, most=1, fix=f"{owner}(dataset, threshold=0.01)")
        self.dataset, self.threshold = dataset, threshold
        of_samples = _classes_of(owner, dataset, size_of(owner, dataset), classes)
        counts = Counter(label for several in of_samples for label in several)
        factors = {label: max(1.0, math.sqrt(threshold * len(of_samples) / n)) for label, n in counts.items()}
        self.indices = [
            index
            for index, several in enumerate(of_samples)
            for _ in range(math.ceil(max((factors[label] for label in several), default=1.0)))
        ]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch of the other data set, if that has `set_epoch`."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)


def limit_samples(dataset: Any, limit: int | Sequence[int]) -> Dataset[Any]:
    """Return a part of a data set, to debug with less data or to train on chosen samples.

    Args:
        dataset: A map-style data set.
        limit: A number of samples, the first ones, or with a negative number the last ones; or the indices of samples.

    Raises:
        MisconfigurationException: `dataset` has no length, or `limit` is 0, of another type, or beyond the data set.

    Example:
        >>> [list(limit_samples(range(10, 20), limit)) for limit in (3, -2, [0, 5])]
        [[10, 11, 12], [18, 19], [10, 15]]
    """
    size = size_of("limit_samples", dataset)
    if isinstance(limit, int) and not isinstance(limit, bool) and limit:
        indices: Sequence[int] = range(min(limit, size)) if limit > 0 else range(max(0, size + limit), size)
    else:
        indices = _chosen(limit)
    if len(indices) and not -size <= min(indices) <= max(indices) < size:
        raise MisconfigurationException(
            f"limit_samples got indices from {min(indices)} to {max(indices)} for {size} samples.",
            expected=f"indices below {size}.",
            fix=f"limit_samples(dataset, range({size}))",
        )
    return Subset(dataset, indices)


def _chosen(limit: Any) -> Sequence[int]:
    """Return the indices of a limit that is no number."""
    values = limit.tolist() if hasattr(limit, "tolist") else limit
    sequence = isinstance(values, (Sequence, range)) and not isinstance(values, str)
    if not sequence or not values or any(isinstance(value, bool) or not isinstance(value, int) for value in values):
        number = isinstance(limit, int) and not isinstance(limit, bool)
        kind = MisconfigurationException if number or (sequence and not values) else ArgumentTypeError
        raise kind(
            f"limit_samples got {shown(limit)}.",
            expected="a number of samples other than 0, or a list of their indices.",
            fix="limit_samples(dataset, 5000)",
        )
    return values  # type: ignore[no-any-return]


def _within(index: int, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of range for {size} samples")
    return index


def _classes_of(owner: str, dataset: Any, size: int, classes: Any) -> list[frozenset[Any]]:
    """Return the classes of each sample."""
    if classes is None and hasattr(dataset, "get_cat_ids"):
        classes = [dataset.get_cat_ids(index) for index in range(size)]
    if classes is None:
        classes = getattr(dataset, "targets", None)
    if not isinstance(classes, Iterable):
        raise ArgumentTypeError(
            f"{owner} does not know the classes of {shown(dataset)}: "
            + ("it has neither get_cat_ids nor targets." if classes is None else f"classes={shown(classes)}."),
            expected="for each sample its class, or a collection of its classes.",
            fix=f"{owner}(dataset, threshold, classes=[label for _, label in dataset])",
        )
    label_sets = [_as_set(labels) for labels in (classes.tolist() if hasattr(classes, "tolist") else classes)]
    if len(label_sets) != size:
        raise MisconfigurationException(
            f"{owner} got classes of {len(label_sets)} samples for a data set of {size}.",
            expected="one entry for each sample.",
            fix=f"{owner}(dataset, threshold, classes=[label for _, label in dataset])",
        )
    return label_sets


def _as_set(value: Any) -> frozenset[Any]:
    value = value.tolist() if hasattr(value, "tolist") else value
    return frozenset(value) if isinstance(value, Iterable) and not isinstance(value, str) else frozenset((value,))
