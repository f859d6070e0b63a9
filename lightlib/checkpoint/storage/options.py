"""Options of stores: the keys and addresses with which fsspec opens the files below an address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["StorageOptions", "options_of", "remember"]

_known: dict[str, dict[str, Any]] = {}  # by address


def remember(address: str, options: Mapping[str, Any]) -> None:
    """Open everything at and below an address with these options from now on, in this process.

    Example:
        >>> remember("s3://bucket/runs", {"anon": True})
        >>> options_of("s3://bucket/runs/last.ckpt"), options_of("s3://bucket/runs-2/last.ckpt")
        ({'anon': True}, {})
    """
    if options:
        _known[address.rstrip("/")] = dict(options)
    else:
        _known.pop(address.rstrip("/"), None)


def options_of(address: str) -> dict[str, Any]:
    """Return the options for an address: those of the nearest one above it."""
    fitting = [prefix for prefix in _known if address == prefix or address.startswith(f"{prefix}/")]
    return dict(_known[max(fitting, key=len)]) if fitting else {}


@dataclass(frozen=True)
class StorageOptions:
    """Options of an address, which a process that gets a copy of them remembers too. They are not printed.

    Attributes:
        address: The address.
        options: The options, which may be secrets.
    """

    address: str
    options: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        remember(self.address, self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return StorageOptions, (self.address, dict(self.options))
