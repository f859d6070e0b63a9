"""Checkpoint: base class by which the Trainer recognizes callbacks that save checkpoints."""

from __future__ import annotations

from lightlib.callbacks.callback import Callback


class Checkpoint(Callback):
    """Base of all callbacks that save checkpoints.

    The Trainer adds no `ModelCheckpoint` of its own when one of its callbacks is a `Checkpoint`, and lists them in
    `trainer.checkpoint_callbacks`. They are called after all other callbacks and after the module, so that they see
    the metrics of both.

    Example:
        >>> class SaveAtTheEnd(Checkpoint):
        ...     def on_train_end(self, trainer, pl_module):
        ...         trainer.save_checkpoint("end.ckpt")
    """

    priority: int | str = "lowest"
    after_module: bool = True
