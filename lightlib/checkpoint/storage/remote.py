"""Removing objects of a store, and checking that a folder of it can be written."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
from typing import cast

from lightlib.checkpoint.storage.retries import StoreError, reason_of, with_retries
from lightlib.checkpoint.storage.store import file_system, is_object_store, names_in, object_info
from lightlib.checkpoint.storage.upload import write
from lightlib.errors import MisconfigurationException

__all__ = ["check_writable", "remove"]


def remove(path: str, first: str) -> None:
    """Remove an object, or all objects below a name: the one named `first` first, then the rest.

    Raises:
        FileNotFoundError: There is no such object.
        OSError: It cannot be removed.
    """
    info = object_info(path)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if info["type"] != "directory":
        _remove_object(path)
        return
    if first in names_in(path):
        _remove_object(f"{path.rstrip('/')}/{first}")
    files, name = file_system(path)

    def remove_rest() -> None:
        with contextlib.suppress(FileNotFoundError):
            files.rm(name, recursive=True)
        left = names_in(path)
        if left:  # some stores do not report which objects they have kept
            raise OSError(errno.EAGAIN, f"{len(left)} objects still exist")

    with_retries(f"removing {path!r}", remove_rest)


def _remove_object(path: str) -> None:
    files, name = file_system(path)

    def attempt() -> None:
        with contextlib.suppress(FileNotFoundError):  # removed by an earlier try, but the answer was lost
            files.rm_file(name)

    with_retries(f"removing {path!r}", attempt)
    files.invalidate_cache(name)


def check_writable(folder: str, owner: str) -> None:
    """Check that an object can be written into a folder of a store, by writing and removing one.

    Raises:
        MisconfigurationException: The store cannot be accessed or written.
    """
    probe = f"{folder.rstrip('/')}/.{secrets.token_hex(4)}.part"
    try:
        files, name = file_system(folder)
        made = []
        while not is_object_store(files) and name.strip("/") and not files.exists(name):
            made.append(name)
            name = posixpath.dirname(name)
        write(probe, lambda file: cast("None", file.write(b"lightlib")))
        _remove_object(probe)
        for parent in made:
            with contextlib.suppress(Exception):
                files.rmdir(parent)
    except Exception as error:
        reason = error.__cause__.__cause__ if isinstance(error.__cause__, StoreError) else error.__cause__ or error
        raise MisconfigurationException(
            f"{owner} cannot write into {folder!r}: {reason_of(reason)}",
            expected="a store that can be accessed and written, with a protocol that fsspec knows.",
            fix="check the address and the credentials; pip install s3fs for s3://, gcsfs for gs://, adlfs for abfs://.",
        ) from error
