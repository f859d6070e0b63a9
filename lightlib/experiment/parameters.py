"""Parameter: one hyperparameter; constants and categories. Ranges are in ranges.py."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from lightlib import optional
from lightlib.errors import MisconfigurationException, shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["Categorical", "Const", "Number", "Parameter", "below", "distributions", "is_number", "same", "wrong"]

Number = int | float


@dataclass(frozen=True)
class Parameter(ABC):
    """One hyperparameter. A search works on its number; `value` turns that into the value a trial gets.

    Args:
        when: Values of other hyperparameters, by dotted key, under which this one exists. Default: none, it always
            exists.
    """

    kind: ClassVar[str]
    example: ClassVar[str]
    when: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def plain(self) -> dict[str, Any]:
        """Return it as a file has it.

        Example:
            >>> Categorical(["sgd", "adam"]).plain()
            {'type': 'categorical', 'vals': ['sgd', 'adam']}
        """
        values = ((declared, getattr(self, declared.name)) for declared in fields(self))
        return {
            "type": self.kind,
            **{declared.name: value for declared, value in values if not declared.kw_only or value},
        }

    @abstractmethod
    def check(self, key: str) -> None:
        """Raise a MisconfigurationException that names `key` if this is not a valid hyperparameter."""

    @abstractmethod
    def draw(self, generator: random.Random) -> Number:
        """Return a random number; uses only `generator.random`, which is the same on all versions of Python."""

    @abstractmethod
    def axis(self, key: str) -> list[Number]:
        """Return the numbers of a grid, in order.

        Raises:
            MisconfigurationException: It is a range without `count` or `step`; names `key`.
        """

    @abstractmethod
    def value(self, number: Number) -> Any:
        """Return the value that a number stands for."""

    @abstractmethod
    def number(self, value: object) -> Number | None:
        """Return the number that stands for a value, up to rounding; None if this cannot have the value."""

    @abstractmethod
    def distribution(self) -> BaseDistribution:
        """Return Optuna's distribution of the number.

        Raises:
            MisconfigurationException: Optuna is not installed.
        """


@dataclass(frozen=True)
class Categorical(Parameter):
    """One of several values of any type. Its number is the index into `vals`.

    Args:
        vals: The values.

    Example:
        >>> Categorical(["sgd", "adam"]).value(1)
        'adam'
    """

    kind = "categorical"
    example = "{type: categorical, vals: [16, 32, 64]}"
    vals: Sequence[Any]

    def check(self, key: str) -> None:
        if not isinstance(self.vals, (list, tuple)) or not self.vals:
            got = "empty" if isinstance(self.vals, (list, tuple)) else shown(self.vals)
            raise wrong(key, self, f"vals is {got}", "a list with at least one value")

    def draw(self, generator: random.Random) -> Number:
        return below(generator, len(self.vals))

    def axis(self, key: str) -> list[Number]:
        return list(range(len(self.vals)))

    def value(self, number: Number) -> Any:
        if not 0 <= number < len(self.vals):
            raise MisconfigurationException(
                f"The index {number} of a categorical hyperparameter is out of range; its values are "
                f"{', '.join(map(repr, self.vals))}.",
                expected=f"an index from 0 to {len(self.vals) - 1}.",
                fix="create a new experiment if the file has changed.",
            )
        return copy.deepcopy(self.vals[int(number)])

    def number(self, value: object) -> Number | None:
        return next((index for index, candidate in enumerate(self.vals) if same(candidate, value)), None)

    def distribution(self) -> BaseDistribution:
        return distributions().CategoricalDistribution(range(len(self.vals)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Const(Parameter):
    """A value that is the same in all trials.

    Args:
        val: The value, of any type.

    Example:
        >>> Const({"layers": [8, 4]}).value(0)
        {'layers': [8, 4]}
    """

    kind = "const"
    example = "{type: const, val: 0.9}"
    val: Any

    def check(self, key: str) -> None:
        pass

    def draw(self, generator: random.Random) -> Number:
        return 0

    def axis(self, key: str) -> list[Number]:
        return [0]

    def value(self, number: Number) -> Any:
        return copy.deepcopy(self.val)

    def number(self, value: object) -> Number | None:
        return 0 if same(self.val, value) else None

    def distribution(self) -> BaseDistribution:
        return distributions().CategoricalDistribution([0])  # type: ignore[no-any-return]


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is an int or a float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same(one: object, other: object) -> bool:
    """Return whether two values are equal; True is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def below(generator: random.Random, end: int) -> int:
    """Return a random int from 0 to `end` - 1."""
    return min(int(generator.random() * end), end - 1)


def wrong(key: str, given: Parameter, problem: str, expected: str) -> MisconfigurationException:
    """Return an error that names the hyperparameter and its problem, and shows a right one of its type."""
    return MisconfigurationException(
        f"Hyperparameter {key!r} of type {given.kind}: {problem}.",
        expected=f"{expected}.",
        fix=f"for example {key}: {given.example}",
    )


def distributions() -> ModuleType:
    """Return the module of Optuna's distributions.

    Raises:
        MisconfigurationException: Optuna is not installed.
    """
    module: ModuleType = optional.load("optuna.distributions", "This search")
    return module
