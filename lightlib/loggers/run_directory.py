"""RunDirectory: `save_dir/name/version`, where no two runs ever choose the same version."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from lightlib import safe_files
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import rank_zero_only

__all__ = ["HPARAMS_FILE", "RunDirectory", "check_inside", "filesystem", "is_url"]

HPARAMS_FILE = "hparams.yaml"


class RunDirectory:
    """The directory of one run.

    Args:
        save_dir: A path, in which ``~`` and ``$NAME`` are expanded, or a URL that fsspec knows.
        name: The directory of all versions; an empty string or None leaves this level out.
        version: A number n gives ``version_n``, a string is taken unchanged, None takes the next free number.
        owner: The logger, whose `root_dir` and `version` are used: a subclass may override them.
        names_itself: Whether the owner's class overrides `version`.

    Attributes:
        automatic: Whether the version was not given.
        settled: Whether a run has started in this directory; until then a resumed run may choose its own.

    The next free version is taken by *creating* its directory, which succeeds in one process only. So reading `version`
    or `path` creates the directory, when `version` is None and this is rank zero. On the other processes the version is
    None until it is set.

    Raises:
        MisconfigurationException: `name` or `version` leads out of `save_dir`.
        ArgumentTypeError: An argument has a type that is not listed here.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None,
        version: int | str | None,
        owner: Any = None,
        names_itself: bool = False,
    ) -> None:
        if not isinstance(save_dir, (str, os.PathLike)):
            raise ArgumentTypeError(
                f"save_dir is {save_dir!r}.", expected="a path or a URL.", fix="use for example save_dir='logs'."
            )
        if isinstance(version, bool) or not isinstance(version, (int, str, type(None))):
            raise ArgumentTypeError(
                f"version is {version!r}.",
                expected="a number, a string, or None for the next free number.",
                fix="use for example version=0 or version='baseline'.",
            )
        location = os.fspath(save_dir)
        self.save_dir = location if is_url(location) else os.path.expanduser(os.path.expandvars(location)) or "."
        self.name = check_inside("name", name or "")
        if isinstance(version, str):
            check_inside("version", version)
        self._version = version
        self._owner = self if owner is None else owner
        self._names_itself = names_itself
        self.automatic = version is None and not names_itself
        self.settled = False

    @property
    def root_dir(self) -> str:
        """The directory of all versions by the arguments."""
        return self.join(self.save_dir, self.name)

    @property
    def root(self) -> str:
        """The directory of all versions."""
        root: str = self._owner.root_dir
        return root

    @property
    def version(self) -> int | str | None:
        """The version of this run, chosen now if it was not given; None while it is unknown off rank zero."""
        if self._version is None and rank_zero_only.rank == 0:
            try:
                self._version = self._take_remote() if is_url(self.root) else self._take()
            except OSError as error:
                raise self._not_writable(self.root, error) from error
        return self._version

    @version.setter
    def version(self, version: int | str | None) -> None:
        self._version = version

    @property
    def path(self) -> str | None:
        """The directory of this run; None while the version is unknown."""
        version = self._owner.version
        if version is None:
            return None
        return self.join(self.root, f"version_{version}" if isinstance(version, int) else version)

    @property
    def is_known(self) -> bool:
        """Whether the version has been given, chosen or shared."""
        return self._known_version is not None

    @property
    def _known_version(self) -> int | str | None:
        version: int | str | None = self._owner.version if self._names_itself else self._version
        return version

    def described(self) -> dict[str, Any]:
        """Return the arguments, with the version if it is known."""
        return {"save_dir": self.save_dir, "name": self.name, "version": self._version}

    def settle(self) -> None:
        """Note that a run has started in this directory."""
        self.settled = True

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        """Set the version that rank zero chose."""
        if not self._names_itself:
            self._version = broadcast(self.version)

    def earlier(self) -> list[str]:
        """Return the directories of the numbered versions, the newest first; none when this one is fixed."""
        if self.settled or not self.automatic:
            return []
        found = sorted(_numbers(_entries(self.root)), reverse=True)
        return [self.join(self.root, f"version_{number}") for number in found]

    def place(self) -> dict[str, Any]:
        """Return the root and the version, as plain values for a checkpoint."""
        root = self.root if is_url(self.root) else os.path.realpath(self.root)
        return {"root": root, "version": self._known_version}

    def path_of(self, place: dict[str, Any]) -> str | None:
        """Return the directory that `place` describes, if a resumed run may continue there; else None.

        It may have been moved from another root; the caller decides whether that matters (see `is_same_root`).
        """
        version = place.get("version")
        if isinstance(version, bool) or not isinstance(version, (int, str)):
            return None
        if isinstance(version, str):
            check_inside("version", version)
        if version != self._known_version and (self.settled or not self.automatic):
            return None
        return self.join(self.root, f"version_{version}" if isinstance(version, int) else version)

    def is_same_root(self, place: dict[str, Any]) -> bool:
        """Whether `place` describes a directory in the same root."""
        return bool(place.get("root") == self.place()["root"])

    def adopt(self, place: dict[str, Any]) -> None:
        """Continue in the directory that `place` describes. Remove one that was created earlier and is still empty."""
        if self._names_itself:
            return
        before, self._version = self._version, place["version"]
        if before is not None and before != self._version and not is_url(self.root):
            with contextlib.suppress(OSError):
                os.rmdir(self.join(self.root, f"version_{before}"))

    def prepare(self, path: str | None = None) -> str | None:
        """Create the directory of this run, or `path` in its place, on rank zero, and return its path.

        Raises:
            MisconfigurationException: It cannot be created or written to.
        """
        path = path or self.path
        if path is None or rank_zero_only.rank != 0:
            return path
        try:
            if is_url(path):
                filesystem(path)[0].makedirs(filesystem(path)[1], exist_ok=True)
            else:
                os.makedirs(path, exist_ok=True)
                if not os.access(path, os.W_OK | os.X_OK):
                    raise PermissionError("no permission to write")
        except OSError as error:
            raise self._not_writable(path, error) from error
        return path

    def write_hparams(
        self, params: dict[str, Any], folder: str | None = None, name: str = HPARAMS_FILE, only_if_absent: bool = False
    ) -> None:
        """Write `params`, plain values in nested dicts and lists, into a file of this directory, or of `folder`."""
        path = self.prepare(folder)
        assert path is not None, "only rank zero writes"
        text = _yaml(params)
        path = self.join(path, name)
        if only_if_absent and exists(path):
            return
        if is_url(path):
            files, key = filesystem(path)
            files.pipe_file(key, text.encode())
            return
        safe_files.replace(path, text.encode())

    def _take(self) -> int:
        os.makedirs(self.root, exist_ok=True)
        version = max(_numbers(os.listdir(self.root)), default=-1) + 1
        while True:
            try:
                os.mkdir(os.path.join(self.root, f"version_{version}"))
                return version
            except FileExistsError:
                version += 1

    def _take_remote(self) -> int:
        """As `_take`, but with a file that only one process can create: an object store has no directories."""
        files, root = filesystem(self.root)
        files.makedirs(root, exist_ok=True)
        version = max(_numbers(_entries(self.root)), default=-1) + 1
        while True:
            try:
                directory = f"{root.rstrip('/')}/version_{version}"
                files.makedirs(directory, exist_ok=True)
                files.pipe_file(f"{directory}/{HPARAMS_FILE}", b"{}\n", mode="create")
                return version
            except FileExistsError:
                version += 1

    @staticmethod
    def join(*parts: str | None) -> str:
        """Return a path or URL of the parts that are not empty."""
        first, *others = [part for part in parts if part]
        if is_url(first):
            return "/".join([first.rstrip("/"), *others]) if others else first
        return os.path.join(first, *others)

    @staticmethod
    def _not_writable(path: str, error: OSError) -> MisconfigurationException:
        return MisconfigurationException(
            f"The log directory {path!r} cannot be written: {error}",
            expected="a directory that exists or can be created, and to which this user may write.",
            fix="give the logger another save_dir (or the Trainer another default_root_dir), or change permissions.",
        )


def is_url(path: str) -> bool:
    r"""Return whether `path` is a URL such as ``s3://bucket/logs``, for fsspec.

    Example:
        >>> is_url("memory://logs"), is_url("/var/logs"), is_url("C:\\logs")
        (True, False, False)
    """
    return "://" in path


def exists(path: str) -> bool:
    """Whether there is a file at a path or URL."""
    if is_url(path):
        files, key = filesystem(path)
        return bool(files.exists(key))
    return os.path.exists(path)


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


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for `url`, and the path in it.

    Raises:
        MisconfigurationException: fsspec, or the package it needs for this kind of URL, is not installed.
    """
    try:
        import fsspec  # optional: fsspec

        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
        return found
    except (ImportError, ValueError) as error:
        raise MisconfigurationException(
            f"save_dir {url!r} cannot be opened: {error}",
            expected="a path, or a URL whose protocol fsspec knows, with the package for it installed.",
            fix="pip install fsspec (and s3fs for s3://, gcsfs for gs://, adlfs for abfs://), or use a local path.",
        ) from error


def _entries(root: str) -> list[str]:
    if is_url(root):
        files, key = filesystem(root)
        files.invalidate_cache(key)
        found = files.ls(key, detail=False) if files.isdir(key) else []
        return [entry.rstrip("/").rsplit("/", 1)[-1] for entry in found]
    return os.listdir(root) if os.path.isdir(root) else []


def _numbers(entries: list[str]) -> list[int]:
    matches = (re.fullmatch(r"version_(\d+)", entry) for entry in entries)
    return [int(match[1]) for match in matches if match]


def _yaml(params: dict[str, Any]) -> str:
    try:
        import yaml  # optional: pyyaml
    except ImportError as error:
        raise MisconfigurationException(
            f"{HPARAMS_FILE} cannot be written: {error}",
            expected="the package PyYAML.",
            fix="pip install pyyaml",
        ) from error
    text: str = yaml.safe_dump(params, sort_keys=False, allow_unicode=True)
    return text
