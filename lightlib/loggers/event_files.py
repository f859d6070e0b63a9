"""TensorBoard's event files in a folder: their sizes, truncation and renaming."""

from __future__ import annotations

import re
import time

from lightlib.checkpoint.storage import filesystem as storage
from lightlib.loggers import log_files
from lightlib.loggers.log_files import HPARAMS_FILE, below

_SECOND = re.compile(r"tfevents\.(\d+)\.")

_MARK = "tfevents"  # TensorBoard reads files with this in their names


def sizes(folder: str) -> dict[str, int]:
    """Return the size of each event file in `folder`, and in its folders for several curves in one diagram.

    A folder with an ``hparams.yaml`` of its own belongs to another run.
    """
    names = log_files.file_names(folder)
    for name in log_files.folder_names(folder):
        inside = log_files.file_names(below(folder, name))
        names += [f"{name}/{file}" for file in inside if HPARAMS_FILE not in inside]
    events = sorted(name for name in names if _MARK in name.rpartition("/")[2])
    return {name: log_files.size_of(below(folder, name)) or 0 for name in events}


def wait_for_a_later_name(folder: str) -> None:
    """Wait until the second of the newest event file is over, at most two seconds.

    The names begin with the second in which a file was created. TensorBoard reads files in the order of their names. Of
    two with the same second the newer may come first, and TensorBoard then ignores the other.
    """
    seconds = [int(match[1]) for name in sizes(folder) if (match := _SECOND.search(name))]
    deadline = time.monotonic() + 2
    while seconds and int(time.time()) == max(seconds) and time.monotonic() < deadline:
        time.sleep(0.02)


def begin_with(folder: str, known: dict[str, int]) -> bool:
    """Whether the files of `known` exist and are not shorter than they were; their names are unique to a run."""
    present = sizes(folder)
    return bool(known) and all(present.get(name, -1) >= size for name, size in known.items())


def cut(folder: str, known: dict[str, int]) -> None:
    """Truncate the files to their saved sizes, at the end of a record, and remove files that were created later."""
    for name, size in sizes(folder).items():
        if name not in known:
            log_files.remove(below(folder, name))
        elif size > known[name]:
            log_files.cut(below(folder, name), known[name])


def rename_all(folder: str) -> None:
    """Give the files names that TensorBoard ignores."""
    for name in sizes(folder):
        storage.rename(below(folder, name), below(folder, name.replace(_MARK, "earlier")))
