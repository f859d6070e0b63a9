# Written by scripts/typing_stubs.py --write.
from lightlib.samplers.augmentation import RepeatedAugmentationSampler
from lightlib.samplers.balance import ClassBalancedSampler
from lightlib.samplers.datasets import ClassBalancedDataset, RepeatDataset, limit_samples
from lightlib.samplers.lengths import BucketBatchSampler, LengthGroupedSampler
from lightlib.samplers.passes import InfiniteSampler, RepeatSampler, ShuffleSampler, SkipSampler
from lightlib.samplers.seeded import SeededSampler
__all__ = ['BucketBatchSampler', 'ClassBalancedDataset', 'ClassBalancedSampler', 'InfiniteSampler', 'LengthGroupedSampler', 'RepeatDataset', 'RepeatSampler', 'RepeatedAugmentationSampler', 'SeededSampler', 'ShuffleSampler', 'SkipSampler', 'limit_samples']
