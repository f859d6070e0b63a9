"""Preview of a search: its brackets, the trials of each length, and the units trained; runs nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.experiment.searchers.brackets import Bracket, Mode, bracket_of_rungs, brackets_of
from lightlib.experiment.searchers.simulate import simulate

__all__ = ["Preview", "preview"]

WITHOUT_RUNGS = ("single", "random", "grid", "tpe", "gp", "cmaes", "qmc", "nsga2", "nsga3")
WITH_RUNGS = ("adaptive_asha", "async_halving", "halving")
SIMULATIONS = 5


@dataclass(frozen=True)
class Preview:
    """The plan of a search.

    Attributes:
        name: The searcher.
        unit: The unit of the lengths.
        brackets: The brackets; one with a single rung for a searcher that stops no trial.
        trials_per_length: The number of trials that train to each length and no further, if one of `divisor` trials
            continues after each rung.
        units: The units that these trials train.
        units_simulated: The mean of five simulations in which the metric of each trial is random and constant. It
            exceeds `units`, mostly, because the first trials in a rung have few to be compared with; the searcher
            `halving` compares all at once, so it trains just `units`.
        units_without_stopping: The units that as many full trials would train.
        slot_hours: Hours of one slot for `units_simulated`; None if the speed is unknown.
    """

    name: str
    unit: str
    brackets: tuple[Bracket, ...]
    trials_per_length: dict[int, int]
    units: int
    units_simulated: int
    units_without_stopping: int
    slot_hours: float | None = None

    @property
    def trials(self) -> int:
        """The number of all trials."""
        return sum(bracket.trials for bracket in self.brackets)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain dicts and lists."""
        return {
            "searcher": self.name,
            "unit": self.unit,
            "trials": self.trials,
            "brackets": [
                {"trials": each.trials, "concurrent": each.concurrent, "lengths": list(each.lengths)}
                for each in self.brackets
            ],
            "trials_per_length": [{"length": length, "trials": n} for length, n in self.trials_per_length.items()],
            "units": self.units,
            "units_simulated": self.units_simulated,
            "units_without_stopping": self.units_without_stopping,
            "slot_hours": self.slot_hours,
        }

    def as_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def as_text(self) -> str:
        """Return the plan as tables of plain text."""
        count = f"{self.trials:,} {_plural('trial', self.trials)}"
        lines = [f"{self.name}: {count} in {len(self.brackets)} {_plural('bracket', len(self.brackets))}", ""]
        rows = [
            (f"{number}", f"{each.trials:,}", f"{each.concurrent:,}", "  ".join(f"{n:,}" for n in each.lengths))
            for number, each in enumerate(self.brackets, 1)
        ]
        lines += [*_table(("bracket", "trials", "concurrent", f"rungs ({self.unit})"), rows), ""]
        lengths = [(f"{length:,}", f"{n:,}") for length, n in self.trials_per_length.items()]
        lines += [*_table((f"trained ({self.unit})", "trials"), lengths), ""]
        share = self.units_simulated / self.units_without_stopping
        totals = [
            ("planned", f"{self.units:,}", self.unit),
            ("simulated", f"{self.units_simulated:,}", f"{self.unit}, {share:.0%} of full trials"),
            ("full trials", f"{self.units_without_stopping:,}", self.unit),
        ]
        if self.slot_hours is not None:
            totals.append(("time", f"{self.slot_hours:,.1f}", "slot-hours"))
        width = max(len(number) for _, number, _ in totals)
        lines += [f"{label:<11}  {number:>{width}} {unit}" for label, number, unit in totals]
        return "\n".join(lines)


def preview(
    name: str,
    *,
    max_length: int,
    unit: str = "batches",
    max_trials: int | None = None,
    mode: Mode = "standard",
    divisor: float = 4,
    max_rungs: int = 5,
    bracket_rungs: Sequence[int] = (),
    num_rungs: int | None = None,
    stop_once: bool = True,
    stopping: bool = False,
    max_concurrent_trials: int = 16,
    seconds_per_unit: float | None = None,
    slots_per_trial: int = 1,
) -> Preview:
    """Return the plan of a search. Takes milliseconds, also for hundreds of trials.

    Args:
        name: The searcher, for example ``"adaptive_asha"`` or ``"random"``.
        max_length: The length of a full trial, in `unit`.
        unit: ``"batches"`` (default), ``"epochs"``, ``"records"``, or any time metric.
        max_trials: The number of trials; for the searcher `grid`, its number of points; for `single`, one.
        mode: As in `brackets`.
        divisor: As in `brackets`.
        max_rungs: As in `brackets`.
        bracket_rungs: As in `brackets`.
        num_rungs: The rungs of the only bracket, for the searchers `async_halving` and `halving`. Default: `max_rungs`
            and the other arguments choose brackets.
        stop_once: As in `simulate`.
        stopping: Whether a searcher without rungs, such as ``"tpe"``, stops trials in brackets.
        max_concurrent_trials: As in `brackets`.
        seconds_per_unit: The time that one trial takes for one unit. Default: unknown.
        slots_per_trial: The slots that a trial occupies.

    Raises:
        MisconfigurationException: `max_trials` or `num_rungs` is missing, or a number is out of range.
        UnknownNameError: The searcher is unknown.

    Example:
        >>> print(preview("adaptive_asha", max_trials=16, max_length=16, unit="epochs").as_text())
        adaptive_asha: 16 trials in 2 brackets
        <BLANKLINE>
        bracket  trials  concurrent  rungs (epochs)
              1      12           8        1  4  16
              2       4           8           4  16
        <BLANKLINE>
        trained (epochs)  trials
                       1       9
                       4       5
                      16       2
        <BLANKLINE>
        planned       61 epochs
        simulated    102 epochs, 40% of full trials
        full trials  256 epochs
    """
    if name not in (*WITH_RUNGS, *WITHOUT_RUNGS):
        fix = "searcher: {name: adaptive_asha, ...}"
        raise UnknownNameError("searcher", name, [*WITH_RUNGS, *WITHOUT_RUNGS], fix=fix)
    trials = 1 if name == "single" else _required(name, "max_trials", max_trials)
    c = max_concurrent_trials
    if name in WITHOUT_RUNGS and not stopping:
        plan = [bracket_of_rungs(1, trials, max_length, divisor=divisor, max_concurrent_trials=c or trials)]
    else:
        if name == "async_halving":
            _required(name, "num_rungs", num_rungs)
        plan = brackets_of(
            name,
            trials,
            max_length,
            num_rungs=num_rungs,
            mode=mode,
            divisor=divisor,
            max_rungs=max_rungs,
            bracket_rungs=bracket_rungs,
            max_concurrent_trials=c,
        )
    per_length = _trials_per_length(plan, divisor)
    units = sum(length * count for length, count in per_length.items())
    simulated = units if name == "halving" else _simulated(plan, divisor, stop_once)
    hours = None if seconds_per_unit is None else simulated * seconds_per_unit * slots_per_trial / 3600
    full = max_length * sum(bracket.trials for bracket in plan)
    return Preview(name, unit, tuple(plan), per_length, units, simulated, full, hours)


def _trials_per_length(plan: Sequence[Bracket], divisor: float) -> dict[int, int]:
    counts: dict[int, int] = {}
    for bracket in plan:
        left = bracket.trials
        for length in bracket.lengths[:-1]:
            continuing = max(int(left / divisor), 1)
            counts[length] = counts.get(length, 0) + left - continuing
            left = continuing
        counts[bracket.lengths[-1]] = counts.get(bracket.lengths[-1], 0) + left
    return dict(sorted(counts.items()))


def _simulated(plan: Sequence[Bracket], divisor: float, stop_once: bool) -> int:
    if all(len(bracket.lengths) == 1 for bracket in plan):
        return sum(bracket.lengths[0] * bracket.trials for bracket in plan)
    total = 0
    for seed in range(SIMULATIONS):
        generator = random.Random(seed)  # noqa: S311  # no secret
        values = [generator.random() for _ in range(sum(bracket.trials for bracket in plan))]
        total += simulate(plan, lambda trial, _: values[trial], divisor=divisor, stop_once=stop_once).units  # noqa: B023  # called at once
    return round(total / SIMULATIONS)


def _required(searcher: str, name: str, value: int | None) -> int:
    if value is None:
        raise MisconfigurationException(
            f"The searcher {searcher} has no {name}.",
            expected=f"{name}, an int >= 1.",
            fix=f"searcher: {{name: {searcher}, {name}: {3 if name == 'num_rungs' else 16}, ...}}",
        )
    return value


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
