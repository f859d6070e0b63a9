"""Transforms of a module: the same numbers with less memory or in less time."""

from lightlib.transforms.channels_last import to_channels_last
from lightlib.transforms.conv_bn import ConvBNFusion, fuse_conv_bn

__all__ = ["ConvBNFusion", "fuse_conv_bn", "to_channels_last"]
