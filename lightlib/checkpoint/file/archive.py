"""The single file: what torch.save writes, and a trailer that shows whose it is and that it is whole.

It is a zip file, which torch.load and Lightning read. The trailer is the zip file's comment, so it is in nobody's way:
JSON with the label of the run, the number of bytes before it and their SHA-256, and a CRC-32 of itself. In that digest
the bytes of a record (a tensor's storage) are represented by their CRC-32, which is in the zip file anyway. So each
byte is covered once, and every cut, every flipped bit and every burst of up to 32 bits is found with certainty, and
any other damage but for one in four thousand million. docs/decisions/0017-checkpoint-files.md has the reasons.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import IO, Any, BinaryIO, cast

import torch

from lightlib.checkpoint.file import pickles, trailer
from lightlib.checkpoint.file.records import (
    CorruptionError,
    RecordWriter,
    Source,
    UnknownZipLayout,
    WholeWriter,
    check_data,
    digest,
    layout,
    without_checksums,
)
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import ArgumentTypeError, CheckpointError, CheckpointWriteError, LightlibError, shown

__all__ = ["label_of", "load", "not_plain", "save", "verify"]

ZIP = b"PK\x03\x04"
IN_MEMORY = 2**26  # bytes up to which what is not on a disk is copied into memory, and not into a temporary file
MESSAGES = {
    "whole": "a whole file that Trainer.save_checkpoint or Lightning wrote.",
    "another": "use another checkpoint; this one is truncated, damaged, or something else.",
    "plain": "tensors and plain values, which is all that lightlib writes.",
    "trust": "if you trust where the file comes from, pass trust=True to lightlib.checkpoint.load, or to fit and "
    "load_from_checkpoint weights_only=False; it may run any code.",
}


def save(content: Mapping[str, Any], path: str | os.PathLike[str], label: Label) -> None:
    """Write a file, which appears under its name only when it is complete, and on a disk flushed.

    Args:
        content: Tensors, plain values and containers of them.
        path: A local path or a URL.
        label: Which run writes it, and when.

    Raises:
        CheckpointWriteError: It could not be written; a file that was there before is as it was.

    Example:
        >>> save({"state_dict": {"weight": torch.ones(2)}}, "example.ckpt", Label(run="1f", step=3))
        >>> torch.load("example.ckpt")["state_dict"], load("example.ckpt")["state_dict"]
        ({'weight': tensor([1., 1.])}, {'weight': tensor([1., 1.])})
        >>> label_of("example.ckpt").step
        3
    """

    def records(file: BinaryIO) -> None:
        with without_checksums(), RecordWriter(file) as writer:
            try:
                torch.save(content, cast("IO[bytes]", writer))
            except Exception:
                if writer.unfamiliar:
                    raise UnknownZipLayout from None
                raise
            writer.finish(trailer.writer(label, "records"))

    def whole(file: BinaryIO) -> None:
        writer = WholeWriter(file)
        torch.save(content, cast("IO[bytes]", writer))
        writer.finish(trailer.writer(label, "all"))

    try:
        try:
            filesystem.write(path, records)
        except UnknownZipLayout:
            filesystem.write(path, whole)
    except (LightlibError, OSError, MemoryError):
        raise
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise _not_picklable(content, path, error) from error
    except RuntimeError as error:
        raise CheckpointWriteError(
            f"The checkpoint {os.fspath(path)!r} could not be written: {error}.",
            expected="tensors, numbers, strings, lists and dicts of them.",
            fix="look at what on_save_checkpoint and state_dict hand over; earlier checkpoints are as they were.",
        ) from error


def load(
    path: Any, map_location: Any = None, trust: bool = False, *, mmap: bool = False, check: bool = True
) -> dict[str, Any]:
    """Read a file after it was compared with its checksums. Nothing in it is run, unless `trust` says that it may be.

    Args:
        path: A local path, a URL, or a file open for reading bytes.
        map_location: As in torch.load.
        trust: Also take Python objects that can only be read by running code that the file names.
        mmap: Leave tensors in a local file until they are used, which saves the memory of those that are not. The file
            must not be written while they are in use; lightlib replaces files and never writes into them.
        check: False compares nothing, so that with ``map_location="meta"`` hardly more is read than the names.

    Raises:
        FileNotFoundError: There is none.
        CheckpointError: It is damaged, no checkpoint, or holds objects that only a trusted file may hold.
    """
    if not isinstance(path, (str, os.PathLike)) and not hasattr(path, "read"):
        raise ArgumentTypeError(
            f"The path of a checkpoint is {shown(path)}.",
            expected="a path, a URL, or an open file.",
            fix="load_from_checkpoint('model.ckpt')",
        )
    name = _described(path)
    with _opened(path, name, whole=check) as file:
        try:
            content = _read(file, _local(path) if mmap else None, map_location, trust, check)
        except (CheckpointError, FileNotFoundError, torch.OutOfMemoryError):
            raise
        except pickles.Refused as error:
            raise _refused(name, error.args[0], error.args[1]) from None
        except Exception as error:  # a damaged file may make torch raise anything
            if pickles.is_real_shortage(error, file.seek(0, os.SEEK_END)):
                raise
            raise _unreadable(name, error, file, trust) from (None if _needs_trust(error) else error)
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), Mapping):
        raise _no_checkpoint(name, path, content)
    return content


def label_of(path: str | os.PathLike[str]) -> Label | None:
    """Return which run wrote a file, from its last bytes; None when it is not ours, damaged there, or absent."""
    try:
        with filesystem.open_for_reading(path) as file:
            found = trailer.read(file)
    except (CorruptionError, FileNotFoundError, IsADirectoryError):
        return None
    return None if found is None else found.label


def verify(path: str | os.PathLike[str]) -> int:
    """Compare a file with its checksums, and return how many are ours; 0 for a file of another program, which is read.

    Raises:
        FileNotFoundError: There is none.
        CheckpointError: It is damaged; the text says where.
    """
    name = _described(path)
    with _opened(path, name) as file:
        try:
            count = _check(file)
        except (CorruptionError, OSError) as error:
            raise _unreadable(name, error, file, trusted=False) from error
    if count is None:
        load(path, "meta")
    return count or 0


def _read(file: BinaryIO, path: str | None, map_location: Any, trust: bool, check: bool) -> Any:
    """Return what is in a file, after everything about it was checked that can be."""
    if file.seek(0, os.SEEK_END) == 0:
        raise CorruptionError("it is empty or ends too early")
    known = (_check(file) if check else trailer.read(file)) is not None
    if not trust:
        pickles.check(_pickles(file))
    file.seek(0)
    source = path if path is not None and _starts_as_zip(file) else file
    content = torch.load(source, map_location, weights_only=not trust, mmap=source is path)
    if not trust:
        pickles.check_content(content, map_location, file.seek(0, os.SEEK_END))
    ours = content.get("lightlib") if isinstance(content, dict) else None
    version = ours.get("format") if isinstance(ours, dict) else None
    # Without a trailer it is of torch.save, behind whose bytes there is nothing.
    alone = known or (_starts_as_zip(file) and not trailer.has_comment(file))
    if isinstance(version, int) and version > 1 and not alone:
        raise CorruptionError("its end is damaged")
    return content


def _pickles(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield all pickles in a file, each as a file at its beginning."""
    if _starts_as_zip(file):
        source = Source(file)
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


def _check(file: BinaryIO) -> int | None:
    """Compare a file with its checksums; return how many there are of ours, None in files of other programs.

    Raises:
        CorruptionError: They differ.
        CheckpointError: A newer version wrote it.
    """
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
        trailer.has_comment(file)  # it is whole when there is what it says
    source = Source(file)
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


@contextmanager
def _opened(path: Any, name: str, whole: bool = True) -> Iterator[BinaryIO]:
    """Open what is to be read as a file whose first byte is at 0; what is not on a disk is copied first, if `whole`."""
    if not isinstance(path, (str, os.PathLike)):
        if _can_be_sought(path) and path.tell() == 0:
            yield path
            path.seek(0, os.SEEK_END)
        else:
            with _copy(path, None) as copied:
                yield copied
        return
    try:
        file = filesystem.open_for_reading(path)
        if whole and filesystem.is_remote(path):
            with file:
                file = _copy(file, filesystem.size_of(path))
    except FileNotFoundError:
        raise
    except (ImportError, OSError, ValueError) as error:
        if not filesystem.is_remote(path):
            raise _unreadable(name, error, None, trusted=False) from error
        raise CheckpointError(
            f"{os.fspath(path)!r} cannot be reached: {error}",
            expected="a path, or a URL whose protocol fsspec knows, with the package for it installed.",
            fix="pip install s3fs for s3://, gcsfs for gs://, adlfs for abfs://; or use a local path.",
        ) from error
    with file:
        yield file


def _can_be_sought(file: Any) -> bool:
    return hasattr(file, "seek") and hasattr(file, "tell") and (not hasattr(file, "seekable") or file.seekable())


def _copy(file: Any, size: int | None) -> BinaryIO:
    """Return the rest of a file in memory or, when that is a lot, in a temporary file."""
    copied: Any = BytesIO() if size is None or size <= IN_MEMORY else tempfile.TemporaryFile()  # noqa: SIM115  returned
    shutil.copyfileobj(file, copied, 2**23)
    copied.seek(0)
    return copied  # type: ignore[no-any-return]


def _local(path: Any) -> str | None:
    named = isinstance(path, (str, os.PathLike)) and not filesystem.is_remote(path)
    return filesystem.local_path(path) if named else None


def _described(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        return "The file object"
    local = _local(path)
    size = f" ({os.path.getsize(local)} bytes)" if local is not None and os.path.isfile(local) else ""
    return f"{os.fspath(path)!r}{size}"


def _refused(name: str, what: str, place: str) -> CheckpointError:
    at = f" at {place}" if place else ""
    return CheckpointError(
        f"{name} holds a Python object{at} that can only be loaded by running code: {what}.",
        expected=MESSAGES["plain"],
        fix=MESSAGES["trust"],
    )


def _unreadable(name: str, error: Exception, file: BinaryIO | None, trusted: bool) -> CheckpointError:
    foreign = re.search(r"GLOBAL ([\w.]+)", str(error)) if _needs_trust(error) else None
    if foreign is not None and file is not None:
        return _refused(name, foreign[1], pickles.place_of(foreign[1], _pickles(file)))
    if _needs_trust(error) and file is not None:
        first = pickles.first_foreign(_pickles(file))
        if first is not None:
            return _refused(name, *first)
    fix = MESSAGES["another"]
    if isinstance(error, RuntimeError) and "map_location" in str(error):
        fix = 'pass map_location="cpu" to read what was saved on a device that is not here.'
    return CheckpointError(
        f"{name} could not be read as a checkpoint: {_reason(error, trusted)}.", expected=MESSAGES["whole"], fix=fix
    )


def _needs_trust(error: Exception) -> bool:
    """Whether torch refused something; its text advises to load the file unsafely, so it is not shown."""
    return isinstance(error, pickle.UnpicklingError)


def _reason(error: Exception, trusted: bool) -> str:
    if isinstance(error, (CorruptionError, pickles.Strange)):
        return str(error)
    if isinstance(error, EOFError):
        return "it is empty or ends too early"
    if isinstance(error, IsADirectoryError):
        return "it is a directory"
    if isinstance(error, OSError):
        return "it is truncated" if error.errno == 22 else str(error)
    if type(error) is RuntimeError and str(error):
        text = re.sub(
            r"^\[enforce fail at [^\]]*\] [^.]*\. ", "", str(error)
        )  # where torch found it, in its own sources
        return text.split(". ")[0].splitlines()[0]
    return f"{type(error).__name__}: {error}" if trusted else "torch.save did not write it, or it is damaged"


def _no_checkpoint(name: str, path: Any, content: Any) -> CheckpointError:
    where = f"{str(path)!r}" if isinstance(path, (str, os.PathLike)) else "file"
    fix = "use a file that Trainer.save_checkpoint or Lightning wrote."
    if not isinstance(content, dict):
        found = f"it is {_shown(content)}"
    elif "state_dict" in content:
        found = f"its 'state_dict' is {_shown(content['state_dict'])}"
    else:
        found = f"it is a dict with the keys {sorted(key for key in content if isinstance(key, str))[:6]}"
        if content and all(isinstance(value, torch.Tensor) for value in content.values()):
            fix = f"these are plain weights: module.load_state_dict(torch.load({where}))"
    return CheckpointError(
        f"{name} holds no checkpoint: {found}.",
        expected="a dict with 'state_dict', as Trainer.save_checkpoint writes it.",
        fix=fix,
    )


def _shown(value: Any) -> str:
    try:
        return shown(value)
    except Exception:  # noqa: BLE001  a file may hold what cannot be shown
        return f"an object of type {type(value).__name__}"


def _not_picklable(content: Any, path: str | os.PathLike[str], error: Exception) -> CheckpointWriteError:
    place = not_plain(content)
    return CheckpointWriteError(
        f"The checkpoint {os.fspath(path)!r} could not be written: it holds an object that cannot be pickled"
        f"{'' if place is None else f' at {place}'}: {error}.",
        expected="tensors, numbers, strings, lists and dicts of them.",
        fix="leave it out of what on_save_checkpoint or state_dict hands over; earlier checkpoints are as they were.",
    )


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)


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
