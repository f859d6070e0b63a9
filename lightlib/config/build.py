"""Build the objects of a configuration; errors of constructors are raised unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_building: ContextVar[bool] = ContextVar("building", default=False)


class Raised(BaseException):
    """Carries an error past jsonargparse, which takes any Exception as a wrong type."""

    def __init__(self, error: Exception, kind: Any, arguments: Mapping[str, Any]) -> None:
        super().__init__(error)
        self.error, self.kind, self.arguments = error, kind, arguments


def construct(class_type: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Build one object: an instantiator for jsonargparse, for any class."""
    if not _building.get():  # a factory, called later
        return class_type(*args, **kwargs)
    token = _building.set(False)
    try:
        return class_type(*args, **kwargs)
    except Exception as error:  # `let_through` raises it again
        raise Raised(error, class_type, kwargs) from error
    finally:
        _building.reset(token)


def is_building() -> bool:
    """Return whether `let_through` is under way, and no constructor."""
    return _building.get()


def let_through(
    build: Callable[[], T], on_error: Callable[[Exception, Any, Mapping[str, Any]], None] | None = None
) -> T:
    """Call `build`; an error that :func:`construct` caught in it is raised unchanged.

    `on_error` is called first with the error, the class to build and its arguments.
    """
    token = _building.set(True)
    try:
        return build()
    except Raised as raised:
        error = raised.error
        if on_error is not None:
            on_error(error, raised.kind, raised.arguments)
    finally:
        _building.reset(token)
    raise error  # outside of the except clause, so that its context stays its own
