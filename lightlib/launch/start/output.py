"""Lines and Output: pass on the output of another process line by line."""

from __future__ import annotations

import codecs
import math
import os
import re
import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, ClassVar, Protocol

_KEPT = 200
_TORCHS_TAG = re.compile(r"^\[rank\d+\]: ")


class Pipe(Protocol):
    """The end of a pipe that is read: a file, or a connection of `multiprocessing`."""

    def fileno(self) -> int: ...
    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...


class Lines(threading.Thread):
    """Base of threads that read a pipe to its end and pass on its lines, in order and complete.

    For a progress bar that is redrawn on one line, only the last state is passed on. A line without an end is passed on
    once nothing has followed for a while. Subclasses write the lines.

    Args:
        pipe: What another process prints; it is closed at its end.
        name: Of the thread.
    """

    longest: ClassVar[float] = math.inf  # characters after which a line without an end is passed on

    def __init__(self, pipe: Pipe, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._pipe = pipe
        self._open = ""
        self._changed = time.monotonic()
        self._lock = threading.Lock()

    def run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with self._pipe:
            while chunk := self._read():
                self._take(decoder.decode(chunk))
        self.settle(0.0)

    def settle(self, seconds: float) -> None:
        """Pass on a line without an end once nothing has followed for so many seconds."""
        with self._lock:
            if _last_state(self._open) and time.monotonic() - self._changed >= seconds:
                self._pass_on([self._open])
                self._open = ""

    def _write(self, lines: list[str]) -> None:
        """Write lines; raises nothing, because a pipe that is no longer read would block the other process."""
        raise NotImplementedError

    def _read(self) -> bytes:
        return os.read(self._pipe.fileno(), 1 << 16)

    def _take(self, text: str) -> None:
        with self._lock:
            self._changed = time.monotonic()
            *lines, rest = (self._open + text).split("\n")
            done, back, begun = rest.rpartition("\r")
            self._open = _last_state(done) + back + begun
            if len(self._open) > self.longest:
                lines.append(self._open)
                self._open = ""
            if lines:
                self._pass_on(lines)

    def _pass_on(self, lines: list[str]) -> None:
        # torch tags tracebacks by itself once there is a process group
        shown = [_TORCHS_TAG.sub("", _last_state(line)) for line in lines]
        self._last.extend(shown)
        self._write(shown)


class Output(Lines):
    """Reads a pipe and writes its lines to this process's stdout or stderr, with a tag.

    The `stream`, ``"stdout"`` or ``"stderr"``, is looked up in `sys` for each line, because a progress bar may replace
    it.
    """

    def __init__(self, pipe: Pipe, tag: str, stream: str) -> None:
        super().__init__(pipe, f"lightlib {tag}{stream}")
        self._silent = False
        self._tag, self._stream = tag, stream

    @property
    def tail(self) -> deque[str]:
        """The last lines."""
        return self._last

    def silence(self) -> None:
        """Keep the tail, but pass nothing on any more."""
        self._silent = True

    def _write(self, lines: list[str]) -> None:
        if self._silent:
            return
        stream = getattr(sys, self._stream)
        text = "".join(f"{self._tag}{line}\n" for line in lines)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        data = text.encode(encoding, "replace")
        try:
            if stream is getattr(sys, f"__{self._stream}__"):  # bypass the buffered line of this process
                while data:
                    data = data[os.write(stream.fileno(), data) :]
            else:
                stream.write(data.decode(encoding))
                stream.flush()
        except Exception:  # noqa: BLE001  keep reading if the replaced stream fails: a full pipe would block the child
            return


def _last_state(line: str) -> str:
    """Return the last state of a redrawn line: the text after its last carriage return."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")
