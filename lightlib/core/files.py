"""Checkpoint files: written whole or not at all, read without running code."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from lightlib.errors import CheckpointError, CheckpointWriteError, nearest

__all__ = ["exists", "is_remote", "missing", "read", "write"]


def is_remote(path: str | Path) -> bool:
    """Whether `path` is a URL for fsspec, for instance ``s3://bucket/last.ckpt``."""
    return "://" in str(path)


def exists(path: str | Path) -> bool:
    """Whether there is a file at `path`, local or remote."""
    if is_remote(path):
        import fsspec  # optional: fsspec

        filesystem, name = fsspec.core.url_to_fs(str(path))
        return bool(filesystem.exists(name))
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
        _flush_directory(target.parent)
    except (OSError, RuntimeError) as error:
        if aside is not None and os.path.exists(aside):
            os.unlink(aside)
        raise CheckpointWriteError(
            f"The checkpoint {str(target)!r} could not be written: {error}.{_free_space(target)}",
            expected="a writable directory with enough room.",
            fix="free some space or choose another directory; earlier checkpoints are as they were.",
        ) from error


def _write_remote(content: dict[str, Any], path: str) -> None:
    import fsspec  # optional: fsspec

    buffer = io.BytesIO()
    torch.save(content, buffer)
    try:
        with fsspec.open(path, "wb") as file:
            file.write(buffer.getbuffer())
    except OSError as error:
        raise CheckpointWriteError(
            f"The checkpoint {path!r} could not be written: {error}.",
            expected="a store that can be reached and written.",
            fix="check the address, the credentials and the quota.",
        ) from error


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
    name = repr(str(path)) if isinstance(path, (str, Path)) else "the file object"
    try:
        if isinstance(path, (str, Path)) and is_remote(path):
            import fsspec  # optional: fsspec

            with fsspec.open(str(path), "rb") as file:
                content = torch.load(io.BytesIO(file.read()), map_location, weights_only=weights_only is not False)
        else:
            if isinstance(path, (str, Path)) and Path(path).is_dir():
                raise IsADirectoryError(f"{name} is a directory")
            content = torch.load(path, map_location, weights_only=weights_only is not False)
    except FileNotFoundError as error:
        raise missing(path) from error
    except pickle.UnpicklingError as error:
        raise _unreadable(name, error) from error
    except (EOFError, OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{name} could not be read as a checkpoint: {str(error).splitlines()[0]}",
            expected="a whole file that Trainer.save_checkpoint or Lightning wrote.",
            fix="use another checkpoint; this one is truncated, damaged, or something else.",
        ) from error
    if not isinstance(content, dict) or "state_dict" not in content:
        found = (
            f"a dict with the keys {sorted(map(str, content))[:6]}"
            if isinstance(content, dict)
            else type(content).__name__
        )
        raise CheckpointError(
            f"{name} holds no checkpoint: it is {found}.",
            expected="a dict with 'state_dict', as Trainer.save_checkpoint writes it.",
            fix="load plain weights with module.load_state_dict(torch.load(path)).",
        )
    return content


def missing(path: Any) -> CheckpointError:
    """Return the error for a checkpoint that is not there, with those that are."""
    folder = Path(str(path)).parent
    there = sorted(entry.name for entry in folder.glob("*.ckpt")) if folder.is_dir() else []
    hint = nearest(Path(str(path)).name, there)
    return CheckpointError(
        f"There is no checkpoint {str(path)!r}.{hint}",
        expected=f"an existing file; in {str(folder)!r} there are: {', '.join(there[:8]) or 'no .ckpt files'}.",
        fix="check the path; `ckpt_path=None` starts from nothing.",
    )


def _unreadable(name: str, error: Exception) -> CheckpointError:
    text = str(error)
    foreign = next((line.strip() for line in text.splitlines() if "GLOBAL" in line or "Unsupported" in line), "")
    if not foreign:
        return CheckpointError(
            f"{name} could not be read as a checkpoint: {text.splitlines()[0]}",
            expected="a whole file that Trainer.save_checkpoint or Lightning wrote.",
            fix="use another checkpoint; this one is truncated, damaged, or something else.",
        )
    return CheckpointError(
        f"{name} holds Python objects that only run by being loaded: {foreign}",
        expected="tensors and plain values, which is all that lightlib writes.",
        fix="if you trust where the file comes from, pass weights_only=False; it may run any code.",
    )
