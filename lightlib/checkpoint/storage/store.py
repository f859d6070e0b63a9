"""Objects on a store that fsspec can access: their addresses, sizes and listings, and reading them."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO, TypeVar, cast

from lightlib import paths
from lightlib.checkpoint.storage.options import options_of
from lightlib.checkpoint.storage.retries import noted_if_slow, with_retries

# Stores in which an object appears when its upload is completed; in other stores it is written under a temporary name.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss", "obs", "tos", "cos"})
LARGEST_READ = 2**26  # bytes of one request
REQUESTS = 16  # at the same time
T = TypeVar("T")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is an address such as "s3://bucket/folder"; "file:///folder" is local.

    Example:
        >>> is_remote("s3://bucket/folder"), is_remote("folder"), is_remote("file:///folder")
        (True, False, False)
    """
    name = os.fspath(path)
    return "://" in name and not name.startswith(("file://", "local://"))


def local_path(path: str | os.PathLike[str]) -> str:
    """Return a path for the `os` functions: "file:///a" becomes "/a", mounts are applied, other paths stay.

    Example:
        >>> local_path("file:///a/b"), local_path("a/b")
        ('/a/b', 'a/b')
    """
    return paths.resolve(os.fspath(path).removeprefix("file://").removeprefix("local://"))


def is_object_store(files: Any) -> bool:
    """Whether an object appears there only when its upload is completed."""
    protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    return bool(protocols & OBJECT_STORES)


def file_system(path: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the name of the object in it."""
    import fsspec  # optional: fsspec

    return cast("tuple[Any, str]", fsspec.core.url_to_fs(path, **options_of(path)))


def object_info(path: str) -> dict[str, Any]:
    """Return fsspec's description of an object or a folder; raise FileNotFoundError if it does not exist."""
    files, name = file_system(path)

    def read_info() -> dict[str, Any] | None:
        files.invalidate_cache(name)
        try:
            return cast("dict[str, Any]", files.info(name))
        except FileNotFoundError:
            return None

    info = with_retries(f"looking for {path!r}", read_info)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return info


def exists(path: str) -> bool:
    """Whether there is an object of this name, or objects below it."""
    with contextlib.suppress(FileNotFoundError):
        return bool(object_info(path))
    return False


def is_folder(path: str) -> bool:
    """Whether there are objects below this name."""
    with contextlib.suppress(FileNotFoundError):
        return bool(object_info(path)["type"] == "directory")
    return False


def size_of(path: str) -> int:
    """Return the size of an object in bytes."""
    return int(object_info(path)["size"])


def open_for_reading(path: str) -> BinaryIO:
    """Open an object for reading and seeking; each read is a separate request and is retried."""
    from fsspec.spec import AbstractBufferedFile  # optional: fsspec

    files, name = file_system(path)

    def fetch(start: int, end: int) -> bytes:
        data: bytes = files.cat_file(name, start=start, end=end)
        if len(data) != end - start:
            raise OSError(errno.EAGAIN, f"the store sent {len(data)} of {end - start} bytes")
        return data

    class Reader(AbstractBufferedFile):  # type: ignore[misc]
        def _fetch_range(self, start: int, end: int) -> bytes:
            starts = range(start, end, LARGEST_READ)
            pieces = (partial(fetch, at, min(at + LARGEST_READ, end)) for at in starts)
            return b"".join(with_retries(f"reading {path!r}", piece) for piece in pieces)

    return cast("BinaryIO", Reader(files, name, block_size=2**20, size=size_of(path)))


def each(call: Callable[[str], T], paths: Iterable[str], what: str) -> list[T]:
    """Return the results of `call` for paths, in parallel if one is remote; `what` describes it if it takes long."""
    listed = list(paths)
    if not any(map(is_remote, listed)):
        return list(map(call, listed))
    with noted_if_slow(f"{what} ({len(listed)})"), ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(call, listed))


def names_in(folder: str) -> list[str]:
    """Return the sorted names of the objects and folders in `folder`."""
    return sorted(sizes_in(folder))


def sizes_in(folder: str) -> dict[str, int | None]:
    """Return the sizes of the objects and folders in `folder` by name; None where the store does not list them."""
    files, name = file_system(folder)
    start = name.rstrip("/") + "/"

    def list_objects() -> list[dict[str, Any]]:
        files.invalidate_cache(name)
        try:
            return list(files.ls(name, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []

    objects = ((str(info["name"]).rstrip("/"), info) for info in with_retries(f"listing {folder!r}", list_objects))
    return {posixpath.basename(path): info.get("size") for path, info in objects if path.startswith(start)}
