"""Opens the source of a checkpoint as a seekable file: a path, a URL, or an open file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, BinaryIO

from lightlib.checkpoint.file.read_errors import unreachable, unreadable
from lightlib.checkpoint.storage import filesystem

IN_MEMORY = 2**26  # bytes up to which a remote file is copied into memory, not into a temporary file


@contextmanager
def opened(path: Any, name: str, copy_remote: bool = True) -> Iterator[BinaryIO]:
    """Open a path, a URL or an open file as a seekable file that begins at offset 0; errors call it `name`.

    With `copy_remote` a file of a store is copied first, because all of it will be read.
    """
    if not isinstance(path, (str, os.PathLike)):
        if _is_seekable(path) and path.tell() == 0:
            yield path
            path.seek(0, os.SEEK_END)
        else:
            with _copy(path, None) as copied:
                yield copied
        return
    try:
        file = filesystem.open_for_reading(path)
        if copy_remote and filesystem.is_remote(path):
            with file:
                file = _copy(file, filesystem.size_of(path))
    except FileNotFoundError:
        raise
    except (ImportError, OSError, ValueError) as error:
        if not filesystem.is_remote(path):
            raise unreadable(name, error) from error
        raise unreachable(os.fspath(path), error) from error
    with file:
        yield file


def _is_seekable(file: Any) -> bool:
    return hasattr(file, "seek") and hasattr(file, "tell") and (not hasattr(file, "seekable") or file.seekable())


def _copy(file: Any, size: int | None) -> BinaryIO:
    """Return a copy of the rest of a file, in memory or, if it is large, in a temporary file."""
    copied: Any = BytesIO() if size is None or size <= IN_MEMORY else tempfile.TemporaryFile()  # noqa: SIM115  returned
    shutil.copyfileobj(file, copied, 2**23)
    copied.seek(0)
    return copied  # type: ignore[no-any-return]
