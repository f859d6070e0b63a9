"""Output: passes on the output of another process line by line, with a tag."""

from __future__ import annotations

import codecs
import os
import re
import sys
import threading
import time
from collections import deque
from typing import IO

_KEPT = 200
_TORCHS_TAG = re.compile(r"^\[rank\d+\]: ")


class Output(threading.Thread):
    """Reads a pipe and writes its lines to this process's stdout or stderr, in order and complete.

    For a progress bar that is redrawn on one line, only the last state is passed on. A line without an end is passed on
    once nothing has followed for a while. The `stream`, ``"stdout"`` or ``"stderr"``, is looked up in `sys` for each
    line, because a progress bar may replace it.
    """

    def __init__(self, pipe: IO[bytes], tag: str, stream: str) -> None:
        super().__init__(name=f"lightlib {tag}{stream}", daemon=True)
        self.tail: deque[str] = deque(maxlen=_KEPT)  # the last lines
        self._silent = False
        self._pipe, self._tag, self._stream = pipe, tag, stream
        self._open = ""
        self._changed = time.monotonic()
        self._lock = threading.Lock()

    def run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), 1 << 16):
                self._take(decoder.decode(chunk))
        self.settle(0.0)

    def settle(self, seconds: float) -> None:
        """Pass on a line without an end once nothing has followed for so many seconds."""
        with self._lock:
            if _last_state(self._open) and time.monotonic() - self._changed >= seconds:
                self._pass_on([self._open])
                self._open = ""

    def silence(self) -> None:
        """Keep the tail, but pass nothing on any more."""
        self._silent = True

    def _take(self, text: str) -> None:
        with self._lock:
            self._changed = time.monotonic()
            *lines, rest = (self._open + text).split("\n")
            done, back, begun = rest.rpartition("\r")
            self._open = _last_state(done) + back + begun
            if lines:
                self._pass_on(lines)

    def _pass_on(self, lines: list[str]) -> None:
        # torch tags tracebacks by itself once there is a process group
        shown = [_TORCHS_TAG.sub("", _last_state(line)) for line in lines]
        self.tail.extend(shown)
        if self._silent:
            return
        stream = getattr(sys, self._stream)
        text = "".join(f"{self._tag}{line}\n" for line in shown)
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
