"""Claim: a lock on a folder, so that two runs do not write into it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket

from lightlib import report, safe_files
from lightlib.checkpoint.storage.store import is_remote, local_path
from lightlib.errors import MisconfigurationException

LOCK = ".lightlib.lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_held: dict[tuple[int, str], Claim] = {}  # by process, so that a forked process holds none, and by folder


class Claim(contextlib.AbstractContextManager["Claim"]):
    """A claim on a folder, held until it is released as often as it was claimed, or until the process ends.

    Example:
        >>> with claim("."):
        ...     pass  # another process that claims this folder now gets an error
    """

    def __init__(self, folder: str, handle: int | None) -> None:
        self.folder = folder
        self._handle = handle
        self._count = 1
        self._process = os.getpid()

    def release(self) -> None:
        """Release the folder; does nothing in a process that was forked from the holder."""
        if self._process != os.getpid() or self._count == 0:
            return
        self._count -= 1
        if self._count:
            return
        _held.pop((self._process, self.folder), None)
        if self._handle is not None:
            path = os.path.join(self.folder, LOCK)
            with contextlib.suppress(OSError):
                if _is_at(self._handle, path):
                    os.unlink(path)
            os.close(self._handle)
            self._handle = None

    def again(self) -> Claim:
        """Claim the folder once more."""
        self._count += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def claim(folder: str | os.PathLike[str]) -> Claim:
    """Claim an existing folder for this process, which may do so again; a folder on a store is not locked."""
    if is_remote(folder):
        return Claim(os.fspath(folder), None)
    where = os.path.realpath(local_path(folder))
    present = _held.get((os.getpid(), where))
    if present is not None:
        return present.again()
    try:
        handle = _lock(where)
    except BlockingIOError as error:
        raise MisconfigurationException(
            f"Another run writes its checkpoints into {where!r}: {_holder(where)}.",
            expected="one run per folder: each would remove or replace the files of the other.",
            fix="ModelCheckpoint(dirpath='another/folder'), or end the other run first.",
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise MisconfigurationException(
                f"The folder {where!r} cannot be claimed for this run: {error}.",
                expected="a folder that exists and into which this user may write.",
                fix="choose another folder.",
            ) from error
        report.warn(
            f"The file system of {where!r} has no locks ({error}): a second run that writes into it is not detected.",
            report.PossibleUserWarning,
        )
        handle = None
    _held[os.getpid(), where] = new = Claim(where, handle)
    return new


def _lock(folder: str) -> int | None:
    if os.name != "posix":
        return None
    import fcntl  # optional: fcntl, which only POSIX systems have

    path = os.path.join(folder, LOCK)
    while True:
        handle = safe_files.descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            try:  # unlike flock's, this lock is not inherited by forked workers
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except PermissionError as error:  # some systems raise EACCES instead of EAGAIN
                raise BlockingIOError(*error.args) from error
            if not _is_at(handle, path):  # it was released and removed between opening and locking
                os.close(handle)
                continue
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except BaseException:
            os.close(handle)
            raise
        return handle


def _is_at(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(folder: str) -> str:
    try:
        with open(safe_files.descriptor(os.path.join(folder, LOCK), os.O_RDONLY), encoding="utf-8") as file:
            holder = json.load(file)
        return f"process {int(holder['process'])} on {str(holder['host'])!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has not written its number yet"
