"""Writing on a disk: a file that is flushed while it is written, and what can go wrong with it said."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from typing import Any

from lightlib.errors import CheckpointWriteError

__all__ = ["INDEX", "Writer", "flush_folder", "free_space", "make_folder", "rename", "write_error"]

INDEX = "index.json"  # a directory without this file is no checkpoint: it is written last and removed first
# So many bytes are handed to the system at once. With 4 MiB and more a third to a half of all saves took two to three
# times as long on a virtual machine (Linux 6.18, ext4), in the processor time of writing and not in that of the disk.
PIECE = 2**18
WRITE_BACK = 2**23  # after so many the disk is set to work on them
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Writer(io.BufferedIOBase):
    """A new file, open for writing from its start to its end; the disk works while it is written.

    Args:
        path: There must be no file of this name. Its permissions are those that the umask gives.

    Attributes:
        failed: The first error of the disk, also when the one who writes has made another out of it.
    """

    def __init__(self, path: str) -> None:
        self.failed: OSError | None = None
        self._file: Any = None  # Python closes what it forgets, also where there is no file
        self._written = 0
        self._begun = 0  # how much of it the disk has been set to work on
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        self._file = os.fdopen(handle, "wb", PIECE // 2)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        if self.failed is not None:
            raise self.failed
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), PIECE):
                piece = view[start : start + PIECE]
                self._file.write(piece)
                self._written += len(piece)
                if self._written - self._begun >= WRITE_BACK:
                    self._begin_write_back()
        except OSError as error:
            self.failed = error
            raise
        return len(view)

    def _begin_write_back(self) -> None:
        # Linux starts to write such a range and does not wait, so that little is left for the flush at the end.
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # it is a hint
                length = self._written - self._begun
                os.posix_fadvise(self._file.fileno(), self._begun, length, os.POSIX_FADV_DONTNEED)
        self._begun = self._written

    def flush(self) -> None:
        """Nothing: what matters is `finish`."""

    def finish(self) -> None:
        """Return when all that was written is on the disk.

        Raises:
            OSError: It is not.
        """
        if self.failed is not None:
            raise self.failed
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self.failed = error
            raise

    def close(self) -> None:
        """Close the file; what was not finished may be lost."""
        if not self.closed:
            super().close()
            with contextlib.suppress(OSError):
                if self._file is not None:
                    self._file.close()


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a local folder and those above it, flushed; one that is there is as good.

    Raises:
        OSError: It cannot be made.
    """
    folder = os.fspath(path).rstrip(os.sep) or os.sep
    try:
        if stat.S_ISDIR(os.stat(folder).st_mode):
            return
    except FileNotFoundError:
        above = os.path.dirname(folder) or "."
        make_folder(above)
        os.makedirs(folder, exist_ok=True)
        flush_folder(above)
    else:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)


def flush_folder(path: str | os.PathLike[str]) -> None:
    """Return when the names in a local folder are on the disk."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):  # a file system that cannot
                raise
        finally:
            os.close(handle)


def rename(old: str, new: str) -> None:
    """Give a local file or folder another name; what has that name must be replaceable by it.

    Raises:
        CheckpointWriteError: It cannot be done; both are as they were.
    """
    try:
        os.rename(old, new)
        for folder in {os.path.dirname(old) or ".", os.path.dirname(new) or "."}:
            flush_folder(folder)
    except OSError as error:
        raise write_error(new, error) from error


def free_space(path: str | os.PathLike[str]) -> int | None:
    """Return the free bytes where a local `path` is or would be; None when nobody can tell."""
    folder = os.path.abspath(path)
    while not os.path.isdir(folder):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def write_error(path: str, error: OSError) -> CheckpointWriteError:
    """Return the error for a local checkpoint that the disk did not take."""
    free = free_space(path.removeprefix("file://").removeprefix("local://"))
    room = "" if free is None else f" {free / 2**20:.0f} MiB are free there."
    return CheckpointWriteError(
        f"The checkpoint {path!r} could not be written: {error}.{room}",
        expected="a writable directory with enough room.",
        fix=("free some space or choose another directory" if error.errno in FULL else "choose another directory")
        + "; earlier checkpoints are as they were.",
    )
