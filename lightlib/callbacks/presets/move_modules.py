"""MoveModulesToDevice: moves modules that callbacks hold to the device of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from lightlib.callbacks.callback import Callback

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class MoveModulesToDevice(Callback):
    """Moves modules that are attributes of callbacks, such as metrics or a teacher, to the device of the run.

    Submodules of the run's module are moved with it. A module that a callback holds stays where it was made without
    this callback.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[MoveModulesToDevice], logger=False, enable_checkpointing=False)
    """

    priority = "highest"

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        for callback in trainer.callbacks:
            for attribute in vars(callback).values():
                if isinstance(attribute, nn.Module) and attribute is not pl_module:
                    attribute.to(trainer.strategy.root_device)
