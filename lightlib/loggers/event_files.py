"""TensorBoard's event files in a folder: their sizes, truncation and renaming."""

from __future__ import annotations

import re
import time

from lightlib.loggers import log_files
from lightlib.loggers.run_directory import HPARAMS_FILE

__all__ = ["begin_with", "cut", "rename_all", "sizes", "wait_for_a_later_name"]

_SECOND = re.compile(r"tfevents\.(\d+)\.")

_MARK = "tfevents"  # TensorBoard reads files with this in their names


def sizes(folder: str) -> dict[str, int]:
    """Return the size of each event file in `folder`, and in its folders for several curves in one diagram.

    A folder with an ``hparams.yaml`` of its own belongs to another run.
    """
    found = dict.fromkeys(_events(log_files.file_names(folder)), 0)
    for name in log_files.folder_names(folder):
        inside = log_files.file_names(log_files.below(folder, name))
        if HPARAMS_FILE not in inside:
            found.update(dict.fromkeys([f"{name}/{file}" for file in _events(inside)], 0))
    return {name: log_files.size_of(log_files.below(folder, name)) or 0 for name in found}


def wait_for_a_later_name(folder: str) -> None:
    """Wait until the second of the newest event file is over, at most two seconds.

    The names begin with the second in which a file was created. TensorBoard reads files in the order of their names. Of
    two with the same second the newer may come first, and TensorBoard then ignores the other.
    """
    seconds = [int(found[1]) for name in sizes(folder) if (found := _SECOND.search(name))]
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
            log_files.remove(log_files.below(folder, name))
        elif size > known[name]:
            log_files.cut(log_files.below(folder, name), known[name])


def rename_all(folder: str) -> None:
    """Give the files names that TensorBoard ignores."""
    for name in sizes(folder):
        log_files.rename(log_files.below(folder, name), log_files.below(folder, name.replace(_MARK, "earlier")))


def _events(names: list[str]) -> list[str]:
    return [name for name in names if _MARK in name]
