"""The table of all results, for the screen and for RESULTS.md."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

import torch

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB, PEERS

__all__ = ["markdown", "text", "versions"]

_HEAD = ("what", "who", "median", "quartiles", "least")
_TARGET_HEAD = ("target", "measured", "at most", "")
_METHOD = """\
`make bench` writes this file. Absolute times move between machines and hours; what may be claimed are ratios within
one run. All frameworks run in turns in one process, on one torch thread of a CPU. A cost per step is a framework's
time less that of the plain loops before and after it, in {rounds} turns of {steps} steps ({fewer} turns of the
realistic run), without the start of a run. With everything off it is the median step; in the realistic run, where
things are done seldom, it is the mean, in processor time. The network is a Linear 32-32, ReLU, Linear 32-2 with SGD
and 16 rows per batch from a DataLoader, which takes a batch's rows at once. With data in memory it is a DataLoader over
a TensorDataset, which takes them one by one.

Realistic is: a loss logged per step, per epoch and in the bar, a progress bar in a terminal, TensorBoard every 50
steps, one torchmetrics Accuracy, clipping by norm, and a schedule that steps with the optimizer. The plain loop
updates the Accuracy, clips and steps the schedule; it neither shows nor logs. A framework without a service of a kind
gets it as its users do it, with tqdm and SummaryWriter. Calls are counted exactly; drawings of the bar, which come by
the clock, are not among them. torch itself imports a second's worth of its compiler when the first optimizer is made:
that is in the seconds to the first step, also of the plain loop.

The strategies train a GPT of 4 blocks of width 64 with two and with four gloo processes. A step written with torch's
functions comes before each step of lightlib's, in the same processes and on the same batch. A ratio is lightlib's step
over the two by hand around it, and that of a round is the median over {large} steps, in {fewer} rounds. Memory is the
largest number of bytes of all tensors of a process within a step, counted exactly; the ratio is that of the process
with the largest.

The bytes of a loss, of activations and of a checkpoint are counted exactly: of all tensors within a simulated step,
and of the file.

A feature that is on is measured in turns with the same run without it: calls of a batch exactly, and the mean time of a
step in processor time. While it is off, it adds no call.

A search runs 40 trials that sleep for a second, two at a time; Hydra's sweeper one at a time. The cost of a trial is
the time from the first to the last, per trial, less its share of the sleep. Each program is started three times, in
turns. Interpreters and a database are given: BENCH_RAY and BENCH_HYDRA (paths), BENCH_POSTGRESQL (a URL). In the
storage a trial is created, claimed, reports three times and ends; workers are processes that begin at once.
"""


def _number(value: float, unit: str) -> str:
    digits = {"calls": 1, "µs": 1, "ms": 2, "s": 3, "MB": 1, "times": 3}.get(unit, 4)
    return f"{value:.{digits}f}{' ' + unit if unit else ''}"


def _cells(row: Row) -> tuple[str, ...]:
    if not row.values:
        return (row.what, row.who, row.note, "", "")
    least, low, high = row.spread
    if len(row.values) == 1:
        return (row.what, row.who, _number(row.median, row.unit), "", "")
    quartiles = f"{_number(low, row.unit).split()[0]} … {_number(high, row.unit).split()[0]}"
    return (row.what, row.who, _number(row.median, row.unit), quartiles, _number(least, row.unit).split()[0])


def _target_cells(target: Target) -> tuple[str, ...]:
    verdict = "met" if target.met else "MISSED"
    return (target.what, _number(target.value, target.unit), _number(target.limit, target.unit), verdict)


def _tables(results: Iterable[Result]) -> list[list[tuple[str, ...]]]:
    known = list(results)
    rows = [_cells(row) for row in known if isinstance(row, Row)]
    targets = [_target_cells(target) for target in known if isinstance(target, Target)]
    return [[head, *body] for head, body in ((_HEAD, rows), (_TARGET_HEAD, targets)) if body]


def text(results: Iterable[Result]) -> str:
    """Return the results as aligned columns."""
    return "\n\n".join("\n".join(_aligned(table)) for table in _tables(results))


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def versions() -> str:
    """Return one line with the versions of Python and all packages measured, and the platform."""
    parts = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    seen = set()
    for peer in (LIGHTLIB, *PEERS):
        if peer.installed and peer.package not in seen:
            seen.add(peer.package)
            parts.append(f"{peer.distribution or peer.package} {peer.version}")
    return " · ".join([*parts, f"{platform.system()} {platform.machine()}"])


def markdown(results: Sequence[Result], size: Size, busy: tuple[str, str]) -> str:
    """Return RESULTS.md; `busy` is the load of the machine before and after."""
    lines = [
        "# What lightlib costs",
        "",
        _METHOD.format(steps=f"{size.steps:,}", rounds=size.rounds, fewer=size.fewer_rounds, large=size.large_steps),
        f"Measured on {datetime.now(timezone.utc):%Y-%m-%d} with {versions()}.",
        f"The load average was {busy[0]} at the start and {busy[1]} at the end, where 1 is this program itself.",
    ]
    for table in reversed(_tables(results)):
        head, *body = table
        lines += ["", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(lines) + "\n"
