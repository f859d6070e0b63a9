"""Lengths in batches, records or epochs, and sizes of memory such as ``1.5G``."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from lightlib.experiment.file import checks
from lightlib.experiment.file.checks import Check
from lightlib.experiment.file.place import Place

UNITS = ("batches", "records", "epochs")
_SIZE = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+) ?((?P<unit>[kmgtp])(i?b)?|b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


class Length(NamedTuple):
    """A length of training.

    Attributes:
        unit: ``"batches"``, ``"records"``, ``"epochs"``, or ``"units"``: the steps that a program reports.
        amount: How many, at least 1.
    """

    unit: str
    amount: int

    def plain(self) -> Any:
        """Return it as it is written: ``{"batches": 937}``, or the int of ``"units"``."""
        return self.amount if self.unit == "units" else {self.unit: self.amount}


def length(value: Any, place: Place) -> Length:
    """Check a length: a mapping of one unit to an int, or an int, which is in units of the program.

    Example:
        >>> length({"batches": 937}, Place("searcher.max_length", {}))
        Length(unit='batches', amount=937)
    """
    if type(value) is int:
        return Length("units", checks.integer(1)(value, place))
    unit, amount = _unit_and_amount(value, place)
    return Length(unit, checks.integer(1)(amount, place.below(unit)))


def period(value: Any, place: Place) -> Length | None:
    """Check a period: as a length, but with a unit; None for 0, which means at the end only."""
    unit, amount = _unit_and_amount(value, place)
    amount_found = checks.integer(0)(amount, place.below(unit))
    return Length(unit, amount_found) if amount_found else None


def _unit_and_amount(value: Any, place: Place) -> tuple[str, Any]:
    expected = "a mapping of one unit, batches, records or epochs, to an int."
    if not isinstance(value, dict) or not value:
        place.wrong(value, expected, place.line({"batches": value if type(value) is int else 100}))
    if len(value) > 1:
        units = ", ".join(map(str, value))
        place.refuse(f"has {len(value)} units: {units}.", expected, place.line(dict([next(iter(value.items()))])))
    ((unit, amount),) = value.items()
    if unit not in UNITS:
        place.below(unit).unknown(amount, UNITS, of=f"{place.name}, a length")
    return unit, amount


def memory(minimum: int = 1) -> Check:
    """Return the check of a size of memory in bytes: an int, or text such as ``"128M"`` and ``"1.5G"``.

    Units are powers of 1024, as for Docker: 1K is 1024 bytes.

    Example:
        >>> memory()("1.5G", Place("resources.shm_size", {}))
        1610612736
    """

    def check(value: Any, place: Place) -> int:
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        size = value if type(value) is int else -1
        if match:
            size = math.floor(float(match["number"]) * 1024 ** _POWERS[(match["unit"] or "").lower()])
        if size < minimum:
            place.wrong(value, "a number of bytes, or one with a unit: 128M, 1.5G.", place.line("4G"))
        return size

    return check
