"""Plan: a table of strategies with their memory, messages and time, and one recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lightlib.callbacks.summary.training_memory import size
from lightlib.simulation.candidates import Candidate
from lightlib.simulation.fit import Counted


@dataclass(frozen=True)
class Speeds:
    """Speeds of the hardware, for an estimate of time; None: not known.

    Attributes:
        flops: Floating-point operations of a device in a second.
        link: Bytes that a device sends in a second within its machine.
        between: Bytes that it sends in a second to other machines. Default: as `link`.
    """

    flops: float | None = None
    link: float | None = None
    between: float | None = None

    def seconds(self, counted: Counted, bubble: float) -> float | None:
        """Return the seconds of a step, without overlap of computing and sending; None if speeds are missing."""
        if self.flops is None or (self.link is None and counted.sent):
            return None
        link = self.link or 1.0
        within = sum(counted.sent.values()) - counted.between
        busy = counted.flops / self.flops + within / link + counted.between / (self.between or link)
        return busy / (1 - bubble)


@dataclass(frozen=True)
class Row:
    """A strategy with a number of samples.

    Attributes:
        candidate: The strategy.
        samples: Of one process in a step.
        counted: Of the process that needs most; None if the strategy was refused.
        source: How it was counted: ``"simulated"``, ``"measured"`` or ``"formula"``.
        refused: The reason of the strategy against this module, batch or number of processes.
        fits: Whether the peak leaves the headroom; None if the memory of a device is not known.
        bubble: The share of a step in which a stage of the pipeline waits.
        seconds: An estimate of the time of a step; None without speeds.
    """

    candidate: Candidate
    samples: int
    counted: Counted | None
    source: str = "simulated"
    refused: str = ""
    fits: bool | None = None
    bubble: float = 0.0
    seconds: float | None = None

    @property
    def global_batch(self) -> int:
        """The samples of all processes in a step."""
        return self.samples * self.candidate.readers

    @property
    def rate(self) -> float | None:
        """Samples of all processes in a second, by the estimate of the time."""
        return self.global_batch / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Plan:
    """A comparison of strategies. ``print(plan)`` shows it as a table.

    Attributes:
        rows: The strategies, in the order in which they are preferred.
        devices, nodes: Processes of each machine, and machines.
        memory: The bytes of a device; None if they are not known.
        headroom: The share of them that a peak must leave.
        recommended: The row to use; None if nothing fits or the memory is not known.
        reason: One sentence for it, or against all.
        largest: The largest number of samples of one process with which the recommended strategy fits.
        change: If nothing fits: the smallest change with which something does, or empty.
        obstacle: Why the step could not be simulated; empty if it could.
        notes: What was not counted.
    """

    rows: Sequence[Row]
    devices: int
    nodes: int
    memory: int | None
    headroom: float
    recommended: Row | None = None
    reason: str = ""
    largest: int | None = None
    change: str = ""
    obstacle: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def yaml(self) -> str:
        """The line of a configuration file that selects the recommended strategy; empty without one."""
        return self.recommended.candidate.yaml if self.recommended is not None else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for programs: bytes, samples and seconds."""
        return {
            "devices": self.devices,
            "nodes": self.nodes,
            "memory": self.memory,
            "headroom": self.headroom,
            "rows": [_plain(row) for row in self.rows],
            "recommended": _plain(self.recommended) if self.recommended is not None else None,
            "reason": self.reason,
            "yaml": self.yaml,
            "largest": self.largest,
            "change": self.change,
            "obstacle": self.obstacle,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [_about(self), "", *_aligned([_HEADS, *map(_cells, self.rows)]), ""]
        lines += [f"{row.candidate.label}: {row.refused}" for row in self.rows if row.refused]
        lines += [f"Not simulated: {self.obstacle}"] * bool(self.obstacle)
        best = self.recommended
        if best is not None and best.counted is not None:
            lines += [
                f"Use {best.candidate.label}: {self.reason}.",
                f"At its peak ({best.counted.where}): {_parts(best.counted)}.",
            ]
            if self.largest is not None:
                more = " or more" * (self.largest >= MOST)
                lines.append(f"The largest batch of one process that fits: {self.largest}{more}.")
            lines += ["", f"  {self.yaml}"]
        else:
            lines += [f"{self.reason}."] * bool(self.reason) + [f"{self.change}."] * bool(self.change)
        return "\n".join([*lines, "", *self.notes])


MOST = 2**16  # samples of one process; larger batches are not simulated
_HEADS = ("strategy", "batch", "peak", "fits", "parameters", "gradients", "optimizer", "activations", "sent", "waits",
          "rate")  # fmt: skip


def _about(plan: Plan) -> str:
    where = f"{plan.devices} device{'s' * (plan.devices > 1)}"
    where += f" on each of {plan.nodes} machines" if plan.nodes > 1 else ""
    if plan.memory is None:
        return f"Memory of each process, {where}; pass the memory of a device to see what fits."
    return f"Memory of each process, {where} with {size(plan.memory)}, of which {plan.headroom:.0%} stay free."


def _cells(row: Row) -> tuple[str, ...]:
    counted, fits = row.counted, {None: "", True: "yes", False: "no"}[row.fits]
    if counted is None:
        return (row.candidate.label, str(row.samples), "refused", *[""] * (len(_HEADS) - 3))
    amounts, sent = counted.amounts, sum(counted.sent.values())
    state_bytes = (amounts.parameters, amounts.gradients, amounts.optimizer_state)
    rest = amounts.activations + amounts.gathered + amounts.buffers
    activations = size(rest) if row.source != "formula" else "?"
    peak = f"{'> ' * (row.source == 'formula')}{size(counted.peak)}{' (measured)' * (row.source == 'measured')}"
    rate = "" if row.rate is None else f"{row.rate:.3g}"
    return (
        row.candidate.label, str(row.samples), peak, fits, *map(size, state_bytes), activations,
        size(sent) if sent else "-", f"{row.bubble:.0%}" if row.bubble else "", rate,
    )  # fmt: skip


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    used = [index for index in range(len(rows[0])) if any(row[index] for row in rows[1:])]
    widths = {index: max(len(row[index]) for row in rows) for index in used}
    return ["  ".join(row[index].ljust(widths[index]) for index in used).rstrip() for row in rows]


def _parts(counted: Counted) -> str:
    named = {name.replace("_", " "): count for name, count in asdict(counted.amounts).items() if count}
    return ", ".join(f"{name} {size(count)}" for name, count in named.items())


def _plain(row: Row) -> dict[str, Any]:
    counted: Mapping[str, Any] = {} if row.counted is None else asdict(row.counted)
    return {
        "strategy": row.candidate.label,
        "yaml": row.candidate.yaml,
        "samples": row.samples,
        "global_batch": row.global_batch,
        "source": row.source,
        "refused": row.refused,
        "fits": row.fits,
        "bubble": row.bubble,
        "seconds": row.seconds,
        **counted,
    }
