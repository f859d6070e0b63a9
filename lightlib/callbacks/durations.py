"""Durations as text: ``"10ep"``, ``"500ba"``, ``"1e9tok"``, ``"2h"``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lightlib.errors import MisconfigurationException, nearest, wrong_type, wrong_value

# Short names are those of MosaicML's Composer, https://docs.mosaicml.com/projects/composer/en/latest/trainer/time.html
_NAMES = {
    "ep": ("epoch", "epochs"),
    "st": ("step", "steps"),
    "ba": ("batch", "batches"),
    "sp": ("sample", "samples"),
    "tok": ("token", "tokens"),
}
_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86400}
_UNITS = {name: unit for unit, names in _NAMES.items() for name in (unit, *names)} | dict.fromkeys(_SECONDS, "s")
_TEXT = re.compile(r"(\d[\d_]*\.?\d*(?:e\+?\d+)?)\s*([a-z]+)", re.IGNORECASE)
FORMS = '"10ep" (epochs), "100st" (optimizer steps), "500ba" (batches), "1e6sp" (samples), "1e9tok" (tokens) or "2h"'
TIMES = '"2h" (or d, min, s), "DD:HH:MM:SS", a datetime.timedelta, or a dict of its arguments'


@dataclass(frozen=True)
class Duration:
    """A length of training.

    Attributes:
        number: How much. Only epochs and seconds may be broken numbers.
        unit: ``"ep"``, ``"st"``, ``"ba"``, ``"sp"``, ``"tok"`` or ``"s"``.

    Example:
        >>> parsed("Trainer", "max_duration", "1e6tok"), parsed("Trainer", "max_duration", "90min")
        ('1000000tok', '5400s')
    """

    number: float
    unit: str

    def __str__(self) -> str:
        return f"{self.number if self.number % 1 else int(self.number)}{self.unit}"

    def __repr__(self) -> str:
        return repr(str(self))


def parsed(owner: object, name: str, text: Any, forms: str = FORMS, example: str = '"1e6tok"') -> Duration:
    """Return the duration that a text names.

    Args:
        owner: The class that has the argument.
        name: The argument.
        text: A number and a unit, with or without a space between them.
        forms: The valid forms, for the error.
        example: A valid value, as it is written in code.

    Raises:
        ArgumentTypeError: It is no text.
        MisconfigurationException: It has another form, an unknown unit, or a number that the unit cannot have.
    """
    if not isinstance(text, str):
        raise wrong_type(owner, name, text, forms, example)
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise wrong_value(owner, name, text, f"a number and a unit: {forms}", example)
    number, word = float(match[1]), match[2].lower()
    if word not in _UNITS:
        raise MisconfigurationException(
            f"{owner}({name}={text!r}) has the unknown unit {word!r}.{nearest(word, _UNITS)}",
            expected=f"{forms}.",
            fix=f"{owner}({name}={example})",
        )
    unit = _UNITS[word]
    number *= _SECONDS.get(word, 1)
    if number >= (timedelta.max.total_seconds() if unit == "s" else math.inf):
        raise wrong_value(owner, name, text, "a finite number, and less than 1e9 days", example)
    if unit == "s":
        return Duration(number, unit)
    if number <= 0 or (unit != "ep" and number != int(number)):
        expected = "a number above 0" if unit == "ep" else f"a whole number of {_NAMES[unit][1]}, of at least 1"
        raise wrong_value(owner, name, text, expected, f'"{max(1, round(number))}{unit}"')
    return Duration(int(number) if number == int(number) else number, unit)


def seconds(owner: object, name: str, value: Any, more: str = "") -> float:
    """Return a time in seconds: a text as ``"2h"`` or ``"DD:HH:MM:SS"``, a timedelta, or a dict of its arguments.

    The parts of ``"DD:HH:MM:SS"`` are added up: 65 seconds are a minute and five. `more` is added to the valid forms.

    Raises:
        ArgumentTypeError: It has another type.
        MisconfigurationException: It has another form, or is negative.

    Example:
        >>> seconds("Timer", "duration", "00:12:00:00"), seconds("Timer", "duration", "12h")
        (43200.0, 43200.0)
    """
    example = '"12h"'
    if not isinstance(value, (str, timedelta, Mapping)):
        raise wrong_type(owner, name, value, TIMES, example)
    try:
        length = _seconds(value)
    except (TypeError, OverflowError):
        length = None
    if length is None or length < 0:
        raise wrong_value(owner, name, value, f"a time that is not negative: {TIMES}{more}", example)
    return length


def _seconds(value: str | timedelta | Mapping[str, Any]) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return timedelta(**value).total_seconds() if value else None
    if match := re.fullmatch(r"(\d+):(\d+):(\d+):(\d+)", value.strip()):
        days, hours, minutes, rest = map(int, match.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=rest).total_seconds()
    match = _TEXT.fullmatch(value.strip())
    word = match[2].lower() if match is not None else ""
    return timedelta(seconds=float(match[1]) * _SECONDS[word]).total_seconds() if match and word in _SECONDS else None
