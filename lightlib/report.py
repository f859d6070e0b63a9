"""Messages and warnings to the user: on rank zero only, in categories that can be filtered."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any, TypeVar

from lightlib.errors import FOLDERS

__all__ = [
    "LOGIN",
    "MASK",
    "LightlibWarning",
    "Once",
    "PossibleUserWarning",
    "ToStderr",
    "described",
    "has_password",
    "info",
    "info_once",
    "is_secret",
    "rank_zero_only",
    "share_rank",
    "warn",
    "warn_once",
    "without_passwords",
    "write_output",
]

T = TypeVar("T")
_RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID", "PMI_RANK", "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK",
)  # fmt: skip
# Places of code that no user wrote: ours, Python's, and programs such as `lightlib` next to the interpreter.
_NOT_USERS = (
    "<frozen ",
    *FOLDERS,
    *(os.path.join(os.path.dirname(os.path.abspath(file)), "") for file in (os.__file__, sys.executable) if file),
)
_shown_without_line: dict[Any, Any] = {}  # the registry in which Python notes shown warnings
_LONGEST_WORD = 80
MASK = "***"  # shown instead of a secret
LOGIN = re.compile(r"(\w+://[^/\s:@]*:)([^/\s@]+)@")  # a password in a URL
_SECRET = re.compile("passw(or)?d|passphrase|secret|credential|apikey|accesskey|privatekey|authkey")
_TOKEN = re.compile("(?<!pad)(?<!eos)(?<!bos)(?<!unk)(?<!mask)(?<!sep)(?<!cls)(?<!special)(?<!start)(?<!end)tokens?$")

log = logging.getLogger("lightlib")


class ToStderr(logging.StreamHandler):  # type: ignore[type-arg]  # no [] before Python 3.11
    """Handler that looks `sys.stderr` up at each message: a progress bar or a notebook may have replaced it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self._instead: Any = None

    @property
    def stream(self) -> Any:
        return sys.stderr if self._instead is None else self._instead

    @stream.setter
    def stream(self, stream: Any) -> None:
        self._instead = None if stream is sys.stderr else stream

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  its name in logging
        with contextlib.suppress(ValueError):  # sys.stderr is closed
            super().handleError(record)


if not log.handlers and not logging.getLogger().handlers:
    _handler = ToStderr()
    _handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(_handler)
    log.propagate = False
    if log.level == logging.NOTSET:  # the program has not chosen one
        log.setLevel(logging.INFO)


class LightlibWarning(UserWarning):
    """Base of all warnings of lightlib, so that `warnings.filterwarnings` can select them."""


class PossibleUserWarning(LightlibWarning):
    """A warning about something that is often, but not always, a mistake; ``POSSIBLE_USER_WARNINGS=off`` hides all."""


if os.environ.get("POSSIBLE_USER_WARNINGS", "").strip().lower() in ("0", "off"):
    warnings.simplefilter("ignore", PossibleUserWarning)


def _rank_from_environment() -> int:
    for name in _RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


class _RankZeroOnly:
    """Decorator: the function runs on rank zero and returns None on other ranks.

    `rank` is set when the run starts. That of lightning_utilities, which programs for Lightning use, follows it.
    """

    rank: int = _rank_from_environment()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        theirs: Any = getattr(sys.modules.get("lightning_utilities.core.rank_zero"), "rank_zero_only", None)
        if name == "rank" and theirs is not None:
            theirs.rank = value

    def __call__(self, function: Callable[..., T]) -> Callable[..., T | None]:
        @functools.wraps(function)
        def on_rank_zero(*args: Any, **kwargs: Any) -> T | None:
            return function(*args, **kwargs) if self.rank == 0 else None

        return on_rank_zero


rank_zero_only = _RankZeroOnly()


def share_rank() -> None:
    """Set `rank_zero_only.rank` of lightning_utilities, unless it is set: without it, decorated functions raise.

    torchmetrics brings the package, and Lightning sets the rank when it is imported.
    """
    with contextlib.suppress(ImportError):
        from lightning_utilities.core import rank_zero  # optional: lightning_utilities

        theirs: Any = rank_zero.rank_zero_only
        if getattr(theirs, "rank", None) is None:
            theirs.rank = rank_zero_only.rank


def info(message: str) -> None:
    """Log `message` on rank zero through the logger named ``lightlib``."""
    if rank_zero_only.rank == 0:
        log.info(message)


def warn(message: str, category: type[Warning] = LightlibWarning) -> None:
    """Warn on rank zero, at the line of the user's code that led here. Python shows the same text there only once."""
    if rank_zero_only.rank != 0:
        return
    frame = _frame_of_user()
    if frame is None:  # the command line, or a thread of ours: there is no line to show
        warnings.warn_explicit(message, category, "lightlib", 0, "lightlib", _shown_without_line)
    else:
        warning_registry = frame.f_globals.setdefault("__warningregistry__", {})
        module = frame.f_globals.get("__name__", "__main__")
        warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, warning_registry)


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an error, which its traceback shows; before Python 3.11 it is logged."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        info(text)


def print_by(write: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Call a function that prints; only a file that the caller gives may raise."""
    if kwargs.get("file") is None:
        write_output(write, *args, **kwargs)
    else:
        write(*args, **kwargs)


def write_output(write: Callable[..., object], *args: Any, **kwargs: Any) -> bool:
    """Call a function that writes to stdout or stderr, and return whether it could.

    A pipe without a reader, a full disk or a closed stream ends no run: the user is warned once.
    """
    try:
        write(*args, **kwargs)
    except (OSError, ValueError, AttributeError) as error:
        closed = isinstance(error, ValueError) and "closed file" in str(error)
        absent = isinstance(error, AttributeError) and "'NoneType'" in str(error) and None in (sys.stdout, sys.stderr)
        if not (isinstance(error, OSError) or closed or absent):
            raise
        with contextlib.suppress(OSError, ValueError):  # stderr may be the same pipe
            once.warn(
                "output",
                f"The output of the run cannot be written: {type(error).__name__}: {error}. The run continues without "
                "it.",
            )
        return False
    return True


class Once:
    """Logs or warns once per key. `info_once` and `warn_once` are the process's own; an object may have another."""

    def __init__(self) -> None:
        self._keys: set[Hashable] = set()

    def __eq__(self, other: object) -> bool:  # a pickled copy of an object that has one is equal to it
        return isinstance(other, Once) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def info(self, message: str, key: Hashable = None) -> None:
        """Log `message`, unless one with this key was logged. By default the message is the key."""
        if self._is_first(message if key is None else key):
            info(message)

    def warn(self, key: Hashable, message: str, category: type[Warning] = LightlibWarning) -> None:
        """Warn, unless there was a warning with this key."""
        if self._is_first(key):
            warn(message, category)

    def clear(self) -> None:
        """Forget all keys."""
        self._keys.clear()

    def _is_first(self, key: Hashable) -> bool:
        first = key not in self._keys
        self._keys.add(key)
        return first


once = Once()
info_once, warn_once = once.info, once.warn


def _frame_of_user() -> FrameType | None:
    """Return the innermost frame of code that is neither lightlib's nor Python's nor an installed package's."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  inspect costs milliseconds to import
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_users(file: str) -> bool:
    return not file.startswith(_NOT_USERS) and "site-packages" not in file and "dist-packages" not in file


def described(instance: object, **more: Any) -> str:
    """Return the call that makes an object: its class, and those arguments that are not the default.

    Args:
        instance: Its arguments are read from attributes of the same name.
        **more: Arguments without such an attribute.

    Example:
        >>> class Point:
        ...     def __init__(self, x, y=0, password=None):
        ...         self.x, self.y, self.password = x, y, password
        >>> described(Point(1, password="abc")), described(Point(1, 2), x="far")
        ("Point(x=1, password='***')", "Point(x='far', y=2)")
    """
    try:
        parameters = inspect.signature(type(instance).__init__).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    attributes = {name: value for name, value in getattr(instance, "__dict__", {}).items() if name not in more}
    values = {**attributes, **{name: value for name, value in more.items() if value is not None}}
    words = [
        f"{name}={_short_repr(MASK if is_secret(name, values[name]) else values[name])}"
        for name, parameter in parameters.items()
        if name in values and not _is_default(values[name], parameter.default, exactly=name in more)
    ]
    return f"{type(instance).__name__}({', '.join(words)})"


def _is_default(value: Any, default: Any, exactly: bool) -> bool:
    """Whether an argument was left out; None may have been turned into another nothing."""
    try:
        return bool(value == default or (default is None and not exactly and not value))
    except Exception:  # noqa: BLE001  such as an array that has no truth value
        return False


def _short_repr(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001  a repr must not fail
        text = f"<{type(value).__name__}>"
    if text.startswith("<") and " at 0x" in text:
        text = f"<{getattr(value, '__qualname__', type(value).__name__)}>"
    return text if len(text) <= _LONGEST_WORD else f"{text[:_LONGEST_WORD]}…"


def without_passwords(text: str) -> str:
    """Return a text with ``***`` for the passwords of its URLs.

    Example:
        >>> without_passwords("postgres://me:abc@host/db")
        'postgres://me:***@host/db'
    """
    return LOGIN.sub(rf"\1{MASK}@", text)


def has_password(value: object) -> bool:
    """Whether a value is a text, or a list or tuple with one, that holds a URL with a password."""
    if isinstance(value, (list, tuple)):
        return any(map(has_password, value))
    return isinstance(value, str) and without_passwords(value) != value


def is_secret(name: object, value: object) -> bool:
    """Whether a value must not be shown, judged by its name.

    The name holds password, secret, credential, api_key or the like; or the value is a string whose name ends in token
    (but not ``pad_token``, ``eos_token`` and the like). None is no secret.

    Example:
        >>> is_secret("hf_token", "hf_abc"), is_secret("max_tokens", 512), is_secret("API-Key", 1)
        (True, False, True)
    """
    squashed = re.sub("[^a-z0-9]", "", str(name).lower())
    if value is None:
        return False
    return _SECRET.search(squashed) is not None or (isinstance(value, str) and _TOKEN.search(squashed) is not None)
