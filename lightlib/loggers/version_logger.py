"""VersionLogger: base of the loggers that write into a directory `save_dir/name/version` of the run."""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Callable
from typing import Any

from lightlib.loggers.logger import Logger
from lightlib.loggers.run_directory import RunDirectory
from lightlib.report import described

__all__ = ["VersionLogger"]


class VersionLogger(Logger, ABC):
    """A logger with a directory for each version.

    Args:
        save_dir: A path (``~`` is expanded) or a URL for fsspec.
        name: The directory of all versions; an empty string leaves this level out.
        version: A number n gives ``version_n``, a string is taken unchanged. Default: the next free number.
    """

    def __init__(self, save_dir: str | os.PathLike[str], name: str | None, version: int | str | None) -> None:
        names_itself = type(self).version is not VersionLogger.version
        self._directory = RunDirectory(save_dir, name, version, self, names_itself)

    def __repr__(self) -> str:
        return described(self, **self._directory.described())

    @property
    def name(self) -> str:
        """The directory of all versions, below `save_dir`."""
        return self._directory.name

    @property
    def version(self) -> int | str | None:
        """The version of this run. Reading it on rank zero takes the next free one, if none was given."""
        return self._directory.version

    @property
    def save_dir(self) -> str:
        """The directory of all experiments."""
        return self._directory.save_dir

    @property
    def root_dir(self) -> str:
        """``save_dir/name``."""
        return self._directory.join(self.save_dir, self.name)

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        """Set the version that rank zero chose."""
        self._directory.share(broadcast)
