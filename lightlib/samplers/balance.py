"""ClassBalancedSampler: as many samples of each class in every epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lightlib.errors import check_int
from lightlib.samplers.checks import numbers_of
from lightlib.samplers.seeded import SeededSampler, shuffled


class ClassBalancedSampler(SeededSampler):
    """As many samples of each class in every epoch, in random order.

    The samples of a class are drawn without repetition until all have been drawn; a rare class is repeated. The numbers
    of samples of two classes differ by one at most. To draw by weights of your own, use torch's WeightedRandomSampler,
    which resumes as well.

    Args:
        classes: The class of each sample, as whole numbers: ``dataset.targets``.
        num_samples: Samples per epoch, over all processes. Default: the number of samples.
        seed: As for :class:`SeededSampler`.

    Raises:
        MisconfigurationException: `classes` are no whole numbers, or another argument is out of range.

    Example:
        >>> classes = [0, 0, 0, 0, 0, 1]
        >>> sorted(classes[i] for i in ClassBalancedSampler(classes))
        [0, 0, 0, 1, 1, 1]
    """

    def __init__(self, classes: Any, num_samples: int | None = None, *, seed: int | None = None) -> None:
        super().__init__(seed)
        owner = type(self).__name__
        self.classes = numbers_of(owner, "classes", classes)
        self.num_samples = len(self.classes) if num_samples is None else check_int(owner, "num_samples", num_samples, 1)

    def __len__(self) -> int:
        return self.num_samples

    def order(self, generator: torch.Generator) -> Iterable[int]:
        """Return `num_samples` indices."""
        members = [torch.nonzero(self.classes == label).flatten() for label in sorted(set(self.classes.tolist()))]
        each, rest = divmod(self.num_samples, len(members))
        with_one_more = set(shuffled(len(members), generator)[:rest].tolist())
        drawn = []
        for number, indices in enumerate(members):
            num_samples = each + (number in with_one_more)
            passes = [indices[shuffled(len(indices), generator)] for _ in range(-(-num_samples // len(indices)))]
            drawn += [torch.cat(passes)[:num_samples]] if passes else []
        together = torch.cat(drawn)
        return together[shuffled(len(together), generator)].tolist()
