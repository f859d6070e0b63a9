"""Checkpoints on a store that fsspec reaches: whole objects, tried again when it falters."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

from lightlib import report
from lightlib.errors import CheckpointWriteError, LightlibError, MisconfigurationException

__all__ = [
    "check_writable",
    "copied_within",
    "exists",
    "is_folder",
    "is_remote",
    "is_transient",
    "names_in",
    "open_for_reading",
    "remove",
    "size_of",
    "with_retries",
    "write",
]

T = TypeVar("T")

ATTEMPTS = 6
FIRST_DELAY, LONGEST_DELAY = 0.5, 20.0  # seconds; each is twice the one before, and up to half of it is left to chance
PATIENCE = 300.0  # seconds after which nothing is tried again, for the store's own package tries again too
PIECE = 2**23  # bytes handed over at once, so that a store never buffers more than one part and this
LARGEST_READ = 2**26

# Stores in which an object appears when its upload is completed; in all others it is written aside and renamed.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss", "obs", "tos", "cos"})

_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_CODES = frozenset({
    "BadDigest", "IncompleteBody", "InternalError", "NoSuchUpload", "OperationAborted", "RequestLimitExceeded",
    "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable", "SlowDown", "SlowDownRead", "SlowDownWrite",
    "Throttling", "ThrottledException", "ThrottlingException", "TooManyRequests", "TooManyRequestsException",
    "XAmzContentSHA256Mismatch",
})  # fmt: skip
_KINDS = frozenset({
    "ClientConnectionError", "ClientConnectorError", "ClientOSError", "ClientPayloadError", "ConnectTimeoutError",
    "ConnectionClosedError", "EndpointConnectionError", "FSTimeoutError", "HTTPClientError", "IncompleteRead",
    "IncompleteReadError", "ProxyConnectionError", "ReadTimeoutError", "ResponseParserError", "ResponseStreamingError",
    "ServerDisconnectedError", "ServerTimeoutError", "ServiceRequestError", "ServiceResponseError", "TransportError",
})  # fmt: skip
_NUMBERS = frozenset({
    errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH,
    errno.ENETDOWN, errno.ENETUNREACH, errno.EPIPE, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EAGAIN),
})  # fmt: skip
_FINAL = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class _StoreError(OSError):
    """A store did not do what it was asked; the cause says why."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is an address such as "s3://bucket/folder"; "file:///folder" is local.

    Example:
        >>> is_remote("s3://bucket/folder"), is_remote("folder"), is_remote("file:///folder")
        (True, False, False)
    """
    name = os.fspath(path)
    return "://" in name and not name.startswith(("file://", "local://"))


def with_retries(what: str, call: Callable[[], T]) -> T:
    """Return what `call` returns; after a time-out, throttling or a dropped connection it is called again.

    Tried at most 6 times within 5 minutes, with growing pauses. The time-outs of single requests are the store's own;
    they are set in fsspec's configuration: ``FSSPEC_S3_CONFIG_KWARGS='{"read_timeout": 60}'``.

    Args:
        what: What is tried, with the object's name, for the message that says so.
        call: Is called until it returns. It must be right to call it again after a failure.

    Raises:
        Exception: What `call` raised last; at once when trying again does not mend it (absent, forbidden).

    Example:
        >>> with_retries("asking", lambda: 3)
        3
    """
    begun = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except Exception as error:
            if attempt == ATTEMPTS or time.monotonic() - begun > PATIENCE or not is_transient(error):
                raise
            longest = min(FIRST_DELAY * 2 ** (attempt - 1), LONGEST_DELAY)
            # Not from `random`: what the user draws must not depend on the network.
            delay = longest * (0.5 + secrets.randbelow(1000) / 2000)
            reason = error.__cause__ if isinstance(error, _StoreError) else error
            report.info(f"{what}: {_told(reason)}; trying again in {delay:.1f} s ({attempt} of {ATTEMPTS} tries).")
        time.sleep(delay)
    raise AssertionError  # the last attempt returns or raises


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed in a moment: time-outs, throttling, dropped connections; never 403 or 404."""
    for one in _causes(error):
        status, code = _answer(one)
        if code in _CODES:
            return True
        if status is not None:
            return status in _STATUS
        if isinstance(one, _FINAL):
            return any(_answer(cause)[1] in _CODES for cause in _causes(one))
        if isinstance(one, (ConnectionError, TimeoutError)) or _KINDS & {kind.__name__ for kind in type(one).__mro__}:
            return True
        if isinstance(one, OSError) and one.errno in _NUMBERS:
            return True
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _answer(error: BaseException) -> tuple[int | None, str]:
    """The status and the code of the answer that an error stands for, as the packages of the stores keep them."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None, str(response.get("Error", {}).get("Code", ""))
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 100 <= status <= 599:
                return status, ""
    return None, ""


def _told(error: BaseException | None) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _store(path: str) -> tuple[Any, str]:
    import fsspec  # optional: fsspec

    files, name = fsspec.core.url_to_fs(path)
    return files, name


def _info(path: str) -> dict[str, Any] | None:
    files, name = _store(path)

    def ask() -> dict[str, Any] | None:
        files.invalidate_cache(name)
        try:
            return cast("dict[str, Any]", files.info(name))
        except FileNotFoundError:
            return None

    return with_retries(f"looking for {path!r}", ask)


def exists(path: str) -> bool:
    """Whether there is such an object, or one whose name begins so with a slash."""
    return _info(path) is not None


def is_folder(path: str) -> bool:
    """Whether there are objects below this name."""
    info = _info(path)
    return info is not None and info["type"] == "directory"


def size_of(path: str) -> int:
    """Return the size of an object in bytes.

    Raises:
        FileNotFoundError: There is none.
    """
    info = _info(path)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return int(info["size"])


def names_in(folder: str) -> list[str]:
    """Return the sorted names of the objects and folders in `folder`."""
    files, name = _store(folder)
    start = name.rstrip("/") + "/"

    def ask() -> list[str]:
        files.invalidate_cache(name)
        try:
            return [str(path).rstrip("/") for path in files.ls(name, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    found = with_retries(f"listing {folder!r}", ask)
    return sorted({posixpath.basename(path) for path in found if path.startswith(start)})


def write(path: str, produce: Callable[[BinaryIO], None]) -> None:
    """Upload what `produce` writes; it is called again at each retry. The object appears when it is complete.

    Raises:
        CheckpointWriteError: It could not be uploaded; an object that was there before is as it was.
    """
    begun, tries = time.monotonic(), 0

    def attempt() -> None:
        nonlocal tries
        tries += 1
        _upload(path, produce)

    try:
        with_retries(f"writing {path!r}", attempt)
    except (_StoreError, ImportError) as error:
        reason = _told(error.__cause__ if isinstance(error, _StoreError) else error)
        often = f" Tried {tries} times in {time.monotonic() - begun:.0f} s." if tries > 1 else ""
        raise _write_error(path, f"{reason.removesuffix('.')}.{often}") from error


def _write_error(path: str, reason: str) -> CheckpointWriteError:
    return CheckpointWriteError(
        f"The checkpoint {path!r} could not be written: {reason}",
        expected="a store that can be reached and written.",
        fix="check the address, the credentials and the quota.",
    )


class _Upload(io.BufferedIOBase):
    """Counts what goes into a file of a store, and keeps the first error that it raised."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.written = 0
        self.failed: BaseException | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.written

    def write(self, data: Any) -> int:
        if self.failed is not None:
            raise self.failed
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), PIECE):
                self.file.write(bytes(view[start : start + PIECE]))
        except BaseException as error:
            self.failed = error
            raise
        self.written += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing: parts are uploaded as they are full."""


def _upload(path: str, produce: Callable[[BinaryIO], None]) -> None:
    files, name, place = _place(path)
    upload: _Upload | None = None
    ours = True  # whether an error that comes now is the store's
    try:
        if place != name:
            files.makedirs(posixpath.dirname(name), exist_ok=True)
        upload = _Upload(files.open(place, "wb"))
        ours = False
        produce(cast("BinaryIO", upload))
        ours = True
        upload.file.close()
        _compare_size(files, place, upload.written)
        if place != name:
            _move(files, place, name)
    except BaseException as error:
        _abandon(files, path, place if place != name else None, upload)
        reason = error if ours else upload.failed if upload is not None else None
        if isinstance(error, LightlibError) or not isinstance(reason, Exception):
            raise
        raise _StoreError(_told(reason)) from reason


def _place(path: str) -> tuple[Any, str, str]:
    """The store, the name of the object in it, and the name that it has until it is complete."""
    try:
        files, name = _store(path)
    except (OSError, ValueError) as error:  # no such protocol, or no credentials
        raise _StoreError(_told(error)) from error
    if _is_object_store(files):
        return files, name, name
    folder, own = posixpath.split(name)
    return files, name, posixpath.join(folder, f".{own}.{os.getpid()}-{secrets.token_hex(4)}.part")


def _is_object_store(files: Any) -> bool:
    protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    return bool(protocols & OBJECT_STORES)


def _compare_size(files: Any, name: str, written: int) -> None:
    files.invalidate_cache(name)
    size = int(files.info(name)["size"])
    if size != written:
        raise OSError(errno.EAGAIN, f"the store holds {size} bytes of it and not the {written} that were sent")


def _move(files: Any, old: str, new: str) -> None:
    try:
        files.mv(old, new)
    except FileExistsError:  # a store that does not replace
        files.rm_file(new)
        files.mv(old, new)


def _abandon(files: Any, path: str, aside: str | None, upload: _Upload | None) -> None:
    """Give up an upload, so that neither a part of it nor what was sent so far stays."""
    if upload is not None and hasattr(upload.file, "discard"):
        try:
            with_retries(f"giving up the upload of {path!r}", lambda: _discard(upload.file))
        except Exception as error:  # noqa: BLE001  the error that made us give up is the one to raise
            report.warn(
                f"What was uploaded of {path!r} could not be discarded: {_told(error)}. It is no checkpoint, but takes "
                "room until the store's rule for incomplete uploads removes it."
            )
        with contextlib.suppress(AttributeError):  # fsspec would complete the upload when the file is collected
            upload.file.closed = True
    elif upload is not None:
        with contextlib.suppress(Exception):
            upload.file.close()
    if aside is not None:
        with contextlib.suppress(Exception):
            files.rm_file(aside)


def _discard(file: Any) -> None:
    with contextlib.suppress(FileNotFoundError):  # it was given up before, and the answer was lost
        file.discard()


class _Reader(io.RawIOBase):
    """An object as a file that can be sought; each read is a request of its own, and retried."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._size = size_of(path)
        self._files, self._place = _store(path)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"a position before the start of {self.name!r}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._next(LARGEST_READ), b""))  # the base's asks for a few KiB at a time

    def _next(self, length: int) -> bytes:
        start = self._position
        end = min(start + length, start + LARGEST_READ, self._size)
        if end <= start:
            return b""
        data = with_retries(f"reading {self.name!r}", lambda: self._fetch(start, end))
        self._position = end
        return data

    def _fetch(self, start: int, end: int) -> bytes:
        data: bytes = self._files.cat_file(self._place, start=start, end=end)
        if len(data) != end - start:
            raise OSError(errno.EAGAIN, f"the store sent {len(data)} bytes and not {end - start}")
        return data


def open_for_reading(path: str) -> BinaryIO:
    """Open an object for reading and seeking.

    Raises:
        FileNotFoundError: There is none.
    """
    return cast("BinaryIO", io.BufferedReader(_Reader(path), 2**20))


def remove(path: str, first: str) -> None:
    """Remove an object, or all below a name: the one named `first` first, and the rest when that is gone.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be removed.
    """
    info = _info(path)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if info["type"] != "directory":
        _remove_object(path)
        return
    if first in names_in(path):
        _remove_object(f"{path.rstrip('/')}/{first}")
    files, name = _store(path)

    def remove_rest() -> None:
        with contextlib.suppress(FileNotFoundError):
            files.rm(name, recursive=True)
        left = names_in(path)
        if left:  # some stores do not say which objects they have kept
            raise OSError(errno.EAGAIN, f"{len(left)} objects are still there")

    with_retries(f"removing {path!r}", remove_rest)


def _remove_object(path: str) -> None:
    files, name = _store(path)

    def attempt() -> None:
        with contextlib.suppress(FileNotFoundError):  # an earlier try whose answer was lost
            files.rm_file(name)

    with_retries(f"removing {path!r}", attempt)
    files.invalidate_cache(name)


def copied_within(old: str, new: str) -> bool:
    """Copy an object within its store, if both are in one that can; the bytes do not come here.

    Raises:
        FileNotFoundError: There is no such object.
        CheckpointWriteError: It cannot be copied.
    """
    files, source, _ = _place(old)
    others, target, place = _place(new)
    if files is not others or place != target:
        return False
    size = size_of(old)

    def attempt() -> None:
        files.cp_file(source, target)
        _compare_size(files, target, size)

    try:
        with_retries(f"copying {old!r}", attempt)
    except Exception as error:
        raise _write_error(new, f"{_told(error).removesuffix('.')}.") from error
    return True


def check_writable(folder: str, owner: str) -> None:
    """Refuse a folder of a store in which no object can be written; one is, and is removed.

    Raises:
        MisconfigurationException: The store cannot be reached, or does not take it.
    """
    probe = f"{folder.rstrip('/')}/.{secrets.token_hex(4)}.part"
    try:
        files, name = _store(folder)
        made = []
        while not _is_object_store(files) and name.strip("/") and not files.exists(name):
            made.append(name)
            name = posixpath.dirname(name)
        write(probe, lambda file: cast("None", file.write(b"lightlib")))
        _remove_object(probe)
        for one in made:
            with contextlib.suppress(Exception):
                files.rmdir(one)
    except Exception as error:
        reason = error.__cause__.__cause__ if isinstance(error.__cause__, _StoreError) else error.__cause__ or error
        raise MisconfigurationException(
            f"{owner} cannot write into {folder!r}: {_told(reason)}",
            expected="a store that can be reached and written, whose protocol fsspec knows.",
            fix="check the address and the credentials; pip install s3fs for s3://, gcsfs for gs://, adlfs for abfs://.",
        ) from error
