"""Transforms of a module, for less memory, less time or fewer trained weights, and of batches."""

from lightlib.transforms.channels_last import to_channels_last
from lightlib.transforms.conv_bn import ConvBNFusion, fuse_conv_bn
from lightlib.transforms.images import ImagePreprocessor
from lightlib.transforms.lora import lora, merge_lora
from lightlib.transforms.mixing import MixUpCutMix

__all__ = ["ConvBNFusion", "ImagePreprocessor", "MixUpCutMix", "fuse_conv_bn", "lora", "merge_lora", "to_channels_last"]
