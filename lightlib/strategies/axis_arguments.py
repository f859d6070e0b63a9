"""Turn arguments of MeshStrategy (sizes, booleans, axes) into axes."""

from __future__ import annotations

from typing import Any, TypeVar

from lightlib.errors import ArgumentTypeError, shown
from lightlib.strategies.axes.axis import Axis

A = TypeVar("A", bound=Axis)


def axis_of(name: str, given: Any, kind: type[A]) -> A:
    """Return the axis for a size, or the axis that was given."""
    if isinstance(given, Axis) and not isinstance(given, kind):
        raise ArgumentTypeError(
            f"MeshStrategy({name}={type(given).__name__}(…)).",
            expected=f"a size, or a lightlib.strategies.{kind.__name__}.",
            fix=f"MeshStrategy({name}={kind.__name__}({given.size}))",
        )
    made: Any = given if isinstance(given, kind) else kind(given)  # type: ignore[call-arg]
    return made  # type: ignore[no-any-return]


def transform_of(given: bool | A, kind: type[A]) -> tuple[A, ...]:
    """Return the transform that was given, or one with defaults for True."""
    if isinstance(given, bool):
        return (kind(),) if given else ()
    if isinstance(given, kind):
        return (given,)
    raise ArgumentTypeError(
        f"A strategy got {shown(given)} for {kind.__name__}.",
        expected=f"True or a {kind.__name__}, or False for none.",
        fix=f"{kind.__name__}(blocks=['blocks.*'])",
    )


def checked(given: A) -> A:
    """Return an axis unchanged; refuse anything else."""
    if isinstance(given, Axis):
        return given
    raise ArgumentTypeError(
        f"MeshStrategy got {given!r} ({type(given).__name__}) as an axis.",
        expected="a lightlib.strategies.Axis.",
        fix="MeshStrategy(extra_axes=[MyAxis(2)])",
    )
