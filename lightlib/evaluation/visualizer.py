"""SampleVisualizer: logs inputs and predictions of some batches as images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import endings_of
from lightlib.errors import MisconfigurationException, check_int, check_type, shown
from lightlib.evaluation.collectors import preds_and_target
from lightlib.evaluation.stages import check_stages, without_hooks_of
from lightlib.loggers.media import Image, Table, make_grid
from lightlib.tree import tensors_in

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_Stage = Literal["train", "val", "test", "predict"]
_STAGES: tuple[_Stage, ...] = get_args(_Stage)


class SampleVisualizer(Callback):
    """Logs samples of the first batch of each epoch, or of every n-th batch, on rank zero.

    The images become one, side by side, under ``val/samples``. Their predictions and targets become a table,
    ``val/samples/predictions``, where they are as `MetricCallback` expects them: class indices, or scores of
    classes, of which the largest counts. Loggers record images and tables as docs/logging.md describes.

    Args:
        draw: A function of the batch and the output of the step that returns the images to show: a tensor (number,
            channels, height, width), or a list of images of one size, for instance with boxes or masks from
            `lightlib.loggers.media`. Default: the first tensor with four dimensions in the batch.
        num_samples: How many samples of a batch are shown. Default: 8.
        every_n_batches: Show batches 0, n, 2n and so on of each epoch; those of an evaluation are named
            ``val/samples/batch0`` and so on. Default: the first batch.
        columns: How many images are in a row. Default: as many as there are rows.
        stages: ``"train"``, ``"val"``, ``"test"`` and ``"predict"``. Default: ``"val"``.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: A number is below 1; in a run: there are no images.
        UnknownNameError: There is no such stage.

    Example:
        >>> visualizer = SampleVisualizer(num_samples=4, stages=("val", "test"))
        >>> visualizer.stages
        ('val', 'test')
    """

    def __init__(
        self,
        draw: Callable[[Any, Any], Tensor | Sequence[Tensor]] | None = None,
        num_samples: int = 8,
        every_n_batches: int | None = None,
        columns: int | None = None,
        stages: _Stage | Sequence[_Stage] = "val",
    ) -> None:
        super().__init__()
        expected = "a function of the batch and the output that returns images"
        check_type("SampleVisualizer", "draw", draw, Callable | None, expected, "lambda batch, outputs: batch['image']")
        check_int("SampleVisualizer", "num_samples", num_samples, 1, example=8)
        for name, value in (("every_n_batches", every_n_batches), ("columns", columns)):
            if value is not None:
                check_int("SampleVisualizer", name, value, 1, example=4)
        self.draw, self.num_samples, self.columns = draw, num_samples, columns
        self.every_n_batches = every_n_batches
        self.stages = check_stages("SampleVisualizer", stages, _STAGES)
        without_hooks_of(self, self.stages)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if not trainer.loggers:
            report.warn(
                "SampleVisualizer: there is no logger, so no image is kept.\n"
                "  Expected: a logger that records images.\n"
                "  Fix: Trainer(logger=CSVLogger('logs')), or leave the callback out.",
                report.PossibleUserWarning,
            )

    def _show(self, stage: str, trainer: Trainer, outputs: Any, batch: Any, batch_idx: int, loader: int = 0) -> None:
        due = batch_idx == 0 if self.every_n_batches is None else batch_idx % self.every_n_batches == 0
        if not due or not trainer.is_global_zero:
            return
        ending = endings_of(trainer)[loader]
        name = f"{stage}/samples" + (ending if loader or not ending.startswith("/dataloader_idx_") else "")
        if self.every_n_batches is not None and stage != "train":  # many batches at one step
            name += f"/batch{batch_idx}"
        images = self._images(batch, outputs)
        trainer.log_media(name, Image(make_grid(images, self.columns)))
        rows = _predictions(batch, outputs, len(images))
        if rows:
            trainer.log_media(f"{name}/predictions", Table(["sample", "prediction", "target"], rows))

    def _images(self, batch: Any, outputs: Any) -> Tensor:
        if self.draw is None:
            images: Any = next((tensor for tensor in tensors_in(batch) if tensor.ndim == 4), None)
        else:
            images = self.draw(batch, outputs)
            if isinstance(images, (list, tuple)) and images and all(isinstance(image, Tensor) for image in images):
                images = torch.stack(list(images[: self.num_samples]))
        if isinstance(images, Tensor) and images.ndim == 4 and len(images):
            return images[: self.num_samples].detach().cpu()
        origin = "the batch has no such tensor" if self.draw is None else f"draw returned {shown(images)}"
        raise MisconfigurationException(
            f"SampleVisualizer found no images: {origin}.",
            expected="a tensor (number, channels, height, width).",
            fix="SampleVisualizer(draw=lambda batch, outputs: batch['image'])",
        )

    # hooks
    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._show("train", trainer, outputs, batch, batch_idx)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._show("val", trainer, outputs, batch, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._show("test", trainer, outputs, batch, batch_idx, dataloader_idx)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._show("predict", trainer, outputs, batch, batch_idx, dataloader_idx)


def _predictions(batch: Any, outputs: Any, number: int) -> list[list[int | float]]:
    """Return rows of a sample, its prediction and its target; none if there is not one of each per sample."""
    try:
        preds, target = preds_and_target(batch, outputs)
    except MisconfigurationException:  # then the images alone are shown
        return []
    if not isinstance(preds, Tensor) or not isinstance(target, Tensor):
        return []
    if preds.ndim == 2:  # scores of classes, or one number for each sample
        preds = preds.argmax(1) if preds.shape[1] > 1 else preds[:, 0]
    if preds.ndim != 1 or target.ndim != 1 or min(len(preds), len(target)) < number:
        return []
    pairs = zip(preds[:number].tolist(), target[:number].tolist(), strict=True)
    return [[index, *pair] for index, pair in enumerate(pairs)]
