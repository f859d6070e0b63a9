"""Owner: the object that a user configures, a Trainer or a Fabric, in the words of errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


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
