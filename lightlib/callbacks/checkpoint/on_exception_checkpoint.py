"""OnExceptionCheckpoint: keep the state of a run that is ended by an exception."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightlib import report
from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.callbacks.checkpoint.folder import absolute, all_ranks_can_save, check_writable, label_at
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import wrong_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class OnExceptionCheckpoint(Checkpoint):
    """Saves a checkpoint when an exception or Ctrl-C ends training; a `fit` that ends well removes it again.

    Args:
        dirpath: Where to save it.
        filename: Its name, without the extension. Default: ``"on_exception"``.

    Raises:
        ArgumentTypeError: `filename` is not a string, or is empty.
        MisconfigurationException: When `fit` begins: no file can be written to the folder.

    Example:
        >>> OnExceptionCheckpoint("runs", filename="crash").ckpt_path
        'runs/crash.ckpt'
    """

    FILE_EXTENSION = ".ckpt"

    def __init__(self, dirpath: str | os.PathLike[str], filename: str = "on_exception") -> None:
        super().__init__()
        if not (filename and isinstance(filename, str)):
            expected = "a file name without extension, as a string that is not empty"
            raise wrong_type("OnExceptionCheckpoint", "filename", filename, expected, "'on_exception'")
        self.dirpath = os.fspath(dirpath)
        self.filename = filename
        self._run: str | None = None  # that saved the file

    @property
    def ckpt_path(self) -> str:
        """The path of the file."""
        return os.path.join(self.dirpath, self.filename + self.FILE_EXTENSION)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Check that the folder is writable, before training spends time."""
        if stage == "fit":
            check_writable(trainer, absolute(self.dirpath) or self.dirpath, type(self).__name__)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Save the run as it is; a failure to do so is reported and does not hide `exception`."""
        before_the_run = trainer.plan is None
        if trainer.state.fn != "fit" or before_the_run or trainer.sanity_checking:
            return
        if not all_ranks_can_save(trainer, exception):
            return
        try:
            trainer.save_checkpoint(self.ckpt_path)
            self._run = trainer.run_id
        except Exception as error:  # noqa: BLE001 - the exception that ended training must stay visible
            report.warn(f"OnExceptionCheckpoint: could not save {self.ckpt_path!r}: {error}")

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Remove the file when it is this run's, which has ended well; another run's stays."""
        if not trainer.is_global_zero or not filesystem.exists(self.ckpt_path):
            return
        label = label_at(self.ckpt_path)
        if trainer.run_id in (self._run, None if label is None else label.run):
            filesystem.remove(self.ckpt_path)
