"""Transforms of a module: less memory, less time, fewer trained weights."""

from lightlib.transforms.channels_last import to_channels_last
from lightlib.transforms.conv_bn import ConvBNFusion, fuse_conv_bn
from lightlib.transforms.lora import lora, merge_lora

__all__ = ["ConvBNFusion", "fuse_conv_bn", "lora", "merge_lora", "to_channels_last"]
