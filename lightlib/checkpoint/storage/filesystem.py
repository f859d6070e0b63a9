"""Files on a disk or a store that fsspec can access; a file appears complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, cast

from lightlib import paths
from lightlib.checkpoint.storage import local, store, upload
from lightlib.checkpoint.storage.claims import claim
from lightlib.checkpoint.storage.local import INDEX, Writer, flush_folder, make_folder, write_error
from lightlib.checkpoint.storage.retries import with_retries
from lightlib.checkpoint.storage.store import is_remote, local_path
from lightlib.checkpoint.storage.swap import put_in_place
from lightlib.errors import CheckpointWriteError, LightlibError, MisconfigurationException

__all__ = [
    "INDEX",
    "aside",
    "check_writable",
    "claim",
    "copy",
    "exists",
    "is_folder",
    "is_remote",
    "join",
    "link",
    "local_path",
    "make_folder",
    "names_in",
    "open_for_reading",
    "remove",
    "remove_leftovers",
    "rename",
    "size_of",
    "sizes_in",
    "with_retries",
    "write",
]

LONGEST_NAME = 255  # bytes, on all common file systems
_LEFTOVER = re.compile(r"\..*\.(\d+)-[0-9a-f]{8}\.part", re.DOTALL)
_asides: set[str] = set()  # names that this process is writing or removing


def join(folder: str | os.PathLike[str], name: str) -> str:
    """Return the path of `name` in `folder`, local or remote."""
    where = os.fspath(folder)
    return f"{where.rstrip('/')}/{name}" if is_remote(where) else os.path.join(where, name)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether a file, a folder or a link, even a broken one, has this name."""
    name = os.fspath(path)
    return store.exists(name) if is_remote(name) else os.path.lexists(local_path(name))


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder of this name; on a store: whether there are objects below it."""
    name = os.fspath(path)
    return store.is_folder(name) if is_remote(name) else os.path.isdir(local_path(name))


def size_of(path: str | os.PathLike[str]) -> int:
    """Return the size of a file in bytes; for a folder, of all files in it."""
    name = os.fspath(path)
    if is_remote(name):
        info = store.object_info(name)
        folder, size = info["type"] == "directory", int(info["size"] or 0)
    else:
        status = os.stat(local_path(name))
        folder, size = stat.S_ISDIR(status.st_mode), status.st_size
    return sum(size_of(join(name, entry)) for entry in names_in(name)) if folder else size


def sizes_in(folder: str | os.PathLike[str], names: Iterable[str]) -> dict[str, int]:
    """Return the sizes of files of a folder by name, without those that are missing; a store lists them at once."""
    where, names = os.fspath(folder), list(names)
    listed = store.sizes_in(where) if len(names) > 1 and is_remote(where) else {}
    sizes: dict[str, int] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            size = listed.get(name)
            sizes[name] = size_of(join(where, name)) if size is None else size
    return sizes


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted names of the files and folders in `folder`; none if it does not exist."""
    name = os.fspath(folder)
    if is_remote(name):
        return store.names_in(name)
    try:
        return sorted(os.listdir(local_path(name)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def write(path: str | os.PathLike[str], produce: Callable[[BinaryIO], None]) -> None:
    """Write a file, which appears under `path` only when it is complete, and on a disk flushed.

    An existing file is replaced in one step. `produce` gets the open file and writes all of it; for a store it is
    called again at each retry.

    Raises:
        CheckpointWriteError: It could not be written; an existing file is unchanged.
    """
    name = os.fspath(path)
    if is_remote(name):
        upload.write(name, produce)
        return
    target = local_path(name)
    folder = os.path.dirname(target) or "."
    writer: Writer | None = None
    with aside(target) as temporary:
        try:
            make_folder(folder)
            _refuse_folder(target)
            writer = Writer(temporary)
            with writer:
                produce(cast("BinaryIO", writer))
                writer.finish()
            os.replace(temporary, target)
            writer = None
            flush_folder(folder)
        except LightlibError:
            raise
        except Exception as error:
            # torch's zip writer replaces the errors of its file by its own: the first one has the cause
            reason = error if writer is None or writer.failed is None else writer.failed
            if not isinstance(reason, OSError):
                raise
            raise write_error(name, reason) from error
        finally:
            if writer is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)


def _refuse_folder(target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(target).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)


def name_aside(path: str | os.PathLike[str]) -> str:
    """Return a hidden name next to a local `path` for an incomplete file; `remove_leftovers` recognizes it."""
    paths.check_writable(local_path(path))
    folder, name = os.path.split(local_path(path).rstrip(os.sep))
    ending = f".{os.getpid()}-{secrets.token_hex(4)}.part"
    room = LONGEST_NAME - 1 - len(ending)
    short = os.fsencode(name)[:room].decode(errors="ignore")
    return os.path.join(folder, f".{short}{ending}")


@contextlib.contextmanager
def aside(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a hidden name next to a local `path`; meanwhile `remove_leftovers` does not remove it."""
    name = name_aside(path)
    _asides.add(name)
    try:
        yield name
    finally:
        _asides.discard(name)


def remove_leftovers(folder: str | os.PathLike[str], of: str = "") -> list[str]:
    """Remove half-written files of killed processes from a local folder; return their names.

    Call it while holding the folder's claim, or with the name `of` a file, whose leftovers alone are removed. Files
    that a living process of this machine is writing stay.
    """
    where = local_path(folder)
    if is_remote(where):
        return []
    gone = []
    for name in names_in(where):
        leftover = _LEFTOVER.fullmatch(name)
        path = os.path.join(where, name)
        if (
            leftover is None
            or (of and name[: leftover.start(1)] != f".{of}.")
            or path in _asides
            or (int(leftover[1]) != os.getpid() and _alive(int(leftover[1])))
        ):
            continue
        with contextlib.suppress(OSError):
            local.discard(path)
            gone.append(name)
    return gone


def _alive(process: int) -> bool:
    if os.name != "posix":  # Windows takes signal 0 for Ctrl-C, so leftovers of another process stay there
        return True
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, ProcessLookupError)
    return True


def open_for_reading(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading and seeking. On a store every read is retried."""
    name = os.fspath(path)
    return store.open_for_reading(name) if is_remote(name) else open(local_path(name), "rb")


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a file, a link or a folder; a half removed folder is never taken for a checkpoint."""
    name = os.fspath(path)
    if is_remote(name):
        upload.remove(name, first=INDEX)
        return
    target = local_path(name).rstrip(os.sep)
    paths.check_writable(target)
    if not os.path.isdir(target) or os.path.islink(target):
        os.unlink(target)
        return
    with aside(target) as hidden:
        os.rename(target, hidden)  # from here on the name is free
        local.discard(hidden)


def rename(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Rename a file or a folder on the same file system: in one step on a disk, by copying on a store.

    If that fails with a `CheckpointWriteError`, both are unchanged.
    """
    source, target = os.fspath(old), os.fspath(new)
    if is_remote(source):
        copy(source, target)
        remove(source)
        return
    for each in (source, target):
        paths.check_writable(local_path(each))
    local.rename(local_path(source), local_path(target))


def copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a file or a folder between any two disks or stores; the copy appears complete or not at all.

    A folder on a store becomes a checkpoint with its last object, the index.
    """
    old, new = os.fspath(source), os.fspath(target)
    if not is_folder(old):
        if is_remote(old) and is_remote(new) and upload.copied_within(old, new):
            return
        with open_for_reading(old) as file:
            write(new, lambda out: _transfer(file, out))
    elif is_remote(new):
        _copy_content(old, new)
    else:
        _copy_folder(old, new)


def _transfer(file: BinaryIO, out: BinaryIO) -> None:
    file.seek(0)
    shutil.copyfileobj(file, out, 2**23)


def _copy_content(old: str, new: str) -> None:
    for name in sorted(names_in(old), key=lambda name: (name == INDEX, name)):
        copy(join(old, name), join(new, name))


def _copy_folder(old: str, new: str) -> None:
    target = local_path(new).rstrip(os.sep)
    with aside(target) as temporary:
        try:
            make_folder(temporary)
            _copy_content(old, temporary)
            put_in_place(temporary, target)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            # The error names `new`: the user does not know the temporary name.
            reason = error.__cause__ if isinstance(error, CheckpointWriteError) else error
            if isinstance(reason, OSError):
                raise write_error(new, reason) from error
            raise


def link(target: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Make `path` a relative link to `target`, in one step; a copy if links are not supported."""
    old, new = os.fspath(target), os.fspath(path)
    if is_remote(old) or is_remote(new):
        copy(old, new)
        return
    old, new = local_path(old), local_path(new)
    temporary = name_aside(new)
    try:
        try:
            os.symlink(os.path.relpath(old, os.path.dirname(new) or "."), temporary)
        except OSError:
            copy(old, new)
            return
        if os.path.isdir(new) and not os.path.islink(new):
            put_in_place(temporary, new)
        else:
            os.replace(temporary, new)
        flush_folder(os.path.dirname(new) or ".")
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise CheckpointWriteError(
            f"The checkpoint {new!r} could neither be linked to {old!r} nor copied: {error}.",
            expected="a writable folder with enough room.",
            fix="ModelCheckpoint(save_last=True), another dirpath, or more space; earlier files are unchanged.",
        ) from error


def check_writable(folder: str | os.PathLike[str], owner: str) -> None:
    """Check that a folder can be made and written; it is left as it was."""
    if is_remote(os.fspath(folder)):
        upload.check_writable(os.fspath(folder), owner)
        return
    where = local_path(folder)
    absent = where
    created: list[str] = []
    while absent and not os.path.lexists(absent):
        created.append(absent)
        absent = os.path.dirname(absent)
    try:
        os.makedirs(where, exist_ok=True)
        with aside(os.path.join(where, "probe")) as probe:
            with open(probe, "xb"):
                pass
            os.unlink(probe)
    except OSError as error:
        raise MisconfigurationException(
            f"{owner} cannot write into {where!r}: {error}.",
            expected="a folder that exists or can be made, and into which this user may write.",
            fix=f"{owner}(dirpath='another/folder'), or another default_root_dir of the Trainer.",
        ) from error
    finally:
        for parent in created:
            with contextlib.suppress(OSError):
                os.rmdir(parent)
