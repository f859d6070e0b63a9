"""EmptyCache: gives memory that torch keeps for later back to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightlib.callbacks.callback import Callback
from lightlib.errors import check_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class EmptyCache(Callback):
    """Calls torch's `empty_cache` of the run's device, which costs time; on a CPU it does nothing.

    It helps against fragmented memory, and when another program shares the device.

    Args:
        every_n_steps: After every n-th optimizer step. Default: never.
        after_epoch: After each training epoch. Default True.
        after_validation: After each validation. Default True.

    Raises:
        ArgumentTypeError: `every_n_steps` is no int.
        MisconfigurationException: It is less than 1.

    Example:
        >>> EmptyCache(every_n_steps=100, after_epoch=False)
        EmptyCache(every_n_steps=100, after_epoch=False)
    """

    def __init__(
        self, every_n_steps: int | None = None, after_epoch: bool = True, after_validation: bool = True
    ) -> None:
        super().__init__()
        if every_n_steps is not None:
            check_int("EmptyCache", "every_n_steps", every_n_steps, 1)
        self.every_n_steps, self.after_epoch, self.after_validation = every_n_steps, after_epoch, after_validation
        self._empty: Callable[[], Any] | None = None

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._empty = getattr(getattr(torch, trainer.strategy.root_device.type, None), "empty_cache", None)

    def on_accumulation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self.every_n_steps is not None and trainer.global_step % self.every_n_steps == 0:
            self._call(True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._call(self.after_epoch)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._call(self.after_validation)

    def _call(self, due: bool) -> None:
        if due and self._empty is not None:
            self._empty()
