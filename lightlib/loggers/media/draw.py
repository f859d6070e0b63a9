"""Drawing on images with torch alone: boxes, masks, feature maps, and several images in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError

Color = tuple[int, int, int]

# The ten colours of matplotlib's "tab10".
COLORS: tuple[Color, ...] = (
    (31, 119, 180),
    (255, 127, 14),
    (44, 160, 44),
    (214, 39, 40),
    (148, 103, 189),
    (140, 86, 75),
    (227, 119, 194),
    (127, 127, 127),
    (188, 189, 34),
    (23, 190, 207),
)


def draw_bounding_boxes(image: Tensor, boxes: Tensor, colors: Sequence[Color] | None = None, width: int = 1) -> Tensor:
    """Return a copy of an image with the outlines of boxes.

    Args:
        image: (3, height, width) or (1, height, width), uint8 of 0 to 255 or floats of 0 to 1.
        boxes: (number, 4): left, top, right and bottom in pixels. The outline covers these pixels and is clipped to the
            image; values between pixels are rounded.
        colors: One for each box, red, green and blue of 0 to 255. Default: ten different ones in turn.
        width: Of the outline, in pixels, inwards. Default: 1.

    Returns:
        (3, height, width) of the same dtype.

    Raises:
        ArgumentTypeError: An image of another dtype.
        MisconfigurationException: Another shape, another number of colours, or a `width` below 1.

    Example:
        >>> image = draw_bounding_boxes(torch.zeros(3, 4, 4), torch.tensor([[0, 0, 2, 2]]), [(255, 0, 0)])
        >>> image[0]
        tensor([[1., 1., 1., 0.],
                [1., 0., 1., 0.],
                [1., 1., 1., 0.],
                [0., 0., 0., 0.]])
    """
    drawn, paint = _canvas(image, colors, len(boxes))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise MisconfigurationException(
            f"boxes have the shape {tuple(boxes.shape)}.", expected="(number, 4).", fix="boxes.reshape(-1, 4)"
        )
    if width < 1:
        raise MisconfigurationException(f"width={width}.", expected="1 pixel or more.", fix="width=1")
    height, length = drawn.shape[1:]
    rows = torch.arange(height, device=drawn.device)[:, None]
    columns = torch.arange(length, device=drawn.device)[None]
    for (left, top, right, bottom), color in zip(boxes.detach().float().round().tolist(), paint, strict=True):
        inside = (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
        core = (rows >= top + width) & (rows <= bottom - width) & (columns >= left + width) & (columns <= right - width)
        drawn = torch.where(inside & ~core, color[:, None, None], drawn)
    return drawn


def draw_segmentation_masks(
    image: Tensor, masks: Tensor, alpha: float = 0.8, colors: Sequence[Color] | None = None
) -> Tensor:
    """Return a copy of an image with coloured masks. Where masks overlap, the last one counts.

    Args:
        image: (3, height, width) or (1, height, width), uint8 of 0 to 255 or floats of 0 to 1.
        masks: (number, height, width) or (height, width), bool.
        alpha: 0 for invisible masks, 1 for opaque ones. Default: 0.8.
        colors: One for each mask, red, green and blue of 0 to 255. Default: ten different ones in turn.

    Returns:
        (3, height, width) of the same dtype.

    Raises:
        ArgumentTypeError: `masks` are not bool, or an image of another dtype.
        MisconfigurationException: Another shape or number of colours, or `alpha` outside of 0 to 1.

    Example:
        >>> mask = torch.tensor([[True, False]])
        >>> draw_segmentation_masks(torch.zeros(3, 1, 2), mask, alpha=0.5, colors=[(255, 255, 0)])[:, 0, 0]
        tensor([0.5000, 0.5000, 0.0000])
    """
    masks = masks[None] if masks.ndim == 2 else masks
    if masks.dtype != torch.bool:
        raise ArgumentTypeError(f"masks have the dtype {masks.dtype}.", expected="bool.", fix="masks > 0.5")
    if masks.ndim != 3 or masks.shape[1:] != image.shape[1:]:
        raise MisconfigurationException(
            f"masks have the shape {tuple(masks.shape)}, and the image {tuple(image.shape)}.",
            expected="(number, height, width) with the height and width of the image.",
            fix="pass one mask for each object, in the size of the image.",
        )
    _check_alpha(alpha)
    plain, paint = _canvas(image, colors, len(masks))
    painted = plain
    for mask, color in zip(masks.to(plain.device), paint, strict=True):
        painted = torch.where(mask, color[:, None, None], painted)
    return _blend(plain, painted, alpha)


def draw_feature_map(
    features: Tensor,
    image: Tensor | None = None,
    reduction: Literal["mean", "max", "norm"] = "mean",
    alpha: float = 0.5,
) -> Tensor:
    """Return features as colours, from blue for the smallest to red for the largest, perhaps over an image.

    Args:
        features: (channels, height, width).
        image: (3, height, width) or (1, height, width) in any size, uint8 or floats of 0 to 1. The features are
            interpolated to its size. Default: none.
        reduction: How the channels become one: their mean, maximum or Euclidean norm. Default: ``"mean"``.
        alpha: Of the colours over the image, 0 to 1. Default: 0.5.

    Returns:
        (3, height, width), floats of 0 to 1, or of the dtype of the image.

    Raises:
        MisconfigurationException: Another shape, or `alpha` outside of 0 to 1.
        UnknownNameError: Another `reduction`.

    Example:
        >>> draw_feature_map(torch.tensor([[[0.0, 1.0]]]))[:, 0].T  # blue, red
        tensor([[0.0000, 0.0000, 0.5000],
                [0.5000, 0.0000, 0.0000]])
    """
    if features.ndim != 3:
        raise MisconfigurationException(
            f"features have the shape {tuple(features.shape)}.",
            expected="(channels, height, width).",
            fix="draw_feature_map(features[0]) for the first of a batch.",
        )
    if reduction not in ("mean", "max", "norm"):
        raise UnknownNameError("reduction", reduction, ("mean", "max", "norm"), fix="reduction='mean'")
    _check_alpha(alpha)
    values = features.detach().float()
    if reduction == "norm":
        heat = values.square().sum(0).sqrt()
    else:
        heat = values.mean(0) if reduction == "mean" else values.amax(0)
    if image is not None:
        heat = interpolate(heat[None, None], image.shape[1:], mode="bilinear", align_corners=False)[0, 0]
    low, high = heat.min(), heat.max()
    heat = (heat - low) / torch.where(high > low, high - low, 1)
    # A ramp of each colour, as in the map "jet": blue around 1/4, green around 1/2, red around 3/4.
    colored = torch.stack([(1.5 - (4 * heat - centre).abs()).clamp(0, 1) for centre in (3, 2, 1)])
    if image is None:
        return colored
    plain, _ = _canvas(image, None, 0)
    as_drawn = (colored.to(plain.device) * 255).round() if plain.dtype == torch.uint8 else colored.to(plain)
    return _blend(plain, as_drawn.to(plain.dtype), alpha)


def make_grid(images: Tensor, columns: int | None = None, padding: int = 2) -> Tensor:
    """Return the images of a batch side by side in one image, with black lines around them.

    Args:
        images: (number, channels, height, width).
        columns: How many are in a row. Default: the square root of their number, rounded up.
        padding: The width of the lines in pixels. Default: 2.

    Returns:
        (channels, height, width) of the same dtype.

    Raises:
        MisconfigurationException: Another shape, or `columns` below 1, or `padding` below 0.

    Example:
        >>> make_grid(torch.ones(3, 1, 2, 2), columns=2, padding=1)[0]
        tensor([[0., 0., 0., 0., 0., 0., 0.],
                [0., 1., 1., 0., 1., 1., 0.],
                [0., 1., 1., 0., 1., 1., 0.],
                [0., 0., 0., 0., 0., 0., 0.],
                [0., 1., 1., 0., 0., 0., 0.],
                [0., 1., 1., 0., 0., 0., 0.],
                [0., 0., 0., 0., 0., 0., 0.]])
    """
    if images.ndim != 4 or not len(images):
        raise MisconfigurationException(
            f"images have the shape {tuple(images.shape)}.",
            expected="(number, channels, height, width) with at least one image.",
            fix="make_grid(image[None]) for one image.",
        )
    if (columns is not None and columns < 1) or padding < 0:
        raise MisconfigurationException(
            f"make_grid(columns={columns}, padding={padding}).", expected="columns >= 1, padding >= 0.", fix="columns=8"
        )
    number, channels, height, width = images.shape
    across = min(number, columns or math.ceil(math.sqrt(number)))
    down = math.ceil(number / across)
    size = (channels, down * (height + padding) + padding, across * (width + padding) + padding)
    grid = images.new_zeros(size)
    for index, image in enumerate(images.detach()):
        top = padding + (index // across) * (height + padding)
        left = padding + (index % across) * (width + padding)
        grid[:, top : top + height, left : left + width] = image
    return grid


def _canvas(image: Tensor, colors: Sequence[Color] | None, number: int) -> tuple[Tensor, list[Tensor]]:
    """Return a copy of an image with three channels, and a colour for each object in its dtype."""
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise MisconfigurationException(
            f"The image has the shape {tuple(image.shape)}.",
            expected="(3, height, width) or (1, height, width).",
            fix="image.permute(2, 0, 1) if channels come last.",
        )
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise ArgumentTypeError(
            f"The image has the dtype {image.dtype}.",
            expected="uint8 of 0 to 255, or floats of 0 to 1.",
            fix="image.to(torch.uint8)",
        )
    if colors is not None and len(colors) != number:
        raise MisconfigurationException(
            f"There are {number} objects and {len(colors)} colours.",
            expected="one colour for each.",
            fix=f"colors=[(255, 0, 0)] * {number}",
        )
    chosen = [COLORS[index % len(COLORS)] for index in range(number)] if colors is None else list(colors)
    most = 1 if image.dtype == torch.uint8 else 255
    paint = [(torch.tensor(color, device=image.device) / most).to(image.dtype) for color in chosen]
    return image.detach().expand(3, -1, -1).clone(), paint


def _blend(plain: Tensor, painted: Tensor, alpha: float) -> Tensor:
    mixed = plain.float() * (1 - alpha) + painted.float() * alpha
    return mixed.round().to(plain.dtype) if plain.dtype == torch.uint8 else mixed.to(plain.dtype)


def _check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise MisconfigurationException(f"alpha={alpha}.", expected="0 to 1.", fix="alpha=0.5")
