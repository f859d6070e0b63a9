"""Ranges of hyperparameters: ints and floats between two bounds, on a plain or log scale."""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lightlib.errors import MisconfigurationException, shown
from lightlib.experiment.parameters import Number, Parameter, below, distributions, is_number, wrong

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["MOST_POINTS", "Double", "Int", "Log", "LogInt"]

MOST_POINTS = 1_000_000  # of a grid


@dataclass(frozen=True)
class _Range(Parameter):
    """The numbers from `minval` to `maxval`, both included."""

    minval: Number
    maxval: Number
    step: Number | None = field(default=None, kw_only=True)
    count: int | None = field(default=None, kw_only=True)

    def check(self, key: str) -> None:
        for name in ("minval", "maxval"):
            self._check_bound(key, name, getattr(self, name))
        if self.minval > self.maxval:
            raise wrong(key, self, f"minval is {self.minval}, above maxval {self.maxval}", "minval <= maxval")
        if self.step is not None:
            self._check_bound(key, "step", self.step)
            if self.step <= 0:
                raise wrong(key, self, f"step is {self.step}", "a step > 0")
        count = self.count
        if count is not None and (not _is_int(count) or not 1 <= count <= MOST_POINTS):
            raise wrong(key, self, f"count is {shown(count)}", f"an int from 1 to {MOST_POINTS:,}")

    def _check_bound(self, key: str, name: str, bound: object) -> None:
        if not is_number(bound) or not math.isfinite(bound):
            raise wrong(key, self, f"{name} is {shown(bound)}", "a finite number")

    def draw(self, generator: random.Random) -> Number:
        if self.step is not None:
            return self._tick(below(generator, self._last_tick() + 1))
        share = generator.random()
        return min(max(self.minval * (1 - share) + self.maxval * share, self.minval), self.maxval)

    def axis(self, key: str) -> list[Number]:
        if self.step is not None:
            last = self._last_tick()
            count = last + 1 if self.count is None else min(self.count, last + 1)
            if count > MOST_POINTS:
                raise _too_many(key, self, count)
            return [self._tick(_round(tick)) for tick in _evenly(0, last, count)]
        if self.count is None:
            raise MisconfigurationException(
                f"The grid needs a count for hyperparameter {key!r} of type {self.kind}, which has none.",
                expected="count, the number of points, for int, double, log and log_int (or step).",
                fix=f"{key}: {{type: {self.kind}, minval: {self.minval}, maxval: {self.maxval}, count: 3}}",
            )
        return [float(number) for number in _evenly(self.minval, self.maxval, self.count)]

    def number(self, value: object) -> Number | None:
        if not is_number(value) or not math.isfinite(value):
            return None
        number = self._inverse(value)
        if self.step is not None:
            number = self._tick(round((number - self.minval) / self.step))
        number = min(max(number, self.minval), self.maxval)
        return number if math.isclose(self.value(number), value, rel_tol=1e-12) else None

    def _inverse(self, value: Number) -> Number:
        """Return the number of a value, which may be out of range."""
        return value

    def _last_tick(self) -> int:
        assert self.step is not None
        return int((Fraction(str(self.maxval)) - Fraction(str(self.minval))) / Fraction(str(self.step)))

    def _tick(self, tick: int) -> Number:
        return float(Fraction(str(self.minval)) + tick * Fraction(str(self.step)))

    def distribution(self) -> BaseDistribution:
        high = self.maxval if self.step is None else self._tick(self._last_tick())
        return distributions().FloatDistribution(self.minval, high, step=self.step)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Double(_Range):
    """A float between two bounds.

    Args:
        minval: The smallest value.
        maxval: The largest value.
        step: Distance of the possible values, from `minval` on. Default: any value.
        count: Number of points in a grid, evenly spaced; 1 is the midpoint. Default: all possible values if `step`
            is given; otherwise a grid is an error.

    Example:
        >>> Double(0.1, 0.5, count=3).axis("dropout")
        [0.1, 0.3, 0.5]
    """

    kind = "double"
    example = "{type: double, minval: 0.0, maxval: 0.5}"

    def value(self, number: Number) -> Any:
        return float(number)


@dataclass(frozen=True)
class Int(_Range):
    """An int between two bounds. The arguments are those of `Double`; a grid has each int once.

    Example:
        >>> Int(0, 2, count=100).axis("layers")
        [0, 1, 2]
    """

    kind = "int"
    example = "{type: int, minval: 1, maxval: 8}"

    def __post_init__(self) -> None:
        for name in ("minval", "maxval", "step"):
            bound = getattr(self, name)
            if isinstance(bound, float) and bound.is_integer():
                object.__setattr__(self, name, int(bound))

    def _check_bound(self, key: str, name: str, bound: object) -> None:
        if not _is_int(bound):
            raise wrong(key, self, f"{name} is {shown(bound)}", "an int")

    def draw(self, generator: random.Random) -> Number:
        return self._tick(below(generator, self._last_tick() + 1))

    def axis(self, key: str) -> list[Number]:
        if self.step is not None or self.count is None:
            return super().axis(key)
        count = min(self.count, self._last_tick() + 1)
        return [_round(number) for number in _evenly(self.minval, self.maxval, count)]

    def _last_tick(self) -> int:
        return (int(self.maxval) - int(self.minval)) // int(self.step or 1)

    def _tick(self, tick: int) -> Number:
        return int(self.minval) + tick * int(self.step or 1)

    def contains(self, value: int) -> bool:
        """Return whether the hyperparameter can have a value."""
        return self.minval <= value <= self.maxval and (value - self.minval) % (self.step or 1) == 0

    def value(self, number: Number) -> Any:
        return int(number)

    def _inverse(self, value: Number) -> Number:
        return round(value)

    def distribution(self) -> BaseDistribution:
        high, step = self._tick(self._last_tick()), self.step or 1
        return distributions().IntDistribution(self.minval, high, step=step)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Power(_Range):
    """A base to the power of an exponent from `minval` to `maxval`."""

    base: Number = field(default=10, kw_only=True)

    def check(self, key: str) -> None:
        super().check(key)
        if not is_number(self.base) or not 0 < self.base < math.inf or self.base == 1:
            raise wrong(key, self, f"base is {shown(self.base)}", "a finite base > 0 that is not 1")
        for exponent in (self.minval, self.maxval):
            power = self._power(exponent)
            if not self._smallest() <= power < math.inf:
                problem = f"{self.base} ** {exponent} is {power}"
                raise wrong(key, self, problem, "exponents in minval and maxval, not the values themselves")

    @abstractmethod
    def _smallest(self) -> float:
        """Return the smallest power that is allowed."""

    def _inverse(self, value: Number) -> Number:
        if value <= 0:
            return self.minval
        return math.log10(value) if self.base == 10 else math.log(value) / math.log(self.base)

    def _power(self, exponent: Number) -> float:
        try:
            return float(float(self.base) ** exponent)
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class Log(_Power):
    """A float ``base ** u``, where the exponent u is uniform between two bounds. Its number is u.

    Args:
        minval: The smallest exponent.
        maxval: The largest exponent.
        base: The base. Default: 10.
        step: As in `Double`, of the exponent.
        count: As in `Double`, with evenly spaced exponents.

    Example:
        >>> rate = Log(-5, -3, count=3)
        >>> [rate.value(number) for number in rate.axis("lr")]
        [1e-05, 0.0001, 0.001]
    """

    kind = "log"
    example = "{type: log, minval: -5, maxval: -1, base: 10}"

    def _smallest(self) -> float:
        return math.ulp(0.0)

    def value(self, number: Number) -> Any:
        return self._power(number)


@dataclass(frozen=True)
class LogInt(_Power):
    """An int: ``base ** u``, rounded. The arguments are those of `Log`; a grid has each int once.

    Example:
        >>> size = LogInt(4, 6, base=2, step=1)
        >>> [size.value(number) for number in size.axis("batch_size")]
        [16, 32, 64]
    """

    kind = "log_int"
    example = "{type: log_int, minval: 4, maxval: 8, base: 2}"

    def _smallest(self) -> float:
        return 0.5

    def axis(self, key: str) -> list[Number]:
        by_value = {self.value(number): number for number in reversed(super().axis(key))}
        return list(reversed(by_value.values()))

    def value(self, number: Number) -> Any:
        return _round(Fraction(self._power(number)))


def _evenly(first: Number, last: Number, count: int) -> list[Fraction]:
    """Return evenly spaced points, exact for the decimals that the user wrote; one point is the midpoint."""
    low, high = Fraction(str(first)), Fraction(str(last))
    points = [low + (high - low) * k / (count - 1) for k in range(count)] if count > 1 else [(low + high) / 2]
    return list(dict.fromkeys(points))


def _round(number: Fraction) -> int:
    """Return the nearest int; of two, the one farther from 0."""
    rounded = (2 * abs(number) + 1) // 2
    return rounded if number > 0 else -rounded


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _too_many(key: str, parameter: Parameter, count: int) -> MisconfigurationException:
    return MisconfigurationException(
        f"The grid of hyperparameter {key!r} of type {parameter.kind} has {count:,} points.",
        expected=f"at most {MOST_POINTS:,} points.",
        fix="set a count, a larger step, or use the searcher random.",
    )
