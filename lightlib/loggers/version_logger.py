"""VersionLogger: base of loggers with a directory `save_dir/name/version`, which no two runs share."""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from lightlib.checkpoint.storage import filesystem as storage
from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_type, wrong_type
from lightlib.loggers.fabric_logger import FabricLogger
from lightlib.loggers.hyperparameters import plain
from lightlib.loggers.log_files import HPARAMS_FILE, below, filesystem, is_url, replace
from lightlib.loggers.media.items import Media
from lightlib.report import described, rank_zero_only


class VersionLogger(FabricLogger, ABC):
    """A logger with a directory for each version.

    The next free version is taken by *creating* its directory, which succeeds in one process only. So reading `version`
    or `log_dir` creates the directory, when no version was given and this is rank zero. On the other processes the
    version is None until it is shared.

    Args:
        save_dir: A path, in which ``~`` and ``$NAME`` are expanded, or a URL that fsspec knows.
        name: The directory of all versions; an empty string or None leaves this level out.
        version: A number n gives ``version_n``, a string is taken unchanged. Default: the next free number.
        prefix: Put before every metric's name, with a ``-``.

    The loggers of the Trainer derive from this class and from `Logger`, those of Fabric from this class alone.

    Attributes:
        hparams: The hyperparameters, as plain values with secrets masked.

    Raises:
        MisconfigurationException: `name` or `version` leads out of `save_dir`.
        ArgumentTypeError: An argument has a type that is not listed here.
    """

    NAME_HPARAMS_FILE = HPARAMS_FILE

    def __init__(
        self, save_dir: str | os.PathLike[str], name: str | None, version: int | str | None, prefix: str
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        check_type(owner, "save_dir", save_dir, (str, os.PathLike), "a path or a URL", "'logs'")
        if isinstance(version, bool) or not isinstance(version, (int, str, type(None))):
            raise wrong_type(owner, "version", version, "a number, a string, or None for the next free number", 0)
        location = os.fspath(save_dir)
        self._save_dir = location if is_url(location) else os.path.expanduser(os.path.expandvars(location)) or "."
        self._name = check_inside("name", name or "")
        self._version = check_inside("version", version) if isinstance(version, str) else version
        self._names_itself = type(self).version is not VersionLogger.version
        self._automatic = version is None and not self._names_itself
        self._settled = (
            False  # whether a run has started in this directory; until then a resumed run may choose its own
        )
        self._prefix = prefix
        self._next_step = 0
        self._has_hparams = False  # whether this process has written the file
        self.hparams: dict[str, Any] = {}

    def __repr__(self) -> str:
        return described(self, save_dir=self._save_dir, name=self._name, version=self._version)

    @property
    def name(self) -> str:
        """The directory of all versions, below `save_dir`."""
        return self._name

    @property
    def version(self) -> int | str | None:
        """The version of this run. Reading it on rank zero takes the next free one, if none was given."""
        if self._version is None and rank_zero_only.rank == 0:
            try:
                self._version = self._take_version()
            except OSError as error:
                raise _not_writable(self._versions_dir, error) from error
        return self._version

    @property
    def save_dir(self) -> str:
        """The directory of all experiments."""
        return self._save_dir

    @property
    def root_dir(self) -> str:
        """``save_dir/name``."""
        return below(self.save_dir, self.name)

    @property
    def _versions_dir(self) -> str:
        return self.root_dir

    @property
    def log_dir(self) -> str | None:
        """``save_dir/name/version_N``; None on other processes than rank zero while the version is not shared."""
        version = self.version
        return None if version is None else self._directory_of(version)

    @property
    def earlier_log_dirs(self) -> list[str]:
        """The directories of the versions that exist, the newest first; none when the version was given."""
        if self._settled or not self._automatic:
            return []
        return [self._directory_of(number) for number in sorted(self._numbers(), reverse=True)]

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        if not self._names_itself:
            self._version = broadcast(self.version)

    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        """Add `params` to ``hparams.yaml``, nested as they are, with secrets masked."""
        if rank_zero_only.rank == 0:
            self.hparams.update(plain(params))
            self._write_hparams()

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """All of them."""
        return (Media,)

    def _step_of_media(self, step: int | None) -> int:
        """Return the step of an item: by default that of the latest metrics."""
        return max(0, self._next_step - 1) if step is None else int(step)

    def _directory_of(self, version: int | str) -> str:
        return below(self._versions_dir, f"version_{version}" if isinstance(version, int) else version)

    @property
    def _hparams_dir(self) -> str | None:
        return self.log_dir

    @property
    def _known_version(self) -> int | str | None:
        """The version if it has been given, chosen or shared."""
        return self.version if self._names_itself else self._version

    def _make_directory(self, path: str | None) -> str | None:
        """Create a directory on rank zero, and return its path.

        Raises:
            MisconfigurationException: It cannot be created or written to.
        """
        if path is None or rank_zero_only.rank != 0:
            return path
        try:
            if is_url(path):
                files, key = filesystem(path)
                files.makedirs(key, exist_ok=True)
            else:
                os.makedirs(path, exist_ok=True)
                if not os.access(path, os.W_OK | os.X_OK):
                    raise PermissionError("no permission to write")
        except OSError as error:
            raise _not_writable(path, error) from error
        return path

    def _write_hparams(self, only_if_absent: bool = False) -> None:
        import yaml  # optional: pyyaml

        folder = self._make_directory(self._hparams_dir)
        assert folder is not None, "only rank zero writes"
        path = below(folder, self.NAME_HPARAMS_FILE)
        if not (only_if_absent and storage.exists(path)):
            replace(path, yaml.safe_dump(self.hparams, sort_keys=False, allow_unicode=True).encode())
        self._has_hparams = True

    def _place(self) -> dict[str, Any]:
        """Return the root, the version, the next step and the hyperparameters, as plain values for a checkpoint."""
        root = self._versions_dir if is_url(self._versions_dir) else os.path.realpath(self._versions_dir)
        numbers = {"next_step": self._next_step, "hparams": self.hparams}
        return {"root": root, "version": self._known_version, **numbers}

    def _directory_in(self, place: dict[str, Any]) -> str | None:
        """Return the directory that `place` describes, if a resumed run may continue there; else None.

        It may have been moved from another root; the caller decides whether that matters.
        """
        version = place.get("version")
        if isinstance(version, bool) or not isinstance(version, (int, str)):
            return None
        if isinstance(version, str):
            check_inside("version", version)
        if version != self._known_version and (self._settled or not self._automatic):
            return None
        return self._directory_of(version)

    def _continue_in(self, place: dict[str, Any]) -> None:
        """Continue in the directory that `place` describes. Remove one that was created earlier and is still empty."""
        if not self._names_itself:
            before, self._version = self._version, place["version"]
            if before is not None and before != self._version and not is_url(self._versions_dir):
                with contextlib.suppress(OSError):
                    os.rmdir(below(self._versions_dir, f"version_{before}"))
        self._next_step, self._has_hparams = place["next_step"], False
        self.hparams = dict(place["hparams"])

    def _take_version(self) -> int:
        self._make_directory(self._versions_dir)
        version = max(self._numbers(), default=-1) + 1
        while True:
            try:
                self._create(self._directory_of(version))
                return version
            except FileExistsError:
                version += 1

    def _create(self, directory: str) -> None:
        """Create a directory in one process only; at a URL with a file in it, as object stores have no directories."""
        if not is_url(directory):
            os.mkdir(directory)
            return
        files, key = filesystem(directory)
        files.makedirs(key, exist_ok=True)
        files.pipe_file(f"{key}/{HPARAMS_FILE}", b"{}\n", mode="create")

    def _numbers(self) -> list[int]:
        if is_url(self._versions_dir):
            filesystem(self._versions_dir)  # the error for a package that is missing
        matches = (re.fullmatch(r"version_(\d+)", entry) for entry in storage.names_in(self._versions_dir))
        return [int(match[1]) for match in matches if match]


def _not_writable(path: str, error: OSError) -> MisconfigurationException:
    return MisconfigurationException(
        f"The log directory {path!r} cannot be written: {error}",
        expected="a directory that exists or can be created, and to which this user may write.",
        fix="give the logger another save_dir (or the Trainer another default_root_dir), or change permissions.",
    )


def check_inside(argument: str, value: str) -> str:
    """Return `value` if it stays below the directory that it will be joined to.

    Raises:
        MisconfigurationException: It is absolute, one of its parts is ``..``, or it holds a NUL.
        ArgumentTypeError: It is not a string.
    """
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"{argument} is {value!r}.", expected="a string.", fix=f"use {argument}={str(value)!r}."
        )
    if "\0" in value:
        raise MisconfigurationException(
            f"{argument} is {value!r}, which holds the character NUL.",
            expected="the name of a directory, which has no such character.",
            fix=f"{argument}={value.replace(chr(0), '')!r}",
        )
    windows = PureWindowsPath(value)
    if ".." in windows.parts or windows.drive or windows.root or PurePosixPath(value).is_absolute():
        raise MisconfigurationException(
            f"{argument} is {value!r}, which leads out of save_dir.",
            expected="a relative path without '..'.",
            fix=f"put the directory into save_dir and the rest into {argument}.",
        )
    return value
