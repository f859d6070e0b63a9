"""Proportions: the order in which several sources take turns, exact in each prefix."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction

LARGEST_PERIOD = 10_000


class Proportions:
    """Turns of sources in proportion to their weights, for any position.

    Among the first n positions each source has n times its share, to within one: R. Tijdeman, "The chairman assignment
    problem", Discrete Mathematics 32 (1980). The order repeats after a period, the common denominator of the shares. If
    that is above 10,000, the shares are rounded to multiples of 1/10,000.

    Args:
        weights: Of the sources, above 0, in any unit.

    Example:
        >>> turns = Proportions([0.75, 0.25])
        >>> [turns.at(position) for position in range(5)]  # the source, and the number of its turn
        [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3)]
        >>> turns.count(1, 1000), turns.position(1, 250)
        (250, 1002)
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._counts = _counts(weights)
        self._period = sum(self._counts)
        self._sources, self._turns = array("q", _assigned(self._counts)), array("q")
        self._positions = [array("q") for _ in weights]
        for position, source in enumerate(self._sources):
            self._turns.append(len(self._positions[source]))
            self._positions[source].append(position)

    @property
    def shares(self) -> list[float]:
        """The share of each source; together they are 1."""
        return [count / self._period for count in self._counts]

    def at(self, position: int) -> tuple[int, int]:
        """Return the source that has a position, and the number of its turn, from 0 on."""
        periods, within = divmod(position, self._period)
        source = self._sources[within]
        return source, periods * self._counts[source] + self._turns[within]

    def count(self, source: int, positions: int) -> int:
        """Return how many of the first positions a source has."""
        periods, within = divmod(positions, self._period)
        return periods * self._counts[source] + bisect_left(self._positions[source], within)

    def position(self, source: int, turn: int) -> int:
        """Return the position of a source's turn."""
        periods, within = divmod(turn, self._counts[source])
        return periods * self._period + self._positions[source][within]


def _counts(weights: Sequence[float]) -> list[int]:
    """Return how many positions of a period each source has."""
    near = [Fraction(weight).limit_denominator(LARGEST_PERIOD) for weight in weights]  # 7/10 for the float 0.7
    pairs = zip(near, map(Fraction, weights), strict=True)
    exact = [short if abs(short - weight) <= weight / 10**12 else weight for short, weight in pairs]
    shares = [weight / sum(exact) for weight in exact]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= LARGEST_PERIOD:
        return [int(share * period) for share in shares]
    counts = [max(1, int(share * LARGEST_PERIOD)) for share in shares]
    while (missing := LARGEST_PERIOD - sum(counts)) != 0:  # below 0 if some were rounded up to 1
        behind = [share * LARGEST_PERIOD - count for share, count in zip(shares, counts, strict=True)]
        chosen = behind.index(max(behind)) if missing > 0 else counts.index(max(counts))
        counts[chosen] += 1 if missing > 0 else -1
    return counts


def _assigned(counts: list[int]) -> list[int]:
    """Return the source of each position of a period.

    A source may have a position once it is behind its share by 1/(2k - 2), for k sources. Of those that may, the one
    gets it that would first be behind by more than 1 - 1/(2k - 2).
    """
    period, parts = sum(counts), max(1, 2 * len(counts) - 2)
    behind, order = [0] * len(counts), []  # in units of 1/period
    for _ in range(period):
        behind = [backlog + count for backlog, count in zip(behind, counts, strict=True)]
        chosen = min(
            (source for source, backlog in enumerate(behind) if backlog * parts >= period),
            key=lambda source: (period * (parts - 1) - parts * behind[source]) / counts[source],
        )
        behind[chosen] -= period
        order.append(chosen)
    return order
