"""Writes, copies and removes objects of a store: one appears when its upload is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
import time
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from lightlib import optional, report
from lightlib.checkpoint.storage.local import PieceWriter
from lightlib.checkpoint.storage.retries import StoreError, reason_of, with_retries
from lightlib.checkpoint.storage.store import file_system, is_object_store, names_in, object_info, size_of
from lightlib.errors import CheckpointWriteError, LightlibError, MisconfigurationException

PIECE = 2**23  # bytes handed over at once, so that a store never buffers more than one part plus one piece


def write(path: str, produce: Callable[[BinaryIO], None]) -> None:
    """Upload the output of `produce`, which is called again for each retry. The object appears when it is complete."""
    begun, tries = time.monotonic(), 0

    def attempt() -> None:
        nonlocal tries
        tries += 1
        _upload(path, produce)

    try:
        with_retries(f"writing {path!r}", attempt)
    except (StoreError, ImportError) as error:
        reason = reason_of(error.__cause__ if isinstance(error, StoreError) else error)
        often = f" Tried {tries} times in {time.monotonic() - begun:.0f} s." if tries > 1 else ""
        raise _write_error(path, f"{reason.removesuffix('.')}.{often}") from error


def _write_error(path: str, reason: str) -> CheckpointWriteError:
    return CheckpointWriteError(
        f"The checkpoint {path!r} could not be written: {reason}",
        expected="a store that can be accessed and written.",
        fix="check the address, the credentials and the quota.",
    )


class Upload(PieceWriter):
    """A file of a store, open for writing; its parts are uploaded when they are full."""

    piece = PIECE

    def __init__(self, file: Any) -> None:
        super().__init__()
        self.file = file

    def _put(self, piece: memoryview) -> None:
        self.file.write(bytes(piece))

    def discard(self, path: str) -> None:
        """Discard the upload, so that no part of it stays in the store."""
        if not hasattr(self.file, "discard"):
            with contextlib.suppress(Exception):
                self.file.close()
            return
        try:
            with_retries(f"discarding the upload of {path!r}", self._discard)
        except Exception as error:  # noqa: BLE001  the error that made us discard it is the one to raise
            report.warn(
                f"The incomplete upload of {path!r} could not be discarded: {reason_of(error)}. It is not a "
                "checkpoint, but uses space until the store's rule for incomplete uploads removes it."
            )
        with contextlib.suppress(AttributeError):  # fsspec would complete the upload when the file is collected
            self.file.closed = True

    def _discard(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # discarded before, but the answer was lost
            self.file.discard()


def _upload(path: str, produce: Callable[[BinaryIO], None]) -> None:
    files, name, temporary = _names(path)
    upload: Upload | None = None
    by_store = True  # whether the store raises an error that occurs now
    try:
        if temporary != name:
            files.makedirs(posixpath.dirname(name), exist_ok=True)
        upload = Upload(files.open(temporary, "wb"))
        by_store = False
        produce(cast("BinaryIO", upload))
        by_store = True
        upload.file.close()
        _compare_size(files, temporary, upload.written)
        if temporary != name:
            _move(files, temporary, name)
    except BaseException as error:
        if upload is not None:
            upload.discard(path)
        if temporary != name:
            with contextlib.suppress(Exception):
                files.rm_file(temporary)
        reason = error if by_store else upload.failed if upload is not None else None
        if isinstance(error, LightlibError) or not isinstance(reason, Exception):
            raise
        raise StoreError(reason_of(reason)) from reason


def _names(path: str) -> tuple[Any, str, str]:
    """Return the file system, the name of the object in it, and its name until it is complete."""
    try:
        files, name = file_system(path)
    except (OSError, ValueError) as error:  # no such protocol, or no credentials
        raise StoreError(reason_of(error)) from error
    if is_object_store(files):
        return files, name, name
    folder, base = posixpath.split(name)
    return files, name, posixpath.join(folder, f".{base}.{os.getpid()}-{secrets.token_hex(4)}.part")


def _compare_size(files: Any, name: str, written: int) -> None:
    files.invalidate_cache(name)
    size = int(files.info(name)["size"])
    if size != written:
        raise OSError(errno.EAGAIN, f"the store has {size} of the {written} bytes that were sent")


def _move(files: Any, old: str, new: str) -> None:
    try:
        files.mv(old, new)
    except FileExistsError:  # a store that does not replace existing objects
        files.rm_file(new)
        files.mv(old, new)


def copied_within(old: str, new: str) -> bool:
    """Copy an object within its store if the store supports it, without transferring bytes; return whether it did."""
    files, source, _ = _names(old)
    target_files, target, temporary = _names(new)
    if files is not target_files or temporary != target:
        return False
    size = size_of(old)

    def attempt() -> None:
        files.cp_file(source, target)
        _compare_size(files, target, size)

    try:
        with_retries(f"copying {old!r}", attempt)
    except Exception as error:
        raise _write_error(new, f"{reason_of(error).removesuffix('.')}.") from error
    return True


def remove(path: str, first: str) -> None:
    """Remove an object, or all objects below a name: the one named `first` first, then the rest."""
    if object_info(path)["type"] != "directory":
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
    """Check that an object can be written into a folder of a store, by writing and removing one."""
    probe = f"{folder.rstrip('/')}/.{secrets.token_hex(4)}.part"
    try:
        files, name = file_system(folder)
        created = []
        while not is_object_store(files) and name.strip("/") and not files.exists(name):
            created.append(name)
            name = posixpath.dirname(name)
        write(probe, lambda file: cast("None", file.write(b"lightlib")))
        _remove_object(probe)
        for parent in created:
            with contextlib.suppress(Exception):
                files.rmdir(parent)
    except Exception as error:
        reason = error.__cause__.__cause__ if isinstance(error.__cause__, StoreError) else error.__cause__ or error
        raise MisconfigurationException(
            f"{owner} cannot write into {folder!r}: {reason_of(reason)}",
            expected="a store that can be accessed and written, with a protocol that fsspec knows.",
            fix=f"check the address and the credentials; {optional.STORES}.",
        ) from error
