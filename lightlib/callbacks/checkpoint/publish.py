"""PublishCheckpoint: writes the weights of the best checkpoint with their hash in the name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.folder import absolute, on_rank_zero
from lightlib.callbacks.checkpoint.saved import saver_for
from lightlib.callbacks.monitored import check_monitor
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.tools.publish import check_keys, publish
from lightlib.errors import LightlibError, MisconfigurationException, wrong_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class PublishCheckpoint(Callback):
    """Writes ``NAME-1a2b3c4d.ckpt`` when `fit` ends: the weights alone, with the first digits of the file's SHA-256.

    The weights are those of the best checkpoint of a `ModelCheckpoint`; without a metric, of its newest one.
    `torch.load` reads the file. The same weights have the same name, in any run. It is written by rank zero, and no
    run removes it. A run that ends by an exception or a signal publishes nothing.

    Args:
        filename: What the name begins with. Default: the name of the checkpoint.
        dirpath: The folder, local or remote. Default: the folder of the checkpoint.
        keys: The entries of the checkpoint to keep. Default: ``("state_dict",)``. With ``"hyper_parameters"``,
            `load_from_checkpoint` needs no arguments.
        monitor: The metric of the `ModelCheckpoint`, if there are several. Default: the first one.

    Attributes:
        published_path: The file; empty before.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: `filename` has a folder, or `keys` no ``"state_dict"``; when `fit` begins: there is
            no such `ModelCheckpoint`.
        CheckpointError: When `fit` ends: the checkpoint cannot be read, or has not all `keys`.
        CheckpointWriteError: When `fit` ends: the file cannot be written.

    Example:
        >>> from lightlib.callbacks import ModelCheckpoint
        >>> callbacks = [ModelCheckpoint(monitor="val_loss"), PublishCheckpoint("classifier", dirpath="released")]
    """

    priority = "lowest"
    after_module = True

    def __init__(
        self,
        filename: str | None = None,
        dirpath: str | os.PathLike[str] | None = None,
        keys: Sequence[str] = ("state_dict",),
        monitor: str | None = None,
    ) -> None:
        super().__init__()
        given: object = filename
        if given is not None and not (given and isinstance(given, str)):
            expected = "a name, or None for that of the checkpoint"
            raise wrong_type("PublishCheckpoint", "filename", filename, expected, "'classifier'")
        if filename is not None and os.path.basename(filename) != filename:
            raise MisconfigurationException(
                f"PublishCheckpoint(filename={filename!r}) has a folder.",
                expected="a name; its folder is another argument.",
                fix=f"PublishCheckpoint({os.path.basename(filename)!r}, dirpath={os.path.dirname(filename)!r})",
            )
        check_keys("PublishCheckpoint", keys)
        if monitor is not None:
            check_monitor("PublishCheckpoint", monitor)
        self.filename, self.dirpath, self.keys, self.monitor = filename, absolute(dirpath), tuple(keys), monitor
        self.published_path = ""

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit" or trainer.fast_dev_run:
            return
        saver_for(trainer, "PublishCheckpoint", self.monitor, compares=False)
        store = trainer.strategy.extension.store
        if store is not None:
            raise MisconfigurationException(
                f"PublishCheckpoint with the checkpoints of {type(getattr(store, 'plugin', store)).__name__}.",
                expected="checkpoints that lightlib writes.",
                fix="leave out one of the two, and publish the weights yourself.",
            )

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.fast_dev_run:
            return
        saver = saver_for(trainer, "PublishCheckpoint", self.monitor, compares=False)
        path: str = trainer.strategy.broadcast(saver.best_model_path or saver.last_model_path)
        if not path:
            report.warn("PublishCheckpoint: no checkpoint was saved, so nothing is published.")
            return
        source_folder, _, name = path.rpartition("/" if filesystem.is_remote(path) else os.sep)
        stem = self.filename or name.removesuffix(saver.FILE_EXTENSION)
        target = filesystem.join(self.dirpath or source_folder, stem)
        written = on_rank_zero(trainer, partial(publish, path, target, keys=self.keys), LightlibError)
        self.published_path = str(trainer.strategy.broadcast(written))
        report.info(f"Published: {self.published_path!r}.")
