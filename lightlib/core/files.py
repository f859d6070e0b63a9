"""Checkpoint files: written whole or not at all, read without running code."""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from lightlib.errors import ArgumentTypeError, CheckpointError, CheckpointWriteError, closest, nearest, shown

__all__ = ["exists", "is_remote", "missing", "not_plain", "read", "write"]


def is_remote(path: str | Path) -> bool:
    """Whether `path` is a URL for fsspec, for instance ``s3://bucket/last.ckpt``."""
    return "://" in str(path)


def exists(path: str | Path) -> bool:
    """Whether there is a file at `path`, local or remote."""
    if is_remote(path):
        import fsspec  # optional: fsspec

        try:
            filesystem, name = fsspec.core.url_to_fs(str(path))
            return bool(filesystem.exists(name))
        except (ImportError, OSError, ValueError) as error:
            raise _unreachable(path, error) from error
    return os.path.exists(path)


def write(content: dict[str, Any], path: str | Path) -> None:
    """Write a checkpoint under its final name only when it is complete and flushed.

    Raises:
        CheckpointWriteError: It could not be written; a file that was there before is as it was.
    """
    if is_remote(path):
        return _write_remote(content, str(path))
    target = Path(path)
    aside: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, target)
        aside = None
        _flush_directory(target.parent)
    except (OSError, RuntimeError) as error:
        full = not isinstance(error, OSError) or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise CheckpointWriteError(
            f"The checkpoint {str(target)!r} could not be written: {error}.{_free_space(target)}",
            expected="a writable directory with enough room.",
            fix=("free some space or choose another directory" if full else "choose another directory")
            + "; earlier checkpoints are as they were.",
        ) from error
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise _not_picklable(content, target, error) from error
    finally:
        if aside is not None and os.path.exists(aside):
            os.unlink(aside)


def _write_remote(content: dict[str, Any], path: str) -> None:
    import fsspec  # optional: fsspec

    buffer = io.BytesIO()
    try:
        torch.save(content, buffer)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise _not_picklable(content, path, error) from error
    try:
        with fsspec.open(path, "wb") as file:
            file.write(buffer.getbuffer())
    except (ImportError, OSError, ValueError) as error:
        raise CheckpointWriteError(
            f"The checkpoint {path!r} could not be written: {error}.",
            expected="a store that can be reached and written.",
            fix="check the address, the credentials and the quota.",
        ) from error


def _not_picklable(content: dict[str, Any], target: Path | str, error: Exception) -> CheckpointWriteError:
    place = not_plain(content)
    return CheckpointWriteError(
        f"The checkpoint {str(target)!r} could not be written: it holds an object that cannot be pickled"
        f"{'' if place is None else f' at {place}'}: {error}.",
        expected="tensors, numbers, strings, lists and dicts of them.",
        fix="leave it out of what on_save_checkpoint or state_dict hands over; earlier checkpoints are as they were.",
    )


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_CONTAINERS = (dict, OrderedDict, list, tuple, set)


def not_plain(content: Any, place: str = "") -> str | None:
    """Return the place of the first object that is no tensor, plain value or container of them, and None without any.

    Example:
        >>> not_plain({"a": [1, 2.5, None]}) is None, not_plain({"a": [1, object()]})
        (True, "['a'][1] (object)")
    """
    if type(content) in _PLAIN or isinstance(content, torch.Tensor):
        return None
    if type(content) not in _CONTAINERS:
        return f"{place} ({type(content).__name__})"
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    places = (not_plain(part, f"{place}[{key!r}]") for key, part in parts)
    return next((found for found in places if found is not None), None)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush_directory(directory: Path) -> None:
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _free_space(target: Path) -> str:
    folder = next((parent for parent in target.parents if parent.exists()), None)
    return "" if folder is None else f" {shutil.disk_usage(folder).free / 2**20:.0f} MiB are free there."


def read(path: str | Path | IO[bytes], map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
    """Read a checkpoint. Nothing in the file is run, unless ``weights_only=False`` says that it is to be trusted.

    Raises:
        CheckpointError: It is missing, truncated, no checkpoint, or holds objects that only a trusted file may hold.
    """
    if not isinstance(path, (str, os.PathLike)) and not hasattr(path, "read"):
        raise ArgumentTypeError(
            f"The path of a checkpoint is {shown(path)}.",
            expected="a path, a URL, or an open file.",
            fix="load_from_checkpoint('model.ckpt')",
        )
    name = _described(path)
    try:
        if isinstance(path, (str, Path)) and is_remote(path):
            import fsspec  # optional: fsspec

            with fsspec.open(str(path), "rb") as file:
                content = torch.load(io.BytesIO(file.read()), map_location, weights_only=weights_only is not False)
        else:
            content = torch.load(path, map_location, weights_only=weights_only is not False)
    except FileNotFoundError as error:
        raise missing(path) from error
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a damaged file may make torch raise anything
        raise _unreadable(name, error, trusted=weights_only is False) from error
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), Mapping):
        raise _no_checkpoint(name, path, content)
    return content


def _described(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        return "The file object"
    size = f" ({os.path.getsize(path)} bytes)" if not is_remote(os.fspath(path)) and os.path.isfile(path) else ""
    return f"{os.fspath(path)!r}{size}"


def _no_checkpoint(name: str, path: Any, content: Any) -> CheckpointError:
    where = f"{str(path)!r}" if isinstance(path, (str, os.PathLike)) else "file"
    fix = "use a file that Trainer.save_checkpoint or Lightning wrote."
    if not isinstance(content, dict):
        found = f"it is {shown(content)}"
    elif "state_dict" in content:
        found = f"its 'state_dict' is {shown(content['state_dict'])}"
    else:
        found = f"it is a dict with the keys {sorted(map(str, content))[:6]}"
        if content and all(isinstance(value, torch.Tensor) for value in content.values()):
            fix = f"these are plain weights: module.load_state_dict(torch.load({where}))"
    return CheckpointError(
        f"{name} holds no checkpoint: {found}.",
        expected="a dict with 'state_dict', as Trainer.save_checkpoint writes it.",
        fix=fix,
    )


def _unreachable(path: str | Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{str(path)!r} cannot be reached: {error}",
        expected="a path, or a URL whose protocol fsspec knows, with the package for it installed.",
        fix="pip install s3fs for s3://, gcsfs for gs://, adlfs for abfs://; or use a local path.",
    )


def missing(path: Any) -> CheckpointError:
    """Return the error for a checkpoint that is not there, with those that are."""
    if is_remote(path):
        return CheckpointError(
            f"There is no checkpoint {str(path)!r}.",
            expected="an existing file.",
            fix="correct the address; `ckpt_path=None` starts from nothing.",
        )
    folder = Path(str(path)).parent
    there = sorted(entry.name for entry in folder.glob("*.ckpt")) if folder.is_dir() else []
    near = closest(Path(str(path)).name, there)
    return CheckpointError(
        f"There is no checkpoint {str(path)!r}.{nearest(Path(str(path)).name, there)}",
        expected=f"an existing file; in {str(folder)!r} there are: {', '.join(there[:8]) or 'no .ckpt files'}.",
        fix=f"use {str(folder / near)!r}." if near else "correct the path; `ckpt_path=None` starts from nothing.",
    )


def _unreadable(name: str, error: Exception, trusted: bool) -> CheckpointError:
    foreign = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
    if foreign is None:
        return CheckpointError(
            f"{name} could not be read as a checkpoint: {_reason(error, trusted)}.",
            expected="a whole file that Trainer.save_checkpoint or Lightning wrote.",
            fix="use another checkpoint; this one is truncated, damaged, or something else.",
        )
    return CheckpointError(
        f"{name} holds a Python object that can only be loaded by running code: {foreign[1]}.",
        expected="tensors and plain values, which is all that lightlib writes.",
        fix="if you trust where the file comes from, pass weights_only=False; it may run any code.",
    )


def _reason(error: Exception, trusted: bool) -> str:
    if isinstance(error, EOFError):
        return "it is empty or ends too early"
    if isinstance(error, IsADirectoryError):
        return "it is a directory"
    if isinstance(error, OSError):
        return "it is truncated" if error.errno == errno.EINVAL else str(error)
    if isinstance(error, RuntimeError):
        return str(error).split(". ")[0].splitlines()[0]
    return f"{type(error).__name__}: {error}" if trusted else "torch.save did not write it, or it is damaged"
