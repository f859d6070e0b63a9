"""Leaves: the hyperparameters in the nested mapping of a file, by dotted key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown
from lightlib.experiment.kinds import parameter
from lightlib.experiment.parameters import Const, Parameter


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Begin an error with the file and line of its cause."""
    try:
        yield
    except MisconfigurationException as error:
        if where:
            error.args = (f"{where}: {error.args[0]}", *error.args[1:])
        raise


def leaves(tree: Mapping[Any, Any], above: str, where: Callable[[str], str]) -> Iterator[tuple[str, Parameter]]:
    """Yield the hyperparameters of a nested mapping by dotted key, in its order.

    Args:
        tree: As in a file.
        above: The key of the mapping with a dot behind it; empty at the top.
        where: Returns file and line of a dotted key, for errors.

    Raises:
        MisconfigurationException: A key or a value is wrong.
    """
    for name, value in tree.items():
        if not isinstance(name, str) or not all(name.split(".")):
            group = f" in {above.removesuffix('.')!r}" if above else ""
            raise ArgumentTypeError(
                f"A key of the hyperparameters{group} is {shown(name)}.",
                expected="names, or names joined by dots.",
                fix="write a name; in YAML put quotes around numbers and around on, off, yes, no.",
            )
        key = f"{above}{name}"
        if isinstance(value, Parameter):
            value.check(key)
            yield key, value
        elif not isinstance(value, Mapping) or not value:
            yield key, Const(value)
        elif "type" in value and not isinstance(value["type"], (Mapping, Parameter)):
            with placed(where(key)):
                leaf = parameter(key, value)
            yield key, leaf
        elif "when" in value:
            raise MisconfigurationException(
                f"{key!r} has `when` but no type: it groups {', '.join(map(repr, value))}.",
                expected="`when` within a hyperparameter, next to its type.",
                fix=f"move `when` into each hyperparameter below {key!r}.",
            )
        else:
            yield from leaves(value, f"{key}.", where)


def check_new(key: str, found: Mapping[str, Parameter]) -> None:
    """Raise a MisconfigurationException if a key, or one above or below it, was found before."""
    for other in found:
        if other == key:
            problem = f"Hyperparameter {key!r} is given twice, as a dotted and as a nested key."
        elif key.startswith(f"{other}.") or other.startswith(f"{key}."):
            outer, inner = sorted((key, other), key=len)
            problem = f"Hyperparameter {outer!r} has a value, but {inner!r} is given too."
        else:
            continue
        raise MisconfigurationException(problem, expected="each key once.", fix="remove one of the two.")
