"""Disks that fill up after a number of bytes: a file object, a system limit, a small tmpfs."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENOUGH = 2**40


class Disk:
    """A disk of limited size: files opened by `os.fdopen` raise ENOSPC once it is full.

    Attributes:
        room: Bytes left.
        written: Bytes written since `room` was set.
        refuses: Functions of `os` that fail too, as on a broken disk: "fsync", "replace".
    """

    def __init__(self) -> None:
        self.room, self.written = ENOUGH, 0
        self.refuses: set[str] = set()

    def set(self, room: int = ENOUGH, *refuses: str) -> None:
        """Set the bytes left, and the functions that fail."""
        self.room, self.written, self.refuses = room, 0, set(refuses)

    @contextmanager
    def mounted(self) -> Iterator[Disk]:
        """Make this the disk that the process writes on."""
        real = {name: getattr(os, name) for name in ("fdopen", "fsync", "replace", "rename", "mkdir")}
        os.fdopen = lambda *arguments: _File(real["fdopen"](*arguments), self)
        for name in ("fsync", "replace", "rename", "mkdir"):
            setattr(os, name, self._refusing(name, real[name]))
        try:
            yield self
        finally:
            for name, function in real.items():
                setattr(os, name, function)

    def _refusing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if name in self.refuses:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **more)

        return call


class _File:
    """A file on such a disk. As on a real disk, the bytes that still fit are written."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        fits = view[: max(self._disk.room, 0)]
        self._file.write(fits)
        self._disk.room -= len(fits)
        self._disk.written += len(fits)
        if len(fits) < len(view):
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


class Limit:
    """The system's limit on the size of each file of this process (RLIMIT_FSIZE)."""

    def set(self, room: int = ENOUGH, *refuses: str) -> None:
        """Limit files to this size."""
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if room == ENOUGH else room, hard))

    @contextmanager
    def mounted(self) -> Iterator[Limit]:
        """Remove the limit at the end."""
        try:
            yield self
        finally:
            self.set()


class Tmpfs:
    """A file system in memory that is filled up to so many bytes. Its blocks are of 4 KiB.

    Args:
        folder: Where it is mounted.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def set(self, room: int = ENOUGH, *refuses: str) -> None:
        """Fill it until this much room is left."""
        ballast = Path(self.folder, ".ballast")
        ballast.unlink(missing_ok=True)
        if room < ENOUGH:
            handle = os.open(ballast, os.O_CREAT | os.O_WRONLY)
            os.posix_fallocate(handle, 0, max(shutil.disk_usage(self.folder).free - room, 1))
            os.close(handle)

    @contextmanager
    def mounted(self) -> Iterator[Tmpfs]:
        """Empty it at the end."""
        try:
            yield self
        finally:
            self.set()


def tmpfs_allowed() -> bool:
    """Whether a process of this user may mount one, in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def in_tmpfs(folder: str, size: int, module: str, arguments: list[str]) -> int:
    """Run a module in a namespace with a tmpfs of `size` bytes at `folder`; return its exit code."""
    script = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && exec "$@"'
    program = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script, "sh", str(size), folder, *program], check=False
    ).returncode
