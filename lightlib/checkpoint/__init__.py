"""Checkpoints: write, read, inspect, verify and convert them, from Python and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.checkpoint.storage.label import Label
    from lightlib.checkpoint.storage.mapping import storage_url
    from lightlib.checkpoint.tools.inspection import Inspection, inspect
    from lightlib.checkpoint.tools.publish import publish
    from lightlib.checkpoint.tools.verbs import Verified, consolidate, convert, export, load, verify

__all__ = [
    "Inspection",
    "Label",
    "Verified",
    "consolidate",
    "convert",
    "export",
    "inspect",
    "load",
    "publish",
    "storage_url",
    "verify",
]

_get, _names = lazy.attributes(
    __name__,
    {
        "Inspection": "tools.inspection",
        "Label": "storage.label",
        "Verified": "tools.verbs",
        "consolidate": "tools.verbs",
        "convert": "tools.verbs",
        "export": "tools.verbs",
        "inspect": "tools.inspection",
        "load": "tools.verbs",
        "publish": "tools.publish",
        "storage_url": "storage.mapping",
        "verify": "tools.verbs",
    },
)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
