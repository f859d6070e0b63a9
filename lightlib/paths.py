"""Paths of another machine or container: mounts that map them to paths here, some of them read-only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import IO, Any

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, check_flag, shown

__all__ = ["Mount", "check_writable", "mounted", "open_path", "resolve"]


@dataclass(frozen=True)
class Mount:
    """A folder or file of this machine, and the path by which a program calls it.

    Args:
        host_path: The path on this machine; it has to exist.
        container_path: The path that the program uses: an absolute one, or one below the working folder.
        read_only: Refuse writing below it. Default False.

    Raises:
        MisconfigurationException: A path is empty, the container path is the working folder or above it, or an
            argument has another type.

    Example:
        >>> Mount("/mnt/disk1/images", "/data", read_only=True).container_path
        '/data'
    """

    host_path: str
    container_path: str
    read_only: bool = False

    def __post_init__(self) -> None:
        for name in ("host_path", "container_path"):
            value = getattr(self, name)
            if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
                kind = MisconfigurationException if value == "" else ArgumentTypeError
                raise kind(f"Mount({name}={shown(value)}).", expected="a path.", fix="Mount('/mnt/images', '/data')")
        check_flag("Mount", "read_only", self.read_only)
        inside = os.path.normpath(self.container_path)
        if inside == "." or inside.split(os.sep)[0] == ".." or inside == os.sep:
            raise MisconfigurationException(
                f"Mount(container_path={os.fspath(self.container_path)!r}) would replace the working folder or one "
                "above it.",
                expected="an absolute path, or one below the working folder.",
                fix="Mount(host_path, '/data'), or Mount(host_path, 'data')",
            )


@dataclass(frozen=True)
class _Mapped:
    """A mount as absolute paths.

    Attributes:
        path: The path that programs use.
        host: The path here.
        real: The path here without symbolic links.
    """

    path: str
    host: str
    real: str
    read_only: bool


_active: tuple[_Mapped, ...] = ()


@contextlib.contextmanager
def mounted(mounts: Mount | Mapping[str, Any] | Iterable[Any], folder: str | os.PathLike[str] = ".") -> Iterator[None]:
    """Map paths within a block: for `resolve`, `open_path`, the Trainer's folder and all checkpoints.

    A container path below the working folder becomes a symbolic link, which other code sees as well, and which is
    removed at the end. If both paths are the same one, only its existence is checked.

    Args:
        mounts: A Mount, a dict of its arguments, or several of them.
        folder: Where links are made. Default: the working folder.

    Raises:
        MisconfigurationException: A host path does not exist, a link's place is taken, two mounts have the same
            container path, or a host path lies below another mount's container path.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as disk, mounted(Mount(disk, "/images")):
        ...     resolve("/images/train/1.png") == os.path.join(disk, "train/1.png")
        True
    """
    global _active  # noqa: PLW0603  one mapping for the process, as a mount has
    several = [mounts] if isinstance(mounts, (Mount, Mapping)) else list(mounts)
    mapped = [_mapped(_mount_of(requested), os.path.abspath(folder)) for requested in several]
    _refuse_ambiguous((*_active, *mapped))
    before = _active
    with contextlib.ExitStack() as links:
        for mount, bind_mount in zip(mapped, several, strict=True):
            if not os.path.isabs(_mount_of(bind_mount).container_path):
                links.enter_context(_linked(mount))
        _active = (*_active, *mapped)
        try:
            yield
        finally:
            _active = before


def resolve(path: str | os.PathLike[str], write: bool = False) -> str:
    """Return the path here of a path that a mount maps; any other path, also a URL, is returned as it is.

    Args:
        path: A path. Of several mounts that contain it, the innermost counts.
        write: Whether it is going to be written.

    Raises:
        MisconfigurationException: `write`, and a mount is read-only.

    Example:
        >>> resolve("/data/train"), resolve("s3://bucket/train")
        ('/data/train', 's3://bucket/train')
    """
    name = os.fspath(path)
    if not _active or "://" in name:
        return name
    whole = os.path.abspath(name)
    inside = [mount for mount in _active if _is_below(whole, mount.path)]
    here = name
    if inside:
        mount = max(inside, key=lambda mount: len(mount.path))
        here = os.path.normpath(os.path.join(mount.host, os.path.relpath(whole, mount.path)))
    if write:
        _refuse_read_only(here, name)
    return here


def open_path(path: str | os.PathLike[str], mode: str = "r", **arguments: Any) -> IO[Any]:
    """Open a file by its mapped path, as `open` does; writing below a read-only mount is refused.

    Args:
        path: The path, as for `resolve`.
        mode: As for `open`.
        arguments: Further arguments of `open`.

    Raises:
        MisconfigurationException: The mode writes, and a mount is read-only.

    Example:
        >>> open_path("missing.csv")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'missing.csv'
    """
    return open(resolve(path, write=any(letter in mode for letter in "wax+")), mode, **arguments)


def check_writable(path: str) -> None:
    """Refuse a path below a read-only mount.

    Args:
        path: A path here, or one that a mount maps.

    Raises:
        MisconfigurationException: It lies below a read-only mount.

    Example:
        >>> check_writable("results.txt")
    """
    if _active:
        _refuse_read_only(resolve(path), path)


def _refuse_read_only(here: str, name: str) -> None:
    real = os.path.realpath(here)
    for mount in _active:
        if mount.read_only and _is_below(real, mount.real):
            raise MisconfigurationException(
                f"{name} cannot be written: it lies below {mount.path}, which is mounted read-only.",
                expected="a path outside of it.",
                fix=f"write to another folder, or Mount({mount.host!r}, {mount.path!r}, read_only=False).",
            )


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _mount_of(mount: Any) -> Mount:
    if isinstance(mount, Mount):
        return mount
    names = [field.name for field in fields(Mount)]
    fix = "mounted([Mount('/mnt/images', '/data')])"
    if not isinstance(mount, Mapping):
        raise ArgumentTypeError(
            f"mounted got {shown(mount)}.", expected="a Mount, or a dict of its arguments.", fix=fix
        )
    for key in mount:
        if key not in names:
            raise UnknownNameError("argument of a Mount", key, names)
    for name in names[:2]:
        if name not in mount:
            raise MisconfigurationException(
                f"A mount has no {name}: {dict(mount)!r}.", expected="host_path and container_path.", fix=fix
            )
    return Mount(**mount)


def _mapped(mount: Mount, folder: str) -> _Mapped:
    host = os.path.abspath(os.path.expanduser(mount.host_path))
    if not os.path.exists(host):
        raise MisconfigurationException(
            f"Mount(host_path={os.fspath(mount.host_path)!r}) does not exist on this machine.",
            expected="an existing folder or file.",
            fix="correct the path, or create the folder.",
        )
    path = os.path.normpath(os.path.join(folder, mount.container_path))
    return _Mapped(path, host, os.path.realpath(host), mount.read_only)


def _refuse_ambiguous(mounts: tuple[_Mapped, ...]) -> None:
    for number, mount in enumerate(mounts):
        for other in mounts[:number]:
            if mount.path == other.path:
                raise MisconfigurationException(
                    f"Two mounts have the container path {mount.path}.",
                    expected="one for each path.",
                    fix="leave out one of them.",
                )
        for other in mounts:
            if mount is not other and other.host != other.path and _is_below(mount.host, other.path):
                raise MisconfigurationException(
                    f"The host path {mount.host} lies below {other.path}, which is mapped to {other.host}.",
                    expected="host paths that no mount maps again.",
                    fix=f"Mount(…, container_path='/mounted{other.path}')",
                )


@contextlib.contextmanager
def _linked(mount: _Mapped) -> Iterator[None]:
    """Make a symbolic link to a mount's host path; remove it at the end, if it was made here."""
    created = False
    try:
        os.makedirs(os.path.dirname(mount.path), exist_ok=True)
        os.symlink(mount.host, mount.path)
        created = True
    except FileExistsError:  # another process of the run may have made it
        if os.path.realpath(mount.path) != mount.real:
            raise MisconfigurationException(
                f"{mount.path} exists, and is no link to {mount.host}.",
                expected="a container path that is free.",
                fix="choose another one, or remove the file or folder.",
            ) from None
    try:
        yield
    finally:
        if created and os.path.islink(mount.path):
            os.unlink(mount.path)
