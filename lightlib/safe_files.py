"""Writes files safely in shared folders: no symbolic link is followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator

__all__ = ["descriptor", "exporting", "replace"]

_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_LINK = (errno.ELOOP, getattr(errno, "EMLINK", errno.ELOOP))  # the second on FreeBSD


def descriptor(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file as `os.open` does; refuse a symbolic link, which could lead to any file of this user.

    Raises:
        OSError: The file cannot be opened, or is a link, or a pipe, whose other end could keep this process waiting.

    Example:
        >>> os.close(descriptor("notes.txt", os.O_WRONLY | os.O_CREAT))
        >>> os.symlink("notes.txt", "link.txt")
        >>> descriptor("link.txt", os.O_WRONLY)
        Traceback (most recent call last):
        OSError: [Errno ...] a symbolic link, which is not followed; remove it: 'link.txt'
    """
    name = os.fspath(path)
    try:
        handle = os.open(name, flags | _SAFE, 0o666)
    except OSError as error:
        if error.errno in _LINK and os.path.islink(name):
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed; remove it", name) from None
        raise
    if stat.S_ISFIFO(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "a pipe and not a file; remove it", name)
    return handle


def replace(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that appears under its name when it is complete; a link of that name is replaced, not followed.

    Raises:
        OSError: It cannot be written; what was there before is as it was.

    Example:
        >>> replace("notes.txt", b"complete")
        >>> os.listdir()
        ['notes.txt']
    """
    name = os.fspath(path)
    part = f"{name}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)  # of a process that was killed, or a link
    file = open(part, "xb")  # noqa: SIM115  closed below; fails if a link has appeared since
    try:
        with file:
            file.write(data)
        os.replace(part, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


@contextlib.contextmanager
def exporting(path: str | os.PathLike[str]) -> Iterator[str]:
    """Lend a place to code that opens files by name: a new folder that only this user may enter.

    At the end, what was written there takes its place in the folder of `path`.

    Raises:
        OSError: The folder cannot be written.

    Example:
        >>> with exporting("notes.txt") as place, open(place, "w") as file:
        ...     length = file.write("complete")
        >>> os.listdir()
        ['notes.txt']
    """
    folder, name = os.path.split(os.path.abspath(path))
    with tempfile.TemporaryDirectory(prefix=".lightlib-", dir=folder) as private:
        yield os.path.join(private, name)
        for written in os.listdir(private):
            os.replace(os.path.join(private, written), os.path.join(folder, written))
