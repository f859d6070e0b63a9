"""The errors of conformance checks, in three parts."""

from __future__ import annotations

from lightlib.errors import LightlibError

__all__ = ["failure"]


def failure(kind: str, check: str, what: str, expected: str, fix: str) -> AssertionError:
    """Return the error of a failed check.

    Args:
        kind: The kind of plugin, such as ``"logger"``.
        check: The name of the check.
        what: The difference, with the value received.
        expected: The requirement.
        fix: How to meet it.

    Example:
        >>> print(failure("logger", "members", "Mine.name is 3.", "str or None.", "return a str."))
        The logger fails the check 'members': Mine.name is 3.
          Expected: str or None.
          Fix: return a str.
    """
    text = f"The {kind} fails the check {check!r}: {what}"
    return AssertionError(str(LightlibError(text, expected=expected, fix=fix)))
