"""Checks of single values: each returns the value in its final form, or raises with file and line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lightlib.errors import closest
from lightlib.experiment.file.place import Place

Check = Callable[[Any, Place], Any]


def integer(minimum: int, maximum: int | None = None) -> Check:
    """Return the check of an int in a range, the ends included."""
    limits = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def check(value: Any, place: Place) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
            top = math.inf if maximum is None else maximum
            near = min(max(value, minimum), top) if type(value) is int else minimum
            place.wrong(value, f"an int, {limits}.", place.line(near))
        return value

    return check


def number(*, above: float, example: float) -> Check:
    """Return the check of a finite number greater than `above`; it stays an int or a float."""

    def check(value: Any, place: Place) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or value <= above:
            place.wrong(value, f"a number greater than {above:g}.", place.line(example))
        return float(value) if isinstance(value, float) else int(value)

    return check


def flag(value: Any, place: Place) -> bool:
    """Check a bool."""
    if type(value) is not bool:
        place.wrong(value, "true or false.", place.line(True))
    return bool(value)


def text(example: str) -> Check:
    """Return the check of a text that is not empty."""

    def check(value: Any, place: Place) -> str:
        if not isinstance(value, str) or not value.strip():
            fix = place.line(str(value)) if type(value) in (int, float) else place.line(example)
            place.wrong(value, "text; a number needs quotes.", fix)
        return value

    return check


def folder_name(value: Any, place: Place) -> str:
    """Check a text that is the name of a folder of the experiment."""
    name: str = text("mnist")(value, place)
    if name.strip(".") == "" or any(character in "/\\" or ord(character) < 32 for character in name):
        fixed = (
            "".join("-" if character in "/\\" or ord(character) < 32 else character for character in name).strip(".")
            or "mnist"
        )
        place.wrong(value, "a name without slashes and control characters: a folder gets it.", place.line(fixed))
    return name


def choice(*names: str, renamed: Mapping[str, str] | None = None) -> Check:
    """Return the check of one of several names; `renamed` has accepted spellings, which warn."""
    allowed, accepted = names, dict(renamed or {})

    def check(value: Any, place: Place) -> str:
        if isinstance(value, str) and value in accepted:
            return accepted[value]
        if not isinstance(value, str) or value not in allowed:
            near = closest(str(value), allowed)
            place.wrong(value, f"one of {', '.join(allowed)}.", place.line(near or allowed[0]))
        return value

    return check


def several(one: Check, example: Any) -> Check:
    """Return the check of a list by the check of its items; it becomes a tuple."""

    def check(value: Any, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            plain = type(value) in (str, int, float) and type(value) is type(example)
            place.wrong(value, "a list.", place.line([value if plain else example]))
        return tuple(one(item, place.below(index)) for index, item in enumerate(value))

    return check


def mapping(value: Any, place: Place) -> dict[str, Any]:
    """Check a mapping of names to any values."""
    if not isinstance(value, Mapping):
        place.wrong(value, "a mapping: lines of `key: value`.", place.line({}))
    for name in value:
        if not isinstance(name, str):
            place.below(name).refuse(
                f"is read as {name!r}, which is no name.",
                "a name; YAML reads yes, no, on, off, null and numbers as values.",
                f"put it in quotes: {str(name)!r}.",
            )
    return dict(value)
