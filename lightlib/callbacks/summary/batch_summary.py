"""BatchSummary: prints shapes, dtypes and ranges of the first batch of each loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib.callbacks.callback import Callback
from lightlib.tree import named_children

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_LONGEST = 60  # characters of a value that is no tensor


class BatchSummary(Callback):
    """Prints the first batch of each loader, as steps receive it: shape, dtype, device and range of each tensor.

    So wrong scales, labels that are out of range, swapped dimensions and NaN are seen before training costs time. It
    prints on rank zero, once per stage and loader of a run.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[BatchSummary], logger=False, enable_checkpointing=False)
        >>> list(rows({"image": torch.tensor([[0.0, 0.5]]), "name": "a"}))
        ['image: float32 (1, 2) on cpu, 0 to 0.5, mean 0.25', "name: 'a' (str)"]
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[tuple[str, int]] = set()

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._shown.clear()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        self._show(trainer, "training", batch, 0)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._show(trainer, "validation", batch, dataloader_idx)

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._show(trainer, "test", batch, dataloader_idx)

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._show(trainer, "prediction", batch, dataloader_idx)

    def _show(self, trainer: Trainer, stage: str, batch: Any, loader: int) -> None:
        if (stage, loader) in self._shown:
            return
        self._shown.add((stage, loader))
        number = f", loader {loader}" if loader else ""
        trainer.print("\n".join([f"First batch of {stage}{number}:", *(f"  {row}" for row in rows(batch))]))


def rows(batch: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each leaf of a batch, with its place in it.

    Args:
        batch: Nested data.
        place: Of the batch within another one. Default: it is all.
    """
    if isinstance(batch, Tensor):
        yield f"{place or 'batch'}: {described(batch)}"
        return
    within = list(named_children(batch))
    for name, child in within:
        yield from rows(child, f"{place}.{name}" if place else str(name))
    if not within:
        text = repr(batch)
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        yield f"{place or 'batch'}: {shown} ({type(batch).__name__})"


def described(tensor: Tensor) -> str:
    """Return shape, dtype, device and range of a tensor.

    Example:
        >>> described(torch.tensor([1.0, float("nan"), 3.0]))
        'float32 (3,) on cpu, 1 to 3, mean 2, 1 not finite'
    """
    text = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"
    has_range = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_complex()
    if not has_range or not tensor.numel():
        return text
    values = tensor.detach().float()
    finite = values[values.isfinite()]
    strange = values.numel() - finite.numel()
    if finite.numel():
        least, greatest, mean = finite.min().item(), finite.max().item(), finite.mean().item()
        text += f", {least:.4g} to {greatest:.4g}, mean {mean:.4g}"
    return f"{text}, {strange} not finite" if strange else text
