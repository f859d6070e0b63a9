"""Journal: Optuna's journal file, which a writer that dies neither blocks nor damages."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

# Where `flock` of one machine is not known to hold on another one.
_NETWORK = ("nfs", "cifs", "smb", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs", "glusterfs", "fuse")
_MOUNTS = Path("/proc/self/mounts")


class Lock(Protocol):
    """A lock that only one process holds at a time."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...


class JournalFile(JournalFileBackend):
    """A journal that many processes write; one JSON object per line.

    Optuna 5.0 has two faults here. A writer that dies within a line leaves a piece of it, which the next one continues:
    from then on no process can read the study. A writer that dies while it holds the lock blocks the rest for 30
    seconds. Here the piece is moved to ``journal.log.torn-…`` before the next line is written, and on a local file
    system the kernel releases the lock.

    Args:
        path: The file. Created if it is missing; its folder must exist.

    Raises:
        OSError: The file cannot be created, or a line cannot be written; the file is then as it was.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._own = Path(path)
        self._exclusive: Lock = (
            KernelLock(self._own) if has_kernel_lock(self._own.parent) else JournalFileOpenLock(str(path))
        )
        super().__init__(str(path), self._exclusive)  # type: ignore[arg-type]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with _locked(self._exclusive), self._own.open("r+b", buffering=0) as file:
            end = _without_torn_line(file, self._own)
            try:
                _write_all(file, text.encode())
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


class KernelLock:
    """A lock that the kernel releases when its holder dies; within a process one thread may hold it at a time.

    Args:
        path: The file to protect; the lock is the file next to it that ends in ``.flock``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".flock")
        self._held: int | None = None

    def acquire(self) -> bool:
        import fcntl  # optional: only on Unix

        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        self._held = descriptor
        return True

    def release(self) -> None:
        assert self._held is not None, "the lock is not held"
        descriptor, self._held = self._held, None
        os.close(descriptor)


@contextmanager
def _locked(lock: Lock) -> Iterator[None]:
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write_all(file: Any, content: bytes) -> None:
    while content:  # a disk that becomes full takes a part, and refuses the next one
        content = content[file.write(content) :]


def _without_torn_line(file: Any, path: Path) -> int:
    """Move the text after the last newline to a file of its own; return where the next line begins."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return 0
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return int(end)
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    path.with_name(f"{path.name}.torn-{time.time_ns()}").write_bytes(content[whole:])
    file.truncate(whole)
    return int(file.seek(whole))


def has_kernel_lock(folder: Path) -> bool:
    """Whether `flock` excludes all writers of a folder: on Unix, and on a file system of one machine."""
    return os.name == "posix" and not is_on_network(folder)


def is_on_network(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether a folder is on a file system that several machines share; False where it cannot be known.

    Args:
        folder: An existing folder.
        mounts: The mounted file systems, as Linux lists them.
    """
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return False
    filesystems = {Path(_unescaped(place)): filesystem for _, place, filesystem, *_ in map(str.split, lines)}
    folder = folder.resolve()
    filesystem = next((filesystems[place] for place in (folder, *folder.parents) if place in filesystems), "")
    return filesystem.startswith(_NETWORK)


def _unescaped(place: str) -> str:
    return place.replace("\\040", " ")
