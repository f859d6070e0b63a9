"""Log files, local or at a URL: their addresses, names, content and truncation."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from lightlib import optional, safe_files
from lightlib.checkpoint.storage import filesystem as storage
from lightlib.checkpoint.storage.store import file_system
from lightlib.errors import MisconfigurationException

HPARAMS_FILE = "hparams.yaml"


def is_url(path: str) -> bool:
    r"""Return whether `path` is a URL such as ``s3://bucket/logs``, for fsspec.

    Example:
        >>> is_url("memory://logs"), is_url("/var/logs"), is_url("C:\\logs")
        (True, False, False)
    """
    return "://" in path


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for `url`, and the path in it.

    Raises:
        MisconfigurationException: fsspec, or the package it needs for this kind of URL, is not installed.
    """
    try:
        return file_system(url)
    except (ImportError, ValueError) as error:
        raise MisconfigurationException(
            f"save_dir {url!r} cannot be opened: {error}",
            expected="a path, or a URL whose protocol fsspec knows, with the package for it installed.",
            fix=f"{optional.STORES}; or use a local path.",
        ) from error


def below(*parts: str | None) -> str:
    """Return the path or URL of the parts that are not empty.

    Example:
        >>> below("s3://bucket/", None, "version_0")
        's3://bucket/version_0'
    """
    first, *others = [part for part in parts if part]
    return "/".join([first.rstrip("/"), *others]) if is_url(first) else os.path.join(first, *others)


def size_of(path: str) -> int | None:
    """Return the size of a file in bytes; None when there is none."""
    return storage.size_of(path) if storage.exists(path) and not storage.is_folder(path) else None


def file_names(folder: str) -> list[str]:
    """Return the names of the files in a folder, sorted; none when there is no folder."""
    return [name for name in storage.names_in(folder) if not storage.is_folder(below(folder, name))]


def folder_names(folder: str) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    return [name for name in storage.names_in(folder) if storage.is_folder(below(folder, name))]


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


def replace(path: str, data: bytes) -> None:
    """Write a file; a local one appears under its name when it is complete."""
    if is_url(path):
        files, key = filesystem(path)
        files.pipe_file(key, data)
    else:
        safe_files.replace(path, data)


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
        storage.remove(path)


def free_name(folder: str, stem: str, ending: str) -> str:
    """Return the first of ``stem-v1.ending``, ``stem-v2.ending``, … that is unused in `folder`.

    Example:
        >>> free_name("/nowhere", "metrics", ".csv")
        'metrics-v1.csv'
    """
    taken, number = storage.names_in(folder), 1
    while f"{stem}-v{number}{ending}" in taken:
        number += 1
    return f"{stem}-v{number}{ending}"
