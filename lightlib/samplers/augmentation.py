"""RepeatedAugmentationSampler: each sample several times in a row, augmented differently."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lightlib.errors import check_int
from lightlib.samplers.checks import size_of
from lightlib.samplers.seeded import SeededSampler, shuffled


class RepeatedAugmentationSampler(SeededSampler):
    """Each sample several times in a row, so that a batch has it with several augmentations.

    An epoch has as many samples as the data by default, hence ``1 / repeats`` of the different ones. With several
    processes the repetitions of a sample are in the same step, on different processes (Hoffer et al., 2019).

    Args:
        data: The data set, or any collection with a length.
        repeats: How often each sample is drawn in a row. Default 3.
        num_samples: Samples per epoch, over all processes. Default: the length of the data.
        shuffle: Default True.
        seed: As for :class:`SeededSampler`.

    Raises:
        MisconfigurationException: `data` has no length or no samples, or a number is out of range.

    Example:
        >>> list(RepeatedAugmentationSampler(range(6), repeats=2, shuffle=False))
        [0, 0, 1, 1, 2, 2]
    """

    def __init__(
        self, data: Any, repeats: int = 3, num_samples: int | None = None, *, shuffle: bool = True,
        seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(seed)
        owner = type(self).__name__
        self.size, self.repeats = size_of(owner, data), check_int(owner, "repeats", repeats, 1)
        self.num_samples = self.size if num_samples is None else check_int(owner, "num_samples", num_samples, 1)
        self.shuffle = shuffle

    def __len__(self) -> int:
        return self.num_samples

    def order(self, generator: torch.Generator) -> Iterable[int]:
        """Return `num_samples` indices; after the last sample the order begins again."""
        once = shuffled(self.size, generator if self.shuffle else None).repeat_interleave(self.repeats)
        times = -(-self.num_samples // len(once))
        return once.repeat(times)[: self.num_samples].tolist()
