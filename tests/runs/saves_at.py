"""SavesAt: writes a checkpoint after a step, from which a test resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightlib as L


class SavesAt(L.Callback):
    """Writes a checkpoint after a step.

    Args:
        options: Further arguments of `save_checkpoint`.
    """

    def __init__(self, path: Path, step: int, **options: Any) -> None:
        self.path, self.step, self.options = path, step, options

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path, **self.options)
