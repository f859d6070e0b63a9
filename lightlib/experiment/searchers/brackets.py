"""Brackets: how a search divides its trials, and the lengths at which it compares them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightlib.errors import MisconfigurationException, check_int, check_number, check_word

__all__ = [
    "Bracket",
    "Mode",
    "bracket_of_rungs",
    "brackets",
    "brackets_of",
    "rung_lengths",
    "split_concurrency",
    "split_trials",
]

Mode = Literal["aggressive", "standard", "conservative"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Bracket:
    """Trials that are compared with each other at the same lengths.

    Attributes:
        lengths: The length of each rung, in total since the start of a trial, in the unit of the search.
        trials: The number of trials.
        concurrent: The most trials that train at the same time.
    """

    lengths: tuple[int, ...]
    trials: int
    concurrent: int


def brackets(
    max_trials: int,
    max_length: int,
    *,
    mode: Mode = "standard",
    divisor: float = 4,
    max_rungs: int = 5,
    bracket_rungs: Sequence[int] = (),
    max_concurrent_trials: int = 16,
) -> list[Bracket]:
    """Return the brackets of the searcher `adaptive_asha`, those with the most rungs first.

    Args:
        max_trials: The number of trials in all brackets.
        max_length: The length of a full trial, in the unit of the search (batches, epochs or records).
        mode: ``"aggressive"`` has one bracket, which stops trials earliest; ``"standard"`` adds brackets down to half
            of its rungs, ``"conservative"`` down to one rung.
        divisor: About one of so many trials trains on after each rung; greater than 1.
        max_rungs: The most rungs of a bracket. It has fewer where trials or length do not suffice for them.
        bracket_rungs: The rungs of each bracket, instead of `mode` and `max_rungs`. Default: empty, chosen by these.
        max_concurrent_trials: The most trials that train at the same time, in all brackets; 0 lets each bracket
            train as many as the last one has trials.

    Raises:
        MisconfigurationException: A number is out of range, or there are more brackets than trials.
        UnknownNameError: The mode is none of these.

    Example:
        >>> for bracket in brackets(16, 16):
        ...     print(bracket.trials, bracket.concurrent, bracket.lengths)
        12 8 (1, 4, 16)
        4 8 (4, 16)
    """
    _check_count("max_trials", max_trials, 1)
    _check_count("max_length", max_length, 1)
    check_number("searcher", "divisor", divisor, above=1, below=math.inf, fix="divisor: 4")
    _check_count("max_rungs", max_rungs, 1)
    _check_count("max_concurrent_trials", max_concurrent_trials, 0)
    check_word("searcher", "mode", mode, MODES, fix="mode: standard")
    for rungs in bracket_rungs:
        _check_count("bracket_rungs", rungs, 1)
    if len(bracket_rungs) > max_trials:
        raise MisconfigurationException(
            f"bracket_rungs has {len(bracket_rungs)} brackets, but max_trials is {max_trials}.",
            expected="at least one trial for each bracket.",
            fix=f"set max_trials to {len(bracket_rungs)} or more, or remove brackets.",
        )
    if bracket_rungs:
        each = sorted(bracket_rungs, reverse=True)
    else:
        most = min(max_rungs, _powers(max_length, divisor), _powers(max_trials, divisor))
        least = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
        each = list(range(most, least - 1, -1))[:max_trials]
    trials = split_trials(max_trials, divisor, each)
    concurrent = split_concurrency(max_concurrent_trials, divisor, trials)
    return [
        Bracket(rung_lengths(rungs, divisor, max_length), *counts)
        for rungs, *counts in zip(each, trials, concurrent, strict=True)
    ]


def bracket_of_rungs(
    num_rungs: int, max_trials: int, max_length: int, *, divisor: float = 4, max_concurrent_trials: int = 16
) -> Bracket:
    """Return the only bracket of the searcher `async_halving`.

    Args:
        num_rungs: The number of its rungs.
        max_trials: As in `brackets`.
        max_length: As in `brackets`.
        divisor: As in `brackets`.
        max_concurrent_trials: The most trials that train at the same time; 0 is as many as one needs to reach
            the top.

    Raises:
        MisconfigurationException: A number is out of range.

    Example:
        >>> bracket_of_rungs(3, 12, 9000, divisor=3)
        Bracket(lengths=(1000, 3000, 9000), trials=12, concurrent=16)
    """
    _check_count("num_rungs", num_rungs, 1)
    _check_count("max_trials", max_trials, 1)
    _check_count("max_length", max_length, 1)
    check_number("searcher", "divisor", divisor, above=1, below=math.inf, fix="divisor: 4")
    _check_count("max_concurrent_trials", max_concurrent_trials, 0)
    concurrent = max_concurrent_trials or max(min(int(divisor ** (num_rungs - 1)), max_trials), 1)
    return Bracket(rung_lengths(num_rungs, divisor, max_length), max_trials, concurrent)


def brackets_of(
    name: str, max_trials: int, max_length: int, *, num_rungs: int | None = None, divisor: float = 4,
    max_concurrent_trials: int = 16, **adaptive: Any,
) -> list[Bracket]:  # fmt: skip
    """Return the brackets of a searcher: one for those that have `num_rungs`, else those of `brackets`.

    Args:
        name: The searcher.
        max_trials: As in `brackets`.
        max_length: As in `brackets`.
        num_rungs: The rungs of the only bracket of ``"async_halving"`` and ``"halving"``.
        divisor: As in `brackets`.
        max_concurrent_trials: As in `brackets`.
        adaptive: The other arguments of `brackets`.

    Example:
        >>> brackets_of("halving", 12, 9000, num_rungs=3, divisor=3, mode="standard")
        [Bracket(lengths=(1000, 3000, 9000), trials=12, concurrent=16)]
    """
    shared: dict[str, Any] = {"divisor": divisor, "max_concurrent_trials": max_concurrent_trials}
    if name in ("async_halving", "halving") and num_rungs is not None:
        return [bracket_of_rungs(num_rungs, max_trials, max_length, **shared)]
    return brackets(max_trials, max_length, **shared, **adaptive)


def rung_lengths(rungs: int, divisor: float, max_length: int) -> tuple[int, ...]:
    """Return the length of each rung, the shortest first; the last is `max_length`.

    Example:
        >>> rung_lengths(4, 2, 10)
        (1, 2, 5, 10)
    """
    return tuple(max(int(max_length / divisor**above), 1) for above in reversed(range(rungs)))


def split_trials(max_trials: int, divisor: float, rungs: Sequence[int]) -> list[int]:
    """Return the trials of each bracket, so that all brackets train about the same total.

    Args:
        max_trials: The trials of all brackets.
        divisor: As in `brackets`.
        rungs: The rungs of each bracket, the most first; no more brackets than trials.

    Example:
        >>> split_trials(100, 4, [4, 3, 2])
        [70, 22, 8]
    """
    weights = [divisor ** (each - 1) / each for each in rungs]
    trials = [max(int(weight / sum(weights) * max_trials), 1) for weight in weights]
    left = max_trials - sum(trials)
    for bracket in range(len(trials)):  # the minimum of one trial each may have given out too many
        before, trials[bracket] = trials[bracket], max(trials[bracket] + left, 1)
        left -= trials[bracket] - before
    return trials


def split_concurrency(max_concurrent_trials: int, divisor: float, trials: Sequence[int]) -> list[int]:
    """Return the most trials that each bracket trains at the same time: at least one.

    Args:
        max_concurrent_trials: For all brackets, shared evenly; 0 is no limit for all.
        divisor: As in `brackets`.
        trials: The trials of each bracket.

    Example:
        >>> split_concurrency(11, 3, [9, 3, 1])
        [4, 4, 3]
    """
    if max_concurrent_trials == 0:
        return [max(trials[-1], int(divisor))] * len(trials)
    each, rest = divmod(max(max_concurrent_trials, len(trials)), len(trials))
    return [each + (bracket < rest) for bracket in range(len(trials))]


def _powers(total: int, divisor: float) -> int:
    """Return the number of powers of the divisor, from the power of 0 on, that are at most `total`."""
    count, power = 0, 1.0
    while power <= total:
        count, power = count + 1, power * divisor
    return count


def _check_count(name: str, value: object, least: int) -> None:
    fix = f"{name}: {'[3, 2]' if name == 'bracket_rungs' else max(least, 16)}"
    check_int("searcher", name, value, least, fix=fix)
