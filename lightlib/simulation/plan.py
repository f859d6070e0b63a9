"""plan: compares strategies for a module by simulating two steps of each."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from lightlib import report
from lightlib.accelerators.cpu import CPUAccelerator
from lightlib.callbacks.summary.training_memory import size
from lightlib.core.module.module import Module
from lightlib.core.probe import unseen
from lightlib.errors import LightlibError, MisconfigurationException, check_int, wrong_type, wrong_value
from lightlib.launch.environment.environment import Environment
from lightlib.precision.precision import Precision
from lightlib.simulation.candidates import FAMILIES, Candidate, candidates
from lightlib.simulation.fake import samples_of
from lightlib.simulation.fit import Counted, SimulationError, measure, simulate
from lightlib.simulation.formula import by_formula
from lightlib.simulation.mailbox import Mailbox, NotSentError
from lightlib.simulation.table import MOST, Plan, Row, Speeds
from lightlib.simulation.world import line_of
from lightlib.strategies.advice import state_of
from lightlib.strategies.pipeline.schedule import kind_of, micro_batches
from lightlib.strategies.single import SingleDeviceStrategy

__all__ = ["plan"]

_TRIES = 8  # simulations to find the largest batch; memory grows along a line, so three or four suffice
_NOT_COMPARED = "Counted with torch's kernels for the CPU; not compared with a GPU, whose allocator rounds up."
_RECURRENT = "Recurrent layers are counted with torch's generic kernel; other kernels keep more for backward."


def plan(
    module: Module,
    batch: Any,
    *,
    devices: int = 1,
    nodes: int = 1,
    memory: int | None = None,
    strategies: Sequence[str] = FAMILIES,
    batch_sizes: Sequence[int] = (),
    precision: str | int | Precision = "32-true",
    headroom: float = 0.1,
    flops: float | None = None,
    link: float | None = None,
    between: float | None = None,
    measured: bool = False,
) -> Plan:
    """Compare strategies for training a module: memory, messages and fit, without devices and without memory.

    Two steps of `training_step`, backward and the optimizers run with tensors that have shapes but no values, on one
    process of each strategy (of a pipeline, on one of each stage). No model is allocated, no process started, no port
    opened, no file written.

    Args:
        module: Stays as it is; it may be on the meta device, or build its layers in `configure_model`.
        batch: As the loader returns it to one process; only shapes and dtypes matter.
        devices: Devices of each machine.
        nodes: Machines. Default 1.
        memory: The bytes of one device. Default: not known, and nothing is recommended.
        strategies: Some of ``"ddp"``, ``"zero1"``, ``"fsdp"``, ``"hsdp"``, ``"tensor"`` and ``"pipeline"``, which are
            combined with FSDP and with activation checkpointing where that makes sense. Default: all.
        batch_sizes: Numbers of samples of one process to compare. Default: that of `batch`.
        precision: As for the Trainer.
        headroom: The share of the memory that stays free. Default 0.1.
        flops: Floating-point operations that a device does in a second; with it, and `link`, time is estimated.
        link: Bytes that a device sends in a second within its machine.
        between: Bytes that a device sends in a second to other machines. Default: as `link`.
        measured: If the step cannot be simulated, run it with values on one device (the CPU), on a copy.

    Raises:
        ArgumentTypeError, MisconfigurationException: An argument is invalid, the module has no `training_step`, or this
            process belongs to a process group.

    Example:
        >>> from lightlib.testing import BoringModule
        >>> module = BoringModule()
        >>> batch = next(iter(module.train_dataloader()))
        >>> found = plan(module, batch, devices=2, memory=10**6, strategies=["ddp", "fsdp"])
        >>> found.recommended.candidate.label, found.recommended.samples
        ('ddp', 24)
        >>> found.yaml
        'trainer: {strategy: ddp}'
    """
    _check(module, devices, nodes, memory, batch_sizes, headroom)
    chosen_precision = precision if isinstance(precision, Precision) else Precision.named(precision)
    speeds = Speeds(*_positive(flops=flops, link=link, between=between))
    task = _Task(module, batch, devices, nodes, memory, headroom, chosen_precision, speeds)
    sizes = list(batch_sizes) or [samples_of(batch) or 1]
    with _quiet(), unseen():
        rows, obstacle = task.rows(candidates(devices, nodes, strategies), sizes, measured)
        table = Plan(rows, devices, nodes, memory, headroom, obstacle=obstacle, notes=_notes(module))
        return table if memory is None else _concluded(task, table)


@dataclass(frozen=True)
class _Task:
    """The common part of all simulations of a plan."""

    module: Module
    batch: Any
    devices: int
    nodes: int
    memory: int | None
    headroom: float
    precision: Precision
    speeds: Speeds

    @property
    def limit(self) -> float:
        """The bytes that a peak may have."""
        return math.inf if self.memory is None else self.memory * (1 - self.headroom)

    @cached_property
    def state_bytes(self) -> tuple[int, int, int | None]:
        """The bytes of parameters, gradients and optimizer state without sharding."""
        return state_of(self.module, self.precision.param_dtype)

    def rows(self, given: Sequence[Candidate], sizes: Sequence[int], measured: bool) -> tuple[list[Row], str]:
        """Return a row for each strategy and size; if the step cannot be simulated at all, why, and rows without."""
        rows, obstacle = list[Row](), ""
        for candidate, samples in ((candidate, samples) for candidate in given for samples in sizes):
            try:
                rows.append(self.row(candidate, samples))
            except SimulationError as error:
                obstacle = obstacle or str(error)
                rows.append(_refused(candidate, samples, error))
        if not obstacle or any(row.counted is not None and row.source == "simulated" for row in rows):
            return rows, ""
        rows = [by_formula(self.state_bytes, candidate, sizes[0]) for candidate in given]
        if measured:
            rows = [self._measured(sizes[0]), *rows]
        return [self._judged(row) for row in rows], obstacle

    def tried(self, one: Candidate, samples: int) -> Row:
        """Return the row of another number of samples, which the step may refuse."""
        try:
            return self.row(one, samples)
        except SimulationError as error:
            return _refused(one, samples, error)

    def row(self, one: Candidate, samples: int) -> Row:
        """Return the row of a strategy: of the process that needs most, or by formula if that alone does not fit."""
        least = by_formula(self.state_bytes, one, samples)
        if least.counted is not None and least.counted.peak > self.limit:
            return self._judged(least)
        try:
            counted = self.counted(one, samples)
        except SimulationError:
            raise
        except LightlibError as error:
            return _refused(one, samples, error)
        except Exception as error:  # torch's, of a layer that this strategy cannot have; or of the step itself
            if one.ranks == (0,) and one.readers == self.devices * self.nodes:
                raise _failed(error) from error
            return Row(one, samples, None, refused=f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}")
        bubble = 0.0
        if one.stages > 1:
            number = micro_batches(kind_of("1f1b"), samples, None, one.stages, one.stages, True)
            bubble = (one.stages - 1) / (number + one.stages - 1)
        return self._judged(Row(one, samples, counted, bubble=bubble))

    def counted(self, one: Candidate, samples: int) -> Counted:
        """Return the needs of the process that needs most."""
        mailbox, waiting, counts = Mailbox(), list(one.ranks), list[Counted]()
        while waiting:
            rank = waiting.pop(0)
            try:
                counts.append(
                    simulate(
                        self.module, self.batch, one.make(), self.devices, self.nodes, self.precision,
                        rank=rank, samples=samples, foreach=True, mailbox=mailbox,
                    )
                )  # fmt: skip
            except NotSentError:
                waiting.append(rank)
        return max(counts, key=lambda counted: counted.peak)

    def _judged(self, row: Row) -> Row:
        if row.counted is None:
            return row
        fits = None if self.memory is None else row.counted.peak <= self.limit
        if row.source == "formula" and fits:
            fits = None  # activations come on top
        return replace(row, fits=fits, seconds=self.speeds.seconds(row.counted, row.bubble))

    def _measured(self, samples: int) -> Row:
        strategy, module = SingleDeviceStrategy(), copy.deepcopy(self.module)
        strategy.use(CPUAccelerator(), [torch.device("cpu")], self.precision, Environment())
        strategy.setup_environment()
        candidate = Candidate("single_device", "single_device", SingleDeviceStrategy)
        return Row(candidate, samples, measure(module, copy.deepcopy(self.batch), strategy), source="measured")


def _concluded(task: _Task, table: Plan) -> Plan:
    """Return the plan with a recommendation, or with the smallest change that makes something fit."""
    fitting = [row for row in table.rows if row.fits and row.source != "formula"]
    if fitting:
        best = max(fitting, key=lambda row: row.rate or 0.0) if all(row.rate for row in fitting) else fitting[0]
        assert best.counted is not None, "it fits"
        before = [row for row in table.rows if row.fits is False]
        reason = f"it needs {size(best.counted.peak)} of the {size(task.limit)} that a device has for it"
        if best.seconds is not None:
            reason += ", and is the fastest by the given speeds"
        elif before and table.rows.index(before[0]) < table.rows.index(best) and before[0].counted is not None:
            reason += f", and {before[0].candidate.label} would need {size(before[0].counted.peak)}"
        else:
            reason += ", and is the simplest that fits"
        largest = _largest(task, best) if best.source == "simulated" else None
        return replace(table, recommended=best, reason=reason, largest=largest)
    if table.obstacle:
        return replace(table, reason="The step was not simulated, so nothing is recommended")
    refused = [row for row in table.rows if row.fits is False]
    if not refused:
        return replace(table, reason="Every strategy refuses this module or batch")
    counted = [row for row in refused if row.source != "formula"]
    least = min(counted or refused, key=lambda row: row.counted.peak if row.counted is not None else 0)
    assert least.counted is not None, "it does not fit"
    needs = f"needs least, {'' if counted else 'more than '}{size(least.counted.peak)}"
    reason = f"Nothing fits: {least.candidate.label} {needs}, and a device has {size(task.limit)} for it"
    return replace(table, reason=reason, change=_change(task, least))


def _largest(task: _Task, row: Row) -> int:
    """Return the largest number of samples that fits, from the line through two simulated peaks."""
    assert row.counted is not None, "it fits"
    below: tuple[int, float] = row.samples, row.counted.peak  # samples and peak that fit
    above = MOST + 1
    slope, other = 0.0, row.samples * 2
    for _ in range(_TRIES):
        tried = task.tried(row.candidate, other)
        peak = math.inf if tried.counted is None else tried.counted.peak
        if math.isfinite(peak):
            slope = (peak - below[1]) / (other - below[0])
        if tried.fits:
            below = other, peak
        else:
            above = other
        if above - below[0] == 1:
            break
        guess = below[0] + math.floor((task.limit - below[1]) / slope) if slope > 0 else below[0] * 16
        other = min(max(guess, below[0] + 1), above - 1)
    return below[0]


def _change(task: _Task, least: Row) -> str:
    """Return the smallest change with which the strategy fits: fewer samples, half precision, or more devices."""
    samples = least.samples // 2
    while samples:
        if task.tried(least.candidate, samples).fits:
            return f"With a batch of {samples} in place of {least.samples} samples it fits"
        samples //= 2
    half = replace(task, precision=Precision.named("bf16-true"))
    if task.precision.param_dtype is torch.float32 and half.tried(least.candidate, least.samples).fits:
        return "With precision bf16-true it fits"
    for factor in (2, 4, 8, 16):
        more = replace(task, devices=task.devices * factor)
        for candidate in candidates(more.devices, more.nodes, ["fsdp"])[::-1]:
            if more.tried(candidate, least.samples).fits:
                return f"With {more.devices} devices in place of {task.devices} it fits: {candidate.label}"
    return "Neither one sample, nor bf16-true, nor 16 times the devices make it fit: a layer alone is too large"


def _refused(candidate: Candidate, samples: int, error: Exception) -> Row:
    return Row(candidate, samples, None, refused=str(error).partition("\n")[0])


def _notes(module: nn.Module) -> list[str]:
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    return [_NOT_COMPARED, *[_RECURRENT] * recurrent]


def _failed(error: Exception) -> SimulationError:
    where = line_of(error)
    return SimulationError(
        f"{where or 'training_step'} failed in a simulation: {type(error).__name__}: "
        f"{str(error).partition(chr(10))[0]:.200}",
        expected="a step that runs with this batch.",
        fix="run it once with Trainer(fast_dev_run=True); if it passes there, lightlib plan --measure.",
    )


def _check(
    module: Any, devices: int, nodes: int, memory: int | None, batch_sizes: Sequence[int], headroom: Any
) -> None:
    if not isinstance(module, Module):
        raise wrong_type("plan", "module", module, "a lightlib.Module", "plan(Module.from_model(model, …), batch)")
    if type(module).training_step is Module.training_step:
        raise MisconfigurationException(
            f"{type(module).__name__} has no `training_step`, which a plan simulates.",
            expected="a method `training_step(self, batch, batch_idx)`.",
            fix=f"define it in {type(module).__name__}.",
        )
    for name, value in (
        ("devices", devices),
        ("nodes", nodes),
        *(("batch_sizes", batch_size) for batch_size in batch_sizes),
    ):
        check_int("plan", name, value, 1, example=8)
    if memory is not None:
        check_int("plan", "memory", memory, 1, meaning=": the bytes of a device", example=80 * 10**9)
    if isinstance(headroom, bool) or not isinstance(headroom, (int, float)) or not 0 <= headroom < 1:
        raise wrong_value("plan", "headroom", headroom, "a share from 0 to less than 1", 0.1)


def _positive(**speeds: Any) -> Iterator[float | None]:
    for name, value in speeds.items():
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise wrong_value("plan", name, value, "a number greater than 0", 990e12 if name == "flops" else 400e9)
        yield value


@contextmanager
def _quiet() -> Iterator[None]:
    """Show neither messages nor warnings: they come again, once, when the strategy is used."""
    level = report.log.level
    report.log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        report.log.setLevel(level)
