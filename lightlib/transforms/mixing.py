"""MixUpCutMix: a preprocessor that mixes the images and labels of training batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from lightlib import optional
from lightlib.errors import MisconfigurationException, check_int, check_number, shown, wrong_type, wrong_value

_NAME = "MixUpCutMix"


class MixUpCutMix(nn.Module):
    """Mixes each training batch with MixUp or CutMix of torchvision, one of them chosen at random for each batch.

    It is a preprocessor (`Module.use_preprocessor`), or is called with a batch. Class indices become probabilities,
    which `torch.nn.CrossEntropyLoss` takes: each image is mixed with the one before it in the batch, and so are their
    labels. In evaluation a batch stays as it is. The random numbers are those of torch's global generator, which a
    checkpoint holds.

    Args:
        num_classes: Of the labels.
        mixup: Both parameters of MixUp's Beta distribution; None for no MixUp. Default 0.2.
        cutmix: Likewise for CutMix. Default 1.0.
        label_smoothing: The share of each label that all classes have equally. Default 0.
        probability: That a batch is mixed. Default 1.
        keys: Where images and labels are in a batch: two positions, or two keys of a dict. Default ``(0, 1)``.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: An argument is out of range, a batch does not fit, or torchvision is missing.

    Example:
        >>> module.use_preprocessor(MixUpCutMix(10, label_smoothing=0.1))  # doctest: +SKIP
    """

    def __init__(
        self,
        num_classes: int,
        mixup: float | None = 0.2,
        cutmix: float | None = 1.0,
        label_smoothing: float = 0.0,
        probability: float = 1.0,
        keys: Sequence[int | str] = (0, 1),
    ) -> None:
        super().__init__()
        check_int(_NAME, "num_classes", num_classes, 2, example=10)
        alphas = {"MixUp": ("mixup", mixup), "CutMix": ("cutmix", cutmix)}
        for name, alpha in alphas.values():
            if alpha is not None:
                check_number(_NAME, name, alpha, above=0, below=math.inf, meaning=", or None for none of it")
        check_number(_NAME, "label_smoothing", label_smoothing, least=0, below=1, example=0.1)
        check_number(_NAME, "probability", probability, above=0, most=1)
        if not isinstance(keys, (tuple, list)) or len(keys) != 2:
            raise wrong_type(_NAME, "keys", keys, "two positions or keys", ("image", "label"))
        if mixup is None and cutmix is None:
            fix = f"torch.nn.CrossEntropyLoss(label_smoothing={label_smoothing or 0.1}) for label smoothing alone."
            raise wrong_value(_NAME, "mixup", None, "a number for mixup, cutmix, or both", fix=fix)
        v2 = optional.load("torchvision.transforms.v2", _NAME)
        kinds = [
            getattr(v2, kind)(alpha=alpha, num_classes=num_classes) for kind, (_, alpha) in alphas.items() if alpha
        ]
        self.mix = v2.RandomApply([v2.RandomChoice(kinds)], p=probability)
        self.num_classes, self.label_smoothing, self.keys = num_classes, label_smoothing, tuple(keys)

    def forward(self, batch: Any) -> Any:
        """Return a batch of training with mixed images and probabilities in place of labels, or another as it is."""
        if not self.training:
            return batch
        entries: dict[Any, Any] = dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch))
        image, label = self.keys
        if image not in entries or label not in entries:
            raise MisconfigurationException(
                f"{_NAME}(keys={self.keys}): the batch has the entries {', '.join(map(repr, entries))}.",
                expected="images and labels at these places.",
                fix=f"{_NAME}(…, keys=('image', 'label')), with the keys of your batches.",
            )
        entries[image], entries[label] = self.mix(*self._checked(entries[image], entries[label]))
        return entries if isinstance(batch, Mapping) else tuple(entries.values())

    def _checked(self, images: Any, labels: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
            raise _refused("images", images, "a float tensor (batch, channels, height, width)", "images.float() / 255")
        if not isinstance(labels, Tensor) or len(labels) != len(images):
            raise _refused("labels", labels, f"a tensor with a label for each of {len(images)} images", "one each")
        if labels.ndim == 1 and not labels.is_floating_point():
            try:
                labels = functional.one_hot(labels.long(), self.num_classes).to(images.dtype)
            except RuntimeError as error:  # on the CPU, where a look at the values costs little
                problem = f"{_NAME}(num_classes={self.num_classes}) got labels from {labels.min()} to {labels.max()}."
                expected = f"labels from 0 to {self.num_classes - 1}."
                fix = f"{_NAME}({int(labels.max()) + 1})"
                raise MisconfigurationException(problem, expected=expected, fix=fix) from error
        if labels.ndim != 2 or labels.shape[1] != self.num_classes or not labels.is_floating_point():
            expected = f"class indices (batch,), or probabilities (batch, {self.num_classes})"
            raise _refused("labels", labels, expected, "labels.flatten(), or labels.long()")
        return images, labels * (1 - self.label_smoothing) + self.label_smoothing / self.num_classes


def _refused(argument: str, value: Any, expected: str, fix: str) -> MisconfigurationException:
    description = (
        f"of shape {tuple(value.shape)} and {value.dtype}" if isinstance(value, Tensor) else f": {shown(value)}"
    )
    return MisconfigurationException(f"{_NAME} got {argument} {description}.", expected=f"{expected}.", fix=fix)
