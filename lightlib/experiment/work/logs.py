"""Logs: the output of an attempt in files, line by line, watched for log policies, and read again."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from multiprocessing import connection
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from lightlib.experiment.file.log_policies import LogPolicy
from lightlib.launch.start.output import Lines, Pipe

LIMIT = 100_000_000  # bytes of a file
_SETTLED = 2.0  # seconds after which a line without an end is written
_SEARCHED = 10_000  # characters of a line
_POLL = 0.2
_CHUNK = 1 << 20
_TAIL = 1 << 16  # bytes at the end of a file
_TAG = re.compile(r"^\[rank (\d+)\] ")
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT[0-9:.]+Z) (\d+) (.*)", re.DOTALL)
# Control characters, and those that end a line or change its direction; a tab is harmless.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_DIM, _RANK, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[0m"


class Line(NamedTuple):
    """One line of a log.

    Attributes:
        time: When it was read, in UTC, such as ``2026-11-28T03:10:00.123Z``; empty for a damaged line.
        rank: Of the process that printed it; 0 for a damaged line.
        text: With its control characters, without the newline.
    """

    time: str
    rank: int
    text: str


class LogFile(Lines):
    """Thread that appends the output of a trial to a file, with time and rank, and searches it for log policies.

    The rank is that of lightlib's tag ``[rank 1]``, which is removed, otherwise 0. A line without an end is written
    after two seconds, a longer one than a million characters in pieces. A full file is renamed to ``log.1.txt``, the
    next one to ``log.2.txt`` and so on. While a line cannot be written, because the disk is full for example, the
    thread continues to read, so the trial continues to run.

    Args:
        pipe: What the trial prints: a file, a connection of `multiprocessing`, or a file descriptor. It is closed at
            its end.
        path: Of the file, ``log.txt`` in the folder of the attempt. An existing one is continued.
        policies: Those to search for in each line, in its first 10,000 characters.
        limit: Bytes after which a file is full. Default 100 MB.

    Attributes:
        lost: The number of lines that could not be written.
    """

    longest: ClassVar[float] = 1_000_000

    def __init__(self, pipe: Pipe | int, path: Path, policies: Iterable[LogPolicy] = (), limit: int = LIMIT) -> None:
        super().__init__(os.fdopen(pipe, "rb", buffering=0) if isinstance(pipe, int) else pipe, f"lightlib {path}")
        self.lost = 0
        self._path, self._limit = path, limit
        self._file: BinaryIO | None = None
        self._size = 0
        self._matched: tuple[LogPolicy, ...] = ()
        self._unmatched = [(policy, _compiled(policy.pattern)) for policy in policies if policy.pattern is not None]

    def run(self) -> None:
        try:
            super().run()
        finally:
            with self._lock:
                self._close()

    def matched(self) -> list[LogPolicy]:
        """Return the policies found so far, in the order of their first match."""
        return list(self._matched)

    def tail(self) -> list[str]:
        """Return the last 200 lines as the trial printed them, with their tags."""
        return list(self._last)

    def _read(self) -> bytes:
        if os.name == "posix":  # Windows cannot wait for a pipe
            while not connection.wait([self._pipe.fileno()], _SETTLED):
                self.settle(_SETTLED)
        return super()._read()

    def _write(self, lines: list[str]) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        texts = []
        for line in lines:
            tag = _TAG.match(line)
            rank, text = (tag[1], line[tag.end() :]) if tag else ("0", line)
            self._search(text)
            texts.append(f"{now} {rank} {text}\n")
        data = "".join(texts).encode()
        written = self._append(data)
        self.lost += data.count(b"\n", written)

    def _search(self, text: str) -> None:
        matched = [policy for policy, pattern in self._unmatched if pattern.search(text, 0, _SEARCHED)]
        if matched:
            self._unmatched = [pair for pair in self._unmatched if pair[0] not in matched]
            self._matched = (*self._matched, *matched)

    # the file
    def _append(self, data: bytes) -> int:
        """Append complete lines; return how many bytes were written before an error."""
        written = 0
        try:
            file = self._with_room(len(data))
            while written < len(data):  # a disk that becomes full takes a part, and refuses the next one
                count = file.write(data[written:])
                written, self._size = written + count, self._size + count
        except OSError:
            self._close()  # the next line opens it again, and ends a torn one
        return written

    def _with_room(self, count: int) -> BinaryIO:
        """Return the file with room for so many bytes, if it is not empty."""
        if self._file is None:
            self._file, self._size = _opened(self._path)
        if self._size and self._size + count > self._limit:
            self._close()
            with suppress(OSError):  # rather too large a file than none
                self._path.rename(_older(self._path, max(_numbers(self._path), default=0) + 1))
            self._file, self._size = _opened(self._path)
        return self._file

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


def read(folder: Path, follow: Callable[[], bool] | None = None) -> Iterator[Line]:
    r"""Yield the lines of an attempt, in order over all its files. A damaged line is yielded as it is.

    Args:
        folder: Of the attempt, in which ``log.txt`` is.
        follow: Whether to wait for more lines, asked five times a second until it returns False. Default: yield only
            the lines that there are.

    Raises:
        OSError: A file cannot be read.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "log.txt").write_text("2026-11-28T03:10:00.123Z 1 loss=0.3\n")
        36
        >>> list(read(folder))
        [Line(time='2026-11-28T03:10:00.123Z', rank=1, text='loss=0.3')]
    """
    path = folder / "log.txt"
    number = min(_numbers(path), default=1)
    waits = follow or (lambda: False)
    following = True
    rest = b""
    with ExitStack() as stack:
        file: BinaryIO | None = None
        while True:
            # Both are asked before the file is read to its end, so nothing that was written before is missed.
            following = following and waits()
            is_full = _older(path, number).exists()
            file = file or _number(path, number, stack)
            while chunk := file.read(_CHUNK) if file else b"":
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(_parsed, lines)
            if rest and (is_full or not following):
                yield _parsed(rest)
                rest = b""
            if is_full:
                stack.close()
                file, number = None, number + 1
            elif following:
                time.sleep(_POLL)
            else:
                return


def last(folder: Path, count: int) -> list[Line]:
    """Return the last lines of the newest file of an attempt, of its last 64 KiB; none if it cannot be read.

    Args:
        folder: Of the attempt, in which ``log.txt`` is.
        count: At most so many lines.
    """
    try:
        with (folder / "log.txt").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            lines = file.read().removesuffix(b"\n").split(b"\n") if size else []
    except OSError:
        return []
    complete = lines[1:] if size > _TAIL else lines
    return [_parsed(line) for line in (complete or lines)[-count:]]


def remove(folder: Path) -> int:
    """Remove the log of an attempt; return how many files it had.

    Args:
        folder: Of the attempt, in which ``log.txt`` is.

    Raises:
        OSError: A file cannot be removed.
    """
    path = folder / "log.txt"
    files = [file for file in (path, *(_older(path, number) for number in _numbers(path))) if file.exists()]
    for file in files:
        file.unlink(missing_ok=True)  # another worker may remove it at the same time
    return len(files)


def as_text(line: Line, colour: bool = False) -> str:
    r"""Return a line for a terminal: time, rank and text, with control characters except tabs escaped.

    Args:
        line: It.
        colour: Whether to dim the time and colour the rank. Default False.

    Example:
        >>> as_text(Line("2026-11-28T03:10:00.123Z", 1, "\x1b[2J loss=0.3"))
        '2026-11-28T03:10:00.123Z 1 \\x1b[2J loss=0.3'
    """
    text = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), line.text)
    if not line.time:
        return text
    if colour:
        return f"{_DIM}{line.time}{_PLAIN} {_RANK}{line.rank}{_PLAIN} {text}"
    return f"{line.time} {line.rank} {text}"


def _parsed(data: bytes) -> Line:
    text = data.decode("utf-8", "replace")
    match = _LINE.fullmatch(text)
    return Line(match[1], int(match[2]), match[3]) if match else Line("", 0, text)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern without `.*` at its beginning, which finds the same, and takes the square of the time."""
    shorter = re.sub(r"^(\.\*(?![?+*{]))+", "", pattern)
    try:
        return re.compile(shorter)
    except re.error:
        return re.compile(pattern)


# files
def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _numbers(path: Path) -> list[int]:
    """Return the numbers of the full files."""
    name = re.compile(rf"{re.escape(path.stem)}\.(\d+){re.escape(path.suffix)}")
    matches = (name.fullmatch(file.name) for file in path.parent.glob(f"{path.stem}.*"))
    return [int(match[1]) for match in matches if match]


def _opened(path: Path) -> tuple[BinaryIO, int]:
    """Open a file to append lines, and return it with its size; a torn last line is ended first."""
    file = path.open("ab+", buffering=0)
    try:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                size += file.write(b"\n")
    except BaseException:
        file.close()
        raise
    return file, size


def _number(path: Path, number: int, stack: ExitStack) -> BinaryIO | None:
    """Open the file of this number, full or not; None if it does not exist yet."""
    with suppress(FileNotFoundError):
        return stack.enter_context(_older(path, number).open("rb"))
    with suppress(FileNotFoundError):
        file = stack.enter_context(path.open("rb"))
        # if it was renamed meanwhile, this may be the next one
        return stack.enter_context(_older(path, number).open("rb")) if _older(path, number).exists() else file
    return None
