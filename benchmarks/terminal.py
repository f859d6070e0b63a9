"""A terminal with a reader: progress bars draw to it as they would to a screen."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import patch

__all__ = ["terminal"]

_READER = "import os\ntry:\n    while os.read(0, 65536): pass\nexcept OSError: pass"
_COLUMNS, _LINES = 120, 30


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    """Send standard output and error to a pseudo-terminal, which another process reads.

    Without a terminal the measurement would be too favorable: lightlib draws no bar into a file, and rich draws none at
    all. Where pseudo-terminals do not exist, the output is discarded.
    """
    if not hasattr(os, "openpty"):
        with open(os.devnull, "w", encoding="utf-8") as nowhere, _redirected(nowhere):
            yield
        return
    import fcntl  # optional: not on Windows
    import struct  # optional: only used here
    import termios  # optional: not on Windows

    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    with subprocess.Popen([sys.executable, "-S", "-c", _READER], stdin=master) as reader:
        os.close(master)
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
        environment["TERM"] = "xterm-256color"
        try:
            with (
                patch.dict(os.environ, environment, clear=True),
                os.fdopen(slave, "w", encoding="utf-8", buffering=1) as screen,
                _redirected(screen),
            ):
                yield
        finally:
            reader.terminate()


@contextlib.contextmanager
def _redirected(screen: object) -> Iterator[None]:
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        yield
