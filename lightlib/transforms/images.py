"""ImagePreprocessor: images of any size as one normalized float tensor, made on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightlib.errors import MisconfigurationException, check_flag, check_int, check_number, shown, wrong_type

_NAME = "ImagePreprocessor"


class ImagePreprocessor(nn.Module):
    """Makes one normalized float tensor of the images of a batch, on the device, where bytes have been moved to.

    It is a preprocessor (`Module.use_preprocessor`), or is called with a batch. The steps are those of MMEngine's
    ``ImgDataPreprocessor``, in its order: channels reversed, float, ``(x - mean) / std``, then padded at the right and
    at the bottom. Images of different sizes, in a list, are padded to the largest one.

    Args:
        mean, std: For each channel, in the order of the channels after `bgr_to_rgb` and in the unit of the images:
            ``[123.675, 116.28, 103.53]`` and ``[58.395, 57.12, 57.375]`` for ImageNet's in bytes. One number counts for
            all channels. Default: not normalized.
        bgr_to_rgb: Reverse the order of three channels, in either direction. Default False.
        pad_size_divisor: Pad height and width to multiples of it. Default 1.
        pad_value: The padded values, after normalization. Default 0.
        key: Where the images are in a batch: a position, or a key of a dict. A batch that is a tensor, or a list of
            images, is the images itself. Default 0.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: Only one of mean and std is given, or their lengths differ; a batch has no images at
            `key`, or they do not have the channels of `mean`.

    Example:
        >>> preprocess = ImagePreprocessor(mean=[127.5], std=[127.5], pad_size_divisor=4)
        >>> images, labels = preprocess(([torch.zeros(1, 3, 5, dtype=torch.uint8)], torch.tensor([1])))
        >>> images.shape, images[0, 0, 0, :3].tolist(), images[0, 0, 3, 0].item()
        (torch.Size([1, 1, 4, 8]), [-1.0, -1.0, -1.0], 0.0)
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        *,
        bgr_to_rgb: bool = False,
        pad_size_divisor: int = 1,
        pad_value: float = 0.0,
        key: int | str = 0,
    ) -> None:
        super().__init__()
        self.bgr_to_rgb = check_flag(_NAME, "bgr_to_rgb", bgr_to_rgb)
        self.pad_size_divisor = check_int(_NAME, "pad_size_divisor", pad_size_divisor, 1, example=32)
        self.pad_value, self.key = check_number(_NAME, "pad_value", pad_value), key
        numbers = {"mean": _numbers("mean", mean), "std": _numbers("std", std)}
        sizes = [None if values is None else len(values) for values in numbers.values()]
        if sizes[0] != sizes[1] or 0.0 in (numbers["std"] or ()):
            raise MisconfigurationException(
                f"{_NAME}(mean={mean!r}, std={std!r}).",
                expected="both, with as many numbers, of which those of std are not 0; or neither.",
                fix=f"{_NAME}(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])",
            )
        for name, values in numbers.items():
            tensor = None if values is None else torch.tensor(values).view(-1, 1, 1)
            self.register_buffer(name, tensor, persistent=False)  # they are in the program, and in no checkpoint

    def forward(self, batch: Any) -> Any:
        """Return the batch with one float tensor ``(batch, channels, height, width)`` in place of its images."""
        if isinstance(batch, Tensor) or (isinstance(batch, list) and batch and all(map(_is_image, batch))):
            return self._stacked(batch)
        entries: dict[Any, Any] = dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch))
        if self.key not in entries:
            raise MisconfigurationException(
                f"{_NAME}(key={self.key!r}): the batch has the entries {', '.join(map(repr, entries))}.",
                expected="the images at this place.",
                fix=f"{_NAME}(…, key={next(iter(entries), 'image')!r})",
            )
        entries[self.key] = self._stacked(entries[self.key])
        return entries if isinstance(batch, Mapping) else tuple(entries.values())

    def _stacked(self, images: Any) -> Tensor:
        if isinstance(images, Tensor) and images.ndim == 4:
            return self._padded(self._normalized(images), images.shape[-2:])
        each = list(images) if isinstance(images, (list, tuple)) else []
        if not each or not all(map(_is_image, each)):
            description = f"of the shape {tuple(images.shape)}" if isinstance(images, Tensor) else shown(images)
            raise wrong_type(
                _NAME, "images", description, "a tensor (batch, channels, height, width), or a list of tensors "
                "(channels, height, width)", fix="torchvision.transforms.v2.functional.pil_to_tensor(image)",
            )  # fmt: skip
        size = [max(image.shape[side] for image in each) for side in (-2, -1)]
        return torch.stack([self._padded(self._normalized(image), size) for image in each])

    def _normalized(self, images: Tensor) -> Tensor:
        channels = images.shape[-3]
        if self.bgr_to_rgb and channels != 3:
            raise MisconfigurationException(
                f"{_NAME}(bgr_to_rgb=True) got images with {channels} channels.", expected="three.", fix="leave it out."
            )
        images = (images.flip(-3) if self.bgr_to_rgb else images).to(torch.get_default_dtype())
        if self.mean is None or self.std is None:
            return images
        if len(self.mean) not in (1, channels):
            raise MisconfigurationException(
                f"{_NAME} got images with {channels} channels, and mean and std for {len(self.mean)}.",
                expected="a number for each channel, or one for all.",
                fix=f"{_NAME}(mean=[…], std=[…]) with {channels} numbers each.",
            )
        return (images - self.mean) / self.std

    def _padded(self, images: Tensor, size: Sequence[int]) -> Tensor:
        height, width = (-(-side // self.pad_size_divisor) * self.pad_size_divisor for side in size)
        room = (0, width - images.shape[-1], 0, height - images.shape[-2])
        return functional.pad(images, room, value=self.pad_value) if any(room) else images


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3


def _numbers(name: str, argument: Any) -> list[float] | None:
    if argument is None:
        return None
    values = list(argument) if isinstance(argument, (list, tuple)) else [argument]
    for value in values:
        check_number(_NAME, name, value, example=0.5)
    return [float(value) for value in values]
