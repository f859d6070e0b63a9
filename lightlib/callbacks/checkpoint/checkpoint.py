"""Checkpoint: the mark of callbacks that save checkpoints, by which the Trainer finds them."""

from __future__ import annotations

from lightlib.callbacks.callback import Callback

__all__ = ["Checkpoint"]


class Checkpoint(Callback):
    """Base of all callbacks that save checkpoints.

    The Trainer adds no `ModelCheckpoint` of its own when one of its callbacks is a `Checkpoint`, and lists them in
    `trainer.checkpoint_callbacks`. They are called after all others and after the module, so that they see what both
    have logged.

    Example:
        >>> class SaveAtTheEnd(Checkpoint):
        ...     def on_train_end(self, trainer, pl_module):
        ...         trainer.save_checkpoint("end.ckpt")
    """

    priority: int | str = "lowest"
    after_module: bool = True
