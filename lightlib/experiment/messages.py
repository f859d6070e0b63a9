"""Messages between the process of an attempt and its worker: lines of JSON in files."""

from __future__ import annotations

import json
import os
import weakref
from pathlib import Path
from typing import Any

FILE = "messages.jsonl"  # in the folder of the attempt, from its process
DECISIONS = "decisions.jsonl"  # there, from its worker
_as_json = json.JSONEncoder(check_circular=False).encode  # `json.dumps` takes a third longer


class Messages:
    """The messages of one attempt, in a file, so that they outlive the process and the worker.

    A file also passes through launchers, shells and containers, which close what they inherit. A message is a mapping
    of plain values with a ``kind``.

    Args:
        folder: Of the attempt.
        name: Of the file, to which one process writes. Default: that of the messages to the worker.

    Attributes:
        folder: Of the attempt.

    Example:
        >>> there, here = Messages(Path()), Messages(Path())
        >>> there.send("validated", step=3, metrics={"val_loss": 0.5})
        >>> here.new()
        [{'kind': 'validated', 'step': 3, 'metrics': {'val_loss': 0.5}}]
        >>> here.new()
        []
    """

    def __init__(self, folder: Path, name: str = FILE) -> None:
        self.folder, self._path, self._read = folder, folder / name, 0
        self._file: int | None = None  # the descriptor by which it sends

    def send(self, kind: str, **values: Any) -> None:
        """Append a message. The file stays open for the next one: opening it takes longer than the rest.

        Raises:
            OSError: The file cannot be written.
        """
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            weakref.finalize(self, os.close, self._file)
        os.write(self._file, f"{_as_json({'kind': kind, **values})}\n".encode())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open file: in another process its number is that of another file."""
        return {**self.__dict__, "_file": None}

    def new(self) -> list[dict[str, Any]]:
        """Return the messages that were completed since the last call; a line that is none is left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                complete, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read += len(complete) + len(end)
        return [message for line in complete.splitlines() if (message := _parsed(line)) is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) and "kind" in content else None
