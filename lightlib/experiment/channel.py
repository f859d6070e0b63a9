"""Channels: messages from the process of an attempt to its worker, as JSON over a socket or in a file."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

_LARGEST = 1 << 20  # bytes of a message, so that a trial cannot fill the memory of its worker


class Sender(Protocol):
    """The end of the process."""

    def send(self, kind: str, **values: Any) -> None:
        """Send a message."""


class Receiver(Protocol):
    """The end of the worker."""

    def poll(self) -> bool:
        """Whether `receive` would return at once."""

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None when there will be none."""

    def close(self) -> None:
        """Close this end."""


class Channel:
    """One end of a connection. A message is a mapping of plain values with a ``kind``.

    Args:
        connection: Its other end is with the other process.

    Example:
        >>> from multiprocessing import Pipe
        >>> one, other = map(Channel, Pipe())
        >>> one.send("validated", step=3, metrics={"val_loss": 0.5})
        >>> other.receive()
        {'kind': 'validated', 'step': 3, 'metrics': {'val_loss': 0.5}}
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, kind: str, **values: Any) -> None:
        """Send a message.

        Raises:
            OSError: The other process is gone.
        """
        self._connection.send_bytes(json.dumps({"kind": kind, **values}).encode())

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message and return it; None when there will be none."""
        try:
            found = json.loads(self._connection.recv_bytes(_LARGEST))
        except (EOFError, OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def poll(self) -> bool:
        """Whether `receive` would return at once."""
        try:
            return self._connection.poll()
        except OSError:
            return False

    def fileno(self) -> int:
        """Return the file descriptor, with which `multiprocessing.connection.wait` can wait for a message."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


class FileChannel:
    """Messages as lines of a file, for programs that do not inherit open files: those of launchers, shells, containers.

    Args:
        path: Of the file. One process writes it.

    Example:
        >>> path = Path("messages.jsonl")
        >>> FileChannel(path).send("validated", step=3)
        >>> FileChannel(path).receive()
        {'kind': 'validated', 'step': 3}
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def send(self, kind: str, **values: Any) -> None:
        """Append a message.

        Raises:
            OSError: The file cannot be written.
        """
        with self._path.open("ab", buffering=0) as file:
            file.write(f"{json.dumps({'kind': kind, **values})}\n".encode())

    def poll(self) -> bool:
        """Whether there is another complete message."""
        return b"\n" in self._rest()

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if there is none now."""
        line, end, _ = self._rest().partition(b"\n")
        self._read += len(line) + len(end) if end else 0
        try:
            found = json.loads(line) if end else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _rest(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                return file.read(_LARGEST)
        except FileNotFoundError:
            return b""
