"""Samplers and data sets that torch lacks; they are sharded and resume. Imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.samplers.augmentation import RepeatedAugmentationSampler
    from lightlib.samplers.balance import ClassBalancedSampler
    from lightlib.samplers.datasets import ClassBalancedDataset, RepeatDataset, limit_samples
    from lightlib.samplers.lengths import BucketBatchSampler, LengthGroupedSampler
    from lightlib.samplers.passes import InfiniteSampler, RepeatSampler, ShuffleSampler, SkipSampler
    from lightlib.samplers.seeded import SeededSampler

_PLACES = {
    "BucketBatchSampler": "lengths",
    "ClassBalancedDataset": "datasets",
    "ClassBalancedSampler": "balance",
    "InfiniteSampler": "passes",
    "LengthGroupedSampler": "lengths",
    "RepeatDataset": "datasets",
    "RepeatSampler": "passes",
    "RepeatedAugmentationSampler": "augmentation",
    "SeededSampler": "seeded",
    "ShuffleSampler": "passes",
    "SkipSampler": "passes",
    "limit_samples": "datasets",
}
__all__ = [
    "BucketBatchSampler",
    "ClassBalancedDataset",
    "ClassBalancedSampler",
    "InfiniteSampler",
    "LengthGroupedSampler",
    "RepeatDataset",
    "RepeatSampler",
    "RepeatedAugmentationSampler",
    "SeededSampler",
    "ShuffleSampler",
    "SkipSampler",
    "limit_samples",
]
_get, _names = lazy.attributes(__name__, _PLACES)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
