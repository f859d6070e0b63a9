"""The check of a number that a callback gets as an argument."""

from __future__ import annotations

from lightlib.errors import ArgumentTypeError, LightlibError, MisconfigurationException


def check_int(owner: str, name: str, value: object, least: int, fix: str = "", meaning: str = "") -> None:
    """Check that `value` is an int of at least `least`.

    Args:
        owner: The class whose argument it is.
        name: The argument.
        value: Its value.
        least: The smallest valid number.
        fix: A valid call. Default: with 1.
        meaning: Added to the valid range.

    Raises:
        ArgumentTypeError: It is no int.
        MisconfigurationException: It is less.

    Example:
        >>> check_int("EarlyStopping", "patience", -1, 0)
        Traceback (most recent call last):
        lightlib.errors.MisconfigurationException: EarlyStopping(patience=-1).
          Expected: an int >= 0.
          Fix: EarlyStopping(patience=1)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= least:
            return
        error: type[LightlibError] = MisconfigurationException
    else:
        error = ArgumentTypeError
    raise error(f"{owner}({name}={value!r}).", expected=f"an int >= {least}{meaning}.", fix=fix or f"{owner}({name}=1)")
