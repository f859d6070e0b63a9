"""Members of Lightning's classes that lightlib lacks, and the advice to users of such code."""

from __future__ import annotations

import functools
import json
from importlib import resources

__all__ = ["NOT_LIGHTNINGS", "OF_A_PACKAGE", "lacking", "listed"]

# The fix for users who cannot change the code.
OF_A_PACKAGE = (
    "if the code is in an installed package, run this program with Lightning: leave compat off "
    "(`lightlib compat check` lists such places)."
)
# Members of the stand-ins for Lightning's private classes that Lightning's do not have: no message offers them.
NOT_LIGHTNINGS = frozenset({"of", "data", "_note", "_warn_of_no_effect", "_fn", "_key", "_noted"})


@functools.cache
def lacking(kind: str) -> frozenset[str]:
    """Return the members of a class of Lightning's that lightlib's class lacks: no code of lightlib uses them.

    Example:
        >>> lacking("EarlyStopping")
        frozenset({'_log_info'})
    """
    return frozenset(listed().get(kind, "").split())


@functools.cache
def listed() -> dict[str, str]:
    """Return the record that `scripts/lightning_members.py` writes: the members of each class."""
    table: dict[str, str] = json.loads(resources.files(__package__).joinpath("members_2_6.json").read_text("utf-8"))
    return table
