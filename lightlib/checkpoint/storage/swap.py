"""Replaces a folder by a complete one, in one step if the system supports it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets

from lightlib.checkpoint.storage.local import discard, flush_folder, rename
from lightlib.errors import CheckpointWriteError

_HERE = -100  # AT_FDCWD: relative paths are relative to the working directory
_EXCHANGE = 2  # RENAME_EXCHANGE
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}


def exchanged(first: str, second: str) -> bool:
    """Exchange the names of two files, folders or links; return False if the system or file system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    if call(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), second)


def put_in_place(aside: str, target: str) -> None:
    """Give a complete folder its final name and remove the one that had it; one of the two exists at every instant.

    If names cannot be exchanged, the older folder is called ``last-1a2b3c4d.ckpt`` for a moment. After an error it is
    unchanged.
    """
    above = os.path.dirname(target) or "."
    if not os.path.lexists(target):
        rename(aside, target)
        return
    if exchanged(aside, target):
        flush_folder(above)
        _try_to_discard(aside)
        return
    stem, suffix = os.path.splitext(target)
    older = f"{stem}-{secrets.token_hex(4)}{suffix}"
    rename(target, older)
    try:
        rename(aside, target)
    except CheckpointWriteError:
        rename(older, target)
        raise
    _try_to_discard(older)


def _try_to_discard(path: str) -> None:
    """Remove an older checkpoint. If that fails, it stays hidden until leftovers are next removed."""
    with contextlib.suppress(OSError):
        discard(path)
