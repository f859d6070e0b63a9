"""Case: one comparison of a part, with its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.gpu.device import Device

Figures = dict[str, Any]
PRECISIONS = ("64-true", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true")


class DiffersError(Exception):
    """The numbers of a case are not those of its reference."""


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        row, column: Its place in the table of results.
        devices: How many it needs.
        ranks: How many processes it is started in; a case may start further ones itself.
    """

    row: str
    column: str = ""
    devices: int = 1
    ranks: int = 1

    @property
    def name(self) -> str:
        return f"{self.row}/{self.column}" if self.column else self.row


@dataclass
class Outcome:
    """The result of a case.

    Attributes:
        state: "passed", "failed", "needs devices" or "not reached".
        figures: Its numbers, by name.
        seconds: Its duration.
        problem: The reason for another state than "passed".
        output: The last lines that its processes printed, if it failed.
        date: The day.
    """

    state: str
    figures: Figures = field(default_factory=dict)
    seconds: float = 0.0
    problem: str = ""
    output: list[str] = field(default_factory=list)
    date: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Part:
    """A subject of `make gpu`.

    Attributes:
        about: Its subject, in a line.
        cases: Returns its cases for these devices and precisions.
        run: Runs the case of this name, on each of its ranks; raises if the numbers differ.
        packages: Packages that it imports and lightlib's own fits do not.
        prepare: Called in each process before its first case; its cases follow.
    """

    about: str
    cases: Callable[[Device, Sequence[str]], list[Case]]
    run: Callable[[str, Device], Figures]
    packages: tuple[str, ...] = ()
    prepare: Callable[[Sequence[str], Device], None] | None = None
