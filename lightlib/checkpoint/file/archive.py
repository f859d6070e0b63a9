"""Checkpoint in a single file: the zip file of torch.save, with a trailer of label and checksum.

torch.load and Lightning read it. docs/decisions/0017-checkpoint-files.md has the layout and the reasons.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from io import BytesIO
from typing import IO, Any, BinaryIO, cast

import torch

from lightlib.checkpoint.file import pickles, standard, trailer
from lightlib.checkpoint.file.opening import opened
from lightlib.checkpoint.file.read_errors import needs_trust, not_a_checkpoint, not_picklable, refused, unreadable
from lightlib.checkpoint.file.records import (
    CorruptionError,
    FullDigestWriter,
    RecordWriter,
    SharedReader,
    UnknownZipLayout,
    check_data,
    digest,
    layout,
    without_checksums,
)
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import OURS
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import ArgumentTypeError, CheckpointError, CheckpointWriteError, LightlibError, shown

_WEIGHTS = ("state_dict", "models_state_dict")  # the second is Determined's
ZIP = b"PK\x03\x04"


def save(content: Mapping[str, Any], path: str | os.PathLike[str], label: Label) -> None:
    """Write a file, which appears under its name only when it is complete, and on a disk flushed.

    Raises:
        CheckpointWriteError: It could not be written; an existing file is unchanged.

    Example:
        >>> save({"state_dict": {"weight": torch.ones(2)}}, "example.ckpt", Label(run="1f", step=3))
        >>> torch.load("example.ckpt")["state_dict"], load("example.ckpt")["state_dict"]
        ({'weight': tensor([1., 1.])}, {'weight': tensor([1., 1.])})
        >>> label_of("example.ckpt").step
        3
    """
    try:
        try:
            filesystem.write(path, partial(_write_records, content, label))
        except UnknownZipLayout:
            filesystem.write(path, partial(_write_bytes, content, label))
    except (LightlibError, OSError, MemoryError):
        raise
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise not_picklable(path, not_plain(content), error) from error
    except RuntimeError as error:
        raise CheckpointWriteError(
            f"The checkpoint {os.fspath(path)!r} could not be written: {error}.",
            expected="tensors, numbers, strings, lists and dicts of them.",
            fix="check what on_save_checkpoint and state_dict return; earlier checkpoints are unchanged.",
        ) from error


def to_bytes(content: Mapping[str, Any], label: Label) -> bytes:
    """Return the bytes of the file that `save` writes.

    Example:
        >>> data = to_bytes({"state_dict": {"weight": torch.ones(2)}}, Label(run="1f", step=3))
        >>> load(BytesIO(data))["state_dict"]["weight"]
        tensor([1., 1.])
    """
    try:
        file = BytesIO()
        _write_records(content, label, file)
    except UnknownZipLayout:
        file = BytesIO()
        _write_bytes(content, label, file)
    return file.getvalue()


def _write_records(content: Mapping[str, Any], label: Label, file: BinaryIO) -> None:
    with without_checksums(), RecordWriter(file) as writer:
        try:
            torch.save(content, cast("IO[bytes]", writer), pickle_module=standard)
        except Exception:
            if writer.unfamiliar:
                raise UnknownZipLayout from None
            raise
        writer.finish(trailer.writer(label, "records"))


def _write_bytes(content: Mapping[str, Any], label: Label, file: BinaryIO) -> None:
    writer = FullDigestWriter(file)
    torch.save(content, cast("IO[bytes]", writer), pickle_module=standard)
    writer.finish(trailer.writer(label, "all"))


def load(
    path: Any,
    map_location: Any = None,
    trust: bool = False,
    *,
    mmap: bool = False,
    check: bool = True,
    of_any_kind: bool = False,
) -> dict[str, Any]:
    """Read a file after comparing it with its checksums. No code in it is run unless `trust` allows it.

    Args:
        path: A local path, a URL, or a file open for reading bytes.
        map_location: As in torch.load.
        trust: Also accept Python objects that can only be read by running code that the file names.
        mmap: Leave tensors in a local file until they are used, so that unused ones need no memory. The file must not
            be written while they are in use; lightlib replaces files and never writes into them.
        of_any_kind: Also accept a dict without weights under ``"state_dict"``.
        check: False skips the checksums, so that with ``map_location="meta"`` little more than the names is read.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It is damaged, not a checkpoint, or has objects that need `trust`.
    """
    if not isinstance(path, (str, os.PathLike)) and not hasattr(path, "read"):
        raise ArgumentTypeError(
            f"The path of a checkpoint is {shown(path)}.",
            expected="a path, a URL, or an open file.",
            fix="load_from_checkpoint('model.ckpt')",
        )
    name = _described(path)
    with opened(path, name, copy_remote=check) as file:
        try:
            content = _read(file, _local(path) if mmap else None, map_location, trust, check)
        except (CheckpointError, FileNotFoundError, torch.OutOfMemoryError):
            raise
        except pickles.Refused as error:
            kind, place = error.args
            raise refused(name, _needing_trust(file, (kind,)) or [(place, kind)]) from None
        except Exception as error:  # a damaged file may make torch raise anything
            if pickles.is_real_shortage(error, file.seek(0, os.SEEK_END)):
                raise
            cause = None if needs_trust(error) else error
            raise unreadable(name, error, trust, partial(_needing_trust, file)) from cause
    weights = next((content[key] for key in _WEIGHTS if key in content), None) if isinstance(content, dict) else None
    if not isinstance(content, dict) or not (of_any_kind or isinstance(weights, (Mapping, list))):
        raise not_a_checkpoint(name, path, content)
    return content


def label_of(path: str | os.PathLike[str]) -> Label | None:
    """Return the label in the last bytes of a file; None if it is not ours, damaged there, or missing."""
    try:
        with filesystem.open_for_reading(path) as file:
            end = trailer.read(file)
    except (CorruptionError, FileNotFoundError, IsADirectoryError):
        return None
    return None if end is None else end.label


def verify(path: str | os.PathLike[str]) -> int:
    """Compare a file with its checksums and return how many are ours; 0 for another program's file, which is loaded."""
    name = _described(path)
    with opened(path, name) as file:
        try:
            count = _check(file)
        except (CorruptionError, OSError) as error:
            raise unreadable(name, error) from error
    if count is None:
        load(path, "meta")
    return count or 0


def _read(file: BinaryIO, path: str | None, map_location: Any, trust: bool, check: bool) -> Any:
    """Return the content of a file after all possible checks."""
    if file.seek(0, os.SEEK_END) == 0:
        raise CorruptionError("it is empty or ends too early")
    has_trailer = (_check(file) if check else trailer.read(file)) is not None
    if not trust:
        pickles.check(_pickles(file))
    file.seek(0)
    source = path if path is not None and _starts_as_zip(file) else file
    with standard.allowed():
        content = torch.load(source, map_location, weights_only=not trust, mmap=source is path)
    if not trust:
        pickles.check_content(content, map_location, file.seek(0, os.SEEK_END))
    ours = content.get(OURS) if isinstance(content, dict) else None
    version = ours.get("format") if isinstance(ours, dict) else None
    # Without a trailer torch.save wrote it, and nothing follows its bytes.
    intact = has_trailer or (_starts_as_zip(file) and not trailer.has_comment(file))
    if isinstance(version, int) and version > 1 and not intact:
        raise CorruptionError("its end is damaged")
    return content


def _pickles(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield all pickles in a file, each as a file at its beginning."""
    if _starts_as_zip(file):
        source = SharedReader(file)
        for record in layout(source):
            if record.name.lower().endswith(".pkl"):
                yield BytesIO(source.read(record.start, record.size))
    else:
        file.seek(0)
        for _ in range(pickles.PICKLES_OF_OLD_FILES):
            yield file
            here = file.tell()
            if not file.read(1):
                return
            file.seek(here)


def _needing_trust(file: BinaryIO, kinds: Collection[str]) -> list[tuple[str, str]]:
    """Return the objects that torch does not load without trust: paths and classes; `kinds` are some of the classes."""
    unsafe = {*kinds, *(kind.rpartition(".")[2] for kind in kinds)}  # torch shortens the name in its message
    if _starts_as_zip(file):
        file.seek(0)
        with contextlib.suppress(Exception):  # a damaged file may make torch raise anything; then `kinds` are shown
            unsafe |= {*torch.serialization.get_unsafe_globals_in_checkpoint(file)}
    return pickles.foreign(_pickles(file), unsafe)


def _check(file: BinaryIO) -> int | None:
    """Compare a file with its checksums; return how many of them are ours, None in files of other programs."""
    if not _starts_as_zip(file):
        return None
    end = trailer.read(file)
    if end is not None and end.version > trailer.NEWEST:
        raise CheckpointError(
            f"The file's trailer has version {end.version}, which is newer than this version of lightlib.",
            expected=f"a version of at most {trailer.NEWEST}.",
            fix="pip install --upgrade lightlib",
        )
    if end is None:
        trailer.has_comment(file)  # raises if the end is incomplete
    source = SharedReader(file)
    records = layout(source)
    if end is None:
        if any(record.crc for record in records):  # all are 0 after torch.serialization.set_crc32_options(False)
            check_data(source, records)
        return None
    if end.sha256 != digest(source, records if end.covers == "records" else [], end.size):
        raise CorruptionError("its bytes differ from its checksum")
    if end.covers != "records":
        return 1
    check_data(source, records)
    return 1 + sum(record.size > 0 for record in records)


def _starts_as_zip(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read(len(ZIP)) == ZIP


def _local(path: Any) -> str | None:
    named = isinstance(path, (str, os.PathLike)) and not filesystem.is_remote(path)
    return filesystem.local_path(path) if named else None


def _described(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        return "The file object"
    local = _local(path)
    size = f" ({os.path.getsize(local)} bytes)" if local is not None and os.path.isfile(local) else ""
    return f"{os.fspath(path)!r}{size}"


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)


def not_plain(content: Any, path: str = "") -> str | None:
    """Return the path of the first object that is not a tensor, plain value or container of them; None without any.

    Example:
        >>> not_plain({"a": [1, 2.5, None]}) is None, not_plain({"a": [1, object()]})
        (True, "['a'][1] (object)")
    """
    if type(content) in _PLAIN or isinstance(content, torch.Tensor):
        return None
    if type(content) in standard.CLASSES:
        paths = (not_plain(part, path + place) for place, part in standard.parts(content))
        return next((path for path in paths if path is not None), None)
    if type(content) not in _CONTAINERS:
        return f"{path} ({type(content).__name__})"
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    paths = (not_plain(part, f"{path}[{key!r}]") for key, part in parts)
    return next((path for path in paths if path is not None), None)
