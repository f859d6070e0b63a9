"""Log files, local or at a URL: their sizes, truncation, removal and renaming."""

from __future__ import annotations

import contextlib
import os

from lightlib import safe_files
from lightlib.loggers.run_directory import filesystem, is_url

__all__ = ["below", "cut", "file_names", "flush", "folder_names", "free_name", "remove", "rename", "size_of"]


def below(folder: str, *names: str) -> str:
    """Return a path in `folder`, which may be a URL.

    Example:
        >>> below("memory://logs/", "run", "metrics.csv")
        'memory://logs/run/metrics.csv'
    """
    return "/".join([folder.rstrip("/"), *names]) if is_url(folder) else os.path.join(folder, *names)


def size_of(path: str) -> int | None:
    """Return the size of a file in bytes; None when there is none."""
    if is_url(path):
        files, key = filesystem(path)
        return int(files.size(key)) if files.isfile(key) else None
    return os.path.getsize(path) if os.path.isfile(path) else None


def file_names(folder: str) -> list[str]:
    """Return the names of the files in a folder, sorted; none when there is no folder."""
    return _names(folder, "file")


def folder_names(folder: str) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    return _names(folder, "directory")


def _names(folder: str, kind: str) -> list[str]:
    if is_url(folder):
        files, key = filesystem(folder)
        files.invalidate_cache(key)
        found = files.ls(key, detail=True) if files.isdir(key) else []
        return sorted(one["name"].rstrip("/").rsplit("/", 1)[-1] for one in found if one["type"] == kind)
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        return sorted(one.name for one in entries if (one.is_file() if kind == "file" else one.is_dir()))


def flush(path: str) -> None:
    """Flush a local file and its folder to the disk, so that they survive a power failure."""
    if is_url(path) or not os.path.isfile(path):
        return
    for each in (path, os.path.dirname(path)) if os.name == "posix" else (path,):
        handle = os.open(each, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def cut(path: str, size: int) -> None:
    """Keep the first `size` bytes of a file."""
    if is_url(path):
        files, key = filesystem(path)
        files.pipe_file(key, files.cat_file(key, 0, size) if size else b"")
    else:
        handle = safe_files.descriptor(path, os.O_WRONLY)
        try:
            os.ftruncate(handle, size)
        finally:
            os.close(handle)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        if is_url(path):
            files, key = filesystem(path)
            files.rm_file(key)
        else:
            os.remove(path)


def rename(old: str, new: str) -> None:
    """Give a file another name in the same place."""
    if is_url(old):
        files, key = filesystem(old)
        files.mv(key, filesystem(new)[1])
    else:
        os.rename(old, new)


def free_name(folder: str, stem: str, ending: str) -> str:
    """Return the first of ``stem-v1.ending``, ``stem-v2.ending``, … that is unused in `folder`.

    Example:
        >>> free_name("/nowhere", "metrics", ".csv")
        'metrics-v1.csv'
    """
    taken, number = set(file_names(folder)), 1
    while f"{stem}-v{number}{ending}" in taken:
        number += 1
    return f"{stem}-v{number}{ending}"
