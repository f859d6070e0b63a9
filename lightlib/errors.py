"""Errors of lightlib: each states the problem, the expectation and the fix.

LightlibError
├── MisconfigurationException (also ValueError)    an invalid request
│   ├── ArgumentTypeError (also TypeError)         an argument of the wrong type
│   ├── UnknownNameError                           an unknown name; the nearest known one is suggested
│   ├── CheckpointError                            a checkpoint that is missing, damaged or of another kind
│   └── LoggingError                               `self.log` in a place or with arguments that have no meaning
└── CheckpointWriteError (also OSError)            a checkpoint could not be written; earlier ones are as they were
SIGTERMException (SystemExit)                      the process got SIGTERM; exit code 143
StopTraining (Exception)                           no error: a hook raises it to end the fit early
InvalidHP (Exception)                              code of a trial raises it: its hyperparameters do not fit together
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

__all__ = [
    "FOLDERS",
    "PACKAGES",
    "ArgumentTypeError",
    "CheckpointError",
    "CheckpointWriteError",
    "InvalidHP",
    "LightlibError",
    "LoggingError",
    "MisconfigurationException",
    "Owner",
    "SIGTERMException",
    "StopTraining",
    "UnknownNameError",
    "check_flag",
    "check_int",
    "check_number",
    "check_type",
    "check_word",
    "closest",
    "is_ours",
    "nearest",
    "owned_by",
    "owner",
    "shown",
    "wrong_type",
    "wrong_value",
]

T = TypeVar("T")

# The packages of this distribution: their code is no user's.
PACKAGES = ("lightlib", "lightlib_lightning")
FOLDERS = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), package, "") for package in PACKAGES
)


def is_ours(module: str) -> bool:
    """Whether a module, or the module at the start of a path of names, is of this distribution.

    Example:
        >>> is_ours("lightlib.core.trainer"), is_ours("lightlib_project.model")
        (True, False)
    """
    return module.partition(".")[0] in PACKAGES


class LightlibError(Exception):
    r"""Base of all errors raised by lightlib.

    Args:
        what: What happened, with the value that was received. Default: nothing, for your own code alone.
        expected: What would have been right.
        fix: What to write or do instead.

    Example:
        >>> str(LightlibError("max_epochs is 'ten'.", expected="an int >= -1.", fix="Trainer(max_epochs=10)"))
        "max_epochs is 'ten'.\n  Expected: an int >= -1.\n  Fix: Trainer(max_epochs=10)"
    """

    def __init__(self, what: str = "", *, expected: str = "", fix: str = "") -> None:
        parts = [what]
        if expected:
            parts.append(f"  Expected: {expected}")
        if fix:
            parts.append(f"  Fix: {fix}")
        super().__init__("\n".join(parts))


class MisconfigurationException(LightlibError, ValueError):
    """An invalid request or configuration."""


class ArgumentTypeError(MisconfigurationException, TypeError):
    """An argument has the wrong type."""


class UnknownNameError(MisconfigurationException):
    """A string names nothing that is known.

    Args:
        kind: Of what it should be the name.
        name: What was given.
        known: The names that there are.
        fix: What to write instead.
        meant: The name that is probably meant, empty for none. Default: the nearest one.
    """

    def __init__(
        self, kind: str, name: object, known: Iterable[str], *, fix: str = "", meant: str | None = None
    ) -> None:
        names = sorted(known)
        super().__init__(
            f"Unknown {kind} {name!r}.{nearest(str(name), names) if meant is None else _hint(meant)}",
            expected=f"one of {', '.join(map(repr, names))}.",
            fix=fix or "use one of these names, or pass an instance.",
        )


class CheckpointError(MisconfigurationException, RuntimeError):
    """A checkpoint is missing, damaged, of another kind, or does not fit; a RuntimeError as in torch and Lightning."""


class CheckpointWriteError(LightlibError, OSError):
    """A checkpoint could not be written; nothing that existed before was touched."""


class LoggingError(MisconfigurationException):
    """`self.log` was called in a place or with arguments that have no meaning."""


class SIGTERMException(SystemExit):
    """The process received SIGTERM and ends after a clean tear-down, with exit code 143 (128 + 15)."""

    def __init__(self, code: int = 143) -> None:
        super().__init__(code)


class StopTraining(Exception):
    """Raised from a hook of a callback or module, it ends the fit early, like `trainer.should_stop = True`.

    The rest of the hook is skipped; the other callbacks, the accumulation window and the validation that is due are
    completed, and the hooks at the end of the epoch and of training run. The status is "finished", and
    `trainer.stop_reason` is the reason. As with `should_stop`, `min_epochs` and `min_steps` are completed first.

    With one process the steps may raise it as well: the batch then has no loss.

    Args:
        reason: Why, printed at the end. Default: empty.

    Example:
        >>> str(StopTraining("the loss is below 0.01"))
        'the loss is below 0.01'
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidHP(Exception):
    """Raised by the code of a trial: its hyperparameters do not fit together.

    It may be raised where the model is built, and in training and validation. The trial ends with the state
    ``"invalid"``, and another one takes its place: it does not count in `max_trials`. The points of a grid are not
    replaced. Outside of an experiment it is an error like any other.

    Args:
        reason: Why, printed by `lightlib experiment run`. Default: empty.

    Example:
        >>> str(InvalidHP("heads does not divide width"))
        'heads does not divide width'
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def shown(value: object) -> str:
    """Return how a value of the wrong kind is written in an error: on one line, with its type; a class as a class.

    Example:
        >>> shown("ten"), shown(int)
        ("'ten' (str)", 'the class int')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = " ".join(repr(value).split())
    if text.startswith("<") and " at 0x" in text:  # object's own repr shows no more than the type
        return f"an object of type {type(value).__name__}"
    return f"{text[:80]} ({type(value).__name__})"


def wrong_type(
    owner: object, name: str, value: object, expected: str, example: object = "", *, fix: str = ""
) -> ArgumentTypeError:
    """Return the error for an argument of the wrong type.

    Args:
        owner: The class or function that has the argument.
        name: The argument.
        value: Its value.
        expected: The valid types, without the period.
        example: A valid value, as it is written in code.
        fix: What to write instead. Default: the owner, called with the example.

    Example:
        >>> print(wrong_type("Text", "text", 5, "a string", "'five'"))
        Text(text=5 (int)).
          Expected: a string.
          Fix: Text(text='five')
    """
    fix = fix or f"{owner}({name}={example})"
    return ArgumentTypeError(f"{owner}({name}={shown(value)}).", expected=f"{expected}.", fix=fix)


def wrong_value(
    owner: object, name: str, value: object, expected: str, example: object = "", *, fix: str = ""
) -> MisconfigurationException:
    """Return the error for an argument of the right type with an invalid value; for the arguments see `wrong_type`."""
    problem = f"{owner}({name}={' '.join(repr(value).split())[:80]})."
    return MisconfigurationException(problem, expected=f"{expected}.", fix=fix or f"{owner}({name}={example})")


def check_type(
    owner: object, name: str, value: T, types: Any, expected: str, example: object = "", *, fix: str = ""
) -> T:
    """Return an argument that is an instance of `types`: a type, a union or a tuple of types.

    Raises:
        ArgumentTypeError: It is not.

    Example:
        >>> check_type("Logger", "prefix", "run", str | None, "a string, or None", "'run'")
        'run'
    """
    if not isinstance(value, types):
        raise wrong_type(owner, name, value, expected, example, fix=fix)
    return value


def check_flag(owner: object, name: str, value: T, example: object = True, *, fix: str = "") -> T:
    """Return an argument that is True or False.

    Raises:
        ArgumentTypeError: It is not.

    Example:
        >>> check_flag("LearningRateMonitor", "largest_group", False)
        False
    """
    if not isinstance(value, bool):
        raise wrong_type(owner, name, value, "True or False", example, fix=fix)
    return value


def check_int(
    owner: object, name: str, value: T, least: int, *, meaning: str = "", example: object = None, fix: str = ""
) -> T:
    """Return an argument that is an int of at least `least`; a bool is none.

    Args:
        owner: The class or function that has the argument.
        name: The argument.
        value: Its value.
        least: The smallest valid number.
        meaning: Added to the valid range in the error.
        example: A valid value, as it is written in code. Default: the smallest one above 0.
        fix: What to write instead. Default: the owner, called with the example.

    Raises:
        ArgumentTypeError: It is no int.
        MisconfigurationException: It is less.

    Example:
        >>> check_int("EarlyStopping", "patience", 3, 0)
        3
    """
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if is_int and cast("int", value) >= least:
        return value
    example = max(least, 1) if example is None else example
    raise (wrong_value if is_int else wrong_type)(owner, name, value, f"an int >= {least}{meaning}", example, fix=fix)


def check_number(
    owner: object, name: str, value: T, *, least: float | None = None, above: float | None = None,
    most: float | None = None, below: float | None = None, meaning: str = "", example: object = 1, fix: str = "",
) -> T:  # fmt: skip
    """Return an argument that is an int or a float within bounds; a bool is none, and NaN is within none.

    Args and errors are those of `check_int`; `above` and `below` exclude the bound, and ``below=math.inf`` infinity.

    Example:
        >>> check_number("AdamW", "momentum", 0.9, least=0, below=1)
        0.9
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    number = cast("float", value)
    fits = is_number and (least is None or number >= least) and (above is None or number > above)
    if fits and (most is None or number <= most) and (below is None or number < below):
        return value
    bounds = ((">=", least), (">", above), ("<=", most), ("<", below))
    limits = " and ".join(f"{sign} {bound}" for sign, bound in bounds if bound not in (None, math.inf))
    expected = f"a {'finite ' if below == math.inf else ''}number {limits}{meaning}"
    raise (wrong_value if is_number else wrong_type)(owner, name, value, expected, example, fix=fix)


def check_word(owner: object, name: str, value: T, known: Iterable[str], *, example: str = "", fix: str = "") -> T:
    """Return an argument that is one of several words; the example of the fix is the first one by default.

    Raises:
        ArgumentTypeError: It is no string.
        UnknownNameError: It is none of them; the error suggests the nearest one.

    Example:
        >>> check_word("get_scheduler", "decay", "cosine", ("linear", "cosine"))
        'cosine'
    """
    words = tuple(known)
    fix = fix or f"{owner}({name}={example or words[0]!r})"
    if not isinstance(value, str):
        raise wrong_type(owner, name, value, f"one of {', '.join(map(repr, words))}", fix=fix)
    if value not in words:
        raise UnknownNameError(f"{name} of {owner}", value, words, fix=fix)
    return value


def closest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the known name that is most like `name`, or `otherwise` when none is near."""
    known = list(known)
    same = [candidate for candidate in known if candidate.casefold() == name.casefold()]
    return next(iter(same or difflib.get_close_matches(name, known, n=1)), otherwise)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known name, or an empty string when none is near."""
    return _hint(closest(name, known))


def few(names: Sequence[str], most: int = 3) -> str:
    """Return names for a message: the first ones, quoted, and the number of the rest.

    Example:
        >>> few(["a", "b", "c", "d", "e"])
        "'a', 'b', 'c' and 2 more"
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _hint(meant: str) -> str:
    return f" Did you mean {meant!r}?" if meant else ""


@dataclass(frozen=True)
class Owner:
    """The words of errors in code that the Trainer shares with other objects; as a string it is the name.

    Attributes:
        name: Of the class.
        noun: The object within a sentence.
        logger: The argument for loggers.
        loaders: The start of the call with arguments about loaders.
        backward: The call that computes gradients.
    """

    name: str
    noun: str
    logger: str
    loaders: str
    backward: str

    def __str__(self) -> str:
        return self.name


TRAINER = Owner(
    name="Trainer",
    noun="the Trainer",
    logger="logger",
    loaders="Trainer(",
    backward="self.manual_backward(loss)",
)
_present: ContextVar[Owner] = ContextVar("owner", default=TRAINER)


def owner() -> Owner:
    """Return the owner that errors name now.

    Example:
        >>> f"{owner()}(devices=2)"
        'Trainer(devices=2)'
    """
    return _present.get()


@contextmanager
def owned_by(present: Owner) -> Iterator[None]:
    """Let the errors that are raised in a block name this owner."""
    token = _present.set(present)
    try:
        yield
    finally:
        _present.reset(token)
