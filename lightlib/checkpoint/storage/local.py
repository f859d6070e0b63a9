"""Writing to a disk: files written in pieces and flushed meanwhile, and errors that name the cause."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from lightlib.checkpoint.storage.store import local_path
from lightlib.errors import CheckpointWriteError

INDEX = "index.json"  # a directory without this file is not a checkpoint: it is written last and removed first
# Bytes handed to the system at once. With 4 MiB or more, a third to a half of all saves took two to three times as long
# on a virtual machine (Linux 6.18, ext4); the additional time was CPU time of writing, not disk time.
PIECE = 2**18
WRITE_BACK = 2**23  # bytes after which the disk starts to write them
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PieceWriter(io.BufferedIOBase, ABC):
    """Base of the files that `torch.save` writes to: splits the data, counts it, and keeps the first error.

    It keeps the error even if the caller has turned it into another one; later writes raise it again.
    """

    piece: ClassVar[int]  # largest number of bytes handed on at once
    kept_errors: ClassVar[type[BaseException]] = BaseException

    def __init__(self) -> None:
        self.failed: BaseException | None = None
        self.written = 0  # number of bytes

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.written

    def write(self, data: Any) -> int:
        if self.failed is not None:
            raise self.failed
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), self.piece):
                piece = view[start : start + self.piece]
                self._put(piece)
                self.written += len(piece)
        except self.kept_errors as error:
            self.failed = error
            raise
        return len(view)

    @abstractmethod
    def _put(self, piece: memoryview) -> None:
        """Write one piece."""

    def flush(self) -> None:
        """No-op: the owner of the file completes it."""


class Writer(PieceWriter):
    """A new file, open for writing from its start to its end; the disk writes while it is filled."""

    piece = PIECE
    kept_errors = OSError

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file: Any = None  # Python also closes a collected object without a file
        self._begun = 0  # bytes that the disk has started to write
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        self._file = os.fdopen(handle, "wb", PIECE // 2)

    def _put(self, piece: memoryview) -> None:
        self._file.write(piece)
        length = self.written + len(piece) - self._begun
        # Linux starts to write such a range without waiting, so that little is left for the flush at the end.
        if length >= WRITE_BACK and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # it is a hint
                os.posix_fadvise(self._file.fileno(), self._begun, length, os.POSIX_FADV_DONTNEED)
            self._begun += length

    def finish(self) -> None:
        """Return when everything is on the disk; an `OSError` means that it cannot be written."""
        if self.failed is not None:
            raise self.failed
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self.failed = error
            raise

    def close(self) -> None:
        """Close the file; without `finish` its content may be lost."""
        if not self.closed:
            super().close()
            with contextlib.suppress(OSError):
                if self._file is not None:
                    self._file.close()


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a local folder and its parents, and flush them; an existing folder is fine."""
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
    """Flush the names in a local folder to the disk."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):  # not supported by the file system
                raise
        finally:
            os.close(handle)


def discard(path: str) -> None:
    """Remove a file, a link or a folder: the index of a checkpoint first, so that half of a folder is never one."""
    if os.path.isdir(path) and not os.path.islink(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, INDEX))
        shutil.rmtree(path)
    else:
        os.unlink(path)


def rename(old: str, new: str) -> None:
    """Rename a local file or folder; if that fails with a `CheckpointWriteError`, both are unchanged."""
    try:
        os.rename(old, new)
        for folder in {os.path.dirname(old) or ".", os.path.dirname(new) or "."}:
            flush_folder(folder)
    except OSError as error:
        raise write_error(new, error) from error


def free_space(path: str | os.PathLike[str]) -> int | None:
    """Return the free bytes where a local `path` is or would be; None if unknown."""
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
    """Return the error for a local checkpoint that could not be written."""
    free = free_space(local_path(path))
    room = "" if free is None else f" {free / 2**20:.0f} MiB are free there."
    return CheckpointWriteError(
        f"The checkpoint {path!r} could not be written: {error}.{room}",
        expected="a writable directory with enough room.",
        fix=("free some space or choose another directory" if error.errno in FULL else "choose another directory")
        + "; earlier checkpoints are unchanged.",
    )
