"""SaveConfigCallback: writes the configuration of a run next to its logs."""

from __future__ import annotations

import os
from operator import methodcaller
from typing import TYPE_CHECKING

from lightlib import report, safe_files
from lightlib.callbacks.callback import Callback
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import LightlibError, MisconfigurationException

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from lightlib.config.parser import LightningArgumentParser
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class ConfigExistsError(MisconfigurationException, RuntimeError):
    """There is a configuration of another run."""


class SaveConfigCallback(Callback):
    """Writes the configuration of a run, with every default filled in, to the run's folder when it begins.

    A run that resumes in its folder leaves the file alone; if the configuration has changed, the new one is written
    next to it with the next number (``config-1.yaml``). Without a logger the run has no folder: `fit` writes to the
    Trainer's `default_root_dir`, unless it has just read a file of this name there; other sub-commands write nothing.

    Args:
        parser: The parser that has parsed it.
        config: What it has parsed.
        config_filename: Default ``"config.yaml"``.
        overwrite: Replace a file of this name. Default: refuse.
        multifile: Write what came from several files into several files again.
        save_to_log_dir: Whether to write it there; False for a subclass that overrides `save_config`.

    Raises:
        ConfigExistsError: (a RuntimeError) There is a file of this name already, of another run.
    """

    def __init__(
        self,
        parser: LightningArgumentParser,
        config: Namespace,
        config_filename: str = "config.yaml",
        overwrite: bool = False,
        multifile: bool = False,
        save_to_log_dir: bool = True,
    ) -> None:
        super().__init__()
        self.parser = parser
        self.config = config
        self.config_filename = config_filename
        self.overwrite = overwrite
        self.multifile = multifile
        self.save_to_log_dir = save_to_log_dir
        self.already_saved = False
        if not save_to_log_dir and type(self).save_config is SaveConfigCallback.save_config:
            raise MisconfigurationException(
                f"{type(self).__name__} got save_to_log_dir=False, and nothing would be saved.",
                expected="a subclass that overrides save_config, or save_to_log_dir=True.",
                fix="LightningCLI(save_config_callback=None) saves nothing.",
            )

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if self.already_saved:
            return
        if self.save_to_log_dir and (trainer.loggers or stage == "fit"):
            self._save(trainer)
        if trainer.is_global_zero:
            self.save_config(trainer, pl_module, stage)
        self.already_saved = True

    def save_config(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Override to save it in other places too. Called on rank 0 only, so it must not call collectives.

        Example:
            >>> class LogConfig(SaveConfigCallback):
            ...     def save_config(self, trainer, pl_module, stage):
            ...         config = self.parser.dump(self.config, skip_none=False)
            ...         trainer.logger.log_hyperparams({"config": config})
        """

    def _save(self, trainer: Trainer) -> None:
        folder = trainer.log_dir
        assert folder is not None
        error: LightlibError | None = None
        if trainer.is_global_zero:
            try:
                self._write(folder, trainer.continues)
            except LightlibError as found:
                error = found
        error = trainer.strategy.broadcast(error)
        if error is not None:
            raise error

    def _write(self, folder: str, continues: bool) -> None:
        path = filesystem.join(folder, self.config_filename)
        text = self.parser.dump(self.config, skip_none=False)
        number, (stem, extension) = 0, os.path.splitext(self.config_filename)
        while not self.overwrite and filesystem.exists(path):
            if not continues and self.parser.sources.has_read(path):
                report.info(
                    f"{path} is a configuration of this run and is left as it is; the resolved one is not saved."
                )
                return
            if not continues:
                raise ConfigExistsError(
                    f"There is a configuration already: {path!r}. It is another run's record.",
                    expected="a folder of its own for each run.",
                    fix="--trainer.logger csv or tensorboard gives each run one; or move that file away, or in "
                    'a script LightningCLI(save_config_kwargs={"overwrite": True}), or save_config_callback=None.',
                )
            with filesystem.open_for_reading(path) as file:
                if file.read().decode("utf-8") == text:
                    return
            number += 1
            path = filesystem.join(folder, f"{stem}-{number}{extension}")
        if self.multifile and not filesystem.is_remote(folder):
            filesystem.make_folder(folder)
            with safe_files.exporting(filesystem.local_path(path)) as place:
                self.parser.save(self.config, place, skip_none=False, overwrite=True, multifile=True)
        else:
            filesystem.write(path, methodcaller("write", text.encode("utf-8")))
