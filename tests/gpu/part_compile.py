"""torch.compile under strategies: compiled blocks train as a plain loop without torch.compile does."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lightlib.strategies.axes.transforms import Compile
from tests.gpu import training
from tests.gpu.case import Case, Figures
from tests.gpu.device import Device
from tests.gpu.part_strategies import reference

WAYS = ("ddp", "fsdp", "hsdp", "tensor", "pipeline", "tensor 2, shard")
PRECISIONS = ("32-true", "bf16-mixed")
FULL_STEP = "single_device, full step"


def cases(device: Device, precisions: Sequence[str]) -> list[Case]:
    columns = [precision for precision in PRECISIONS if precision in precisions]
    return [Case(FULL_STEP, column) for column in columns] + training.cases(WAYS, device, columns)


def run(name: str, device: Device) -> Figures:
    row, _, precision = name.partition("/")
    expected = reference(precision, device)
    # The code that inductor generates is the device's: without one, graphs are captured and run as they are.
    backend = "aot_eager" if device.pretended else "inductor"
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    if row == FULL_STEP:
        strategy, compiled = training.strategy("single_device"), lambda module: torch.compile(module, backend=backend)
        found = training.trained(strategy, 1, precision, device, compiled)
    else:
        strategy = training.strategy(row, compile=Compile(backend=backend))
        found = training.trained(strategy, training.ranks_of(row), precision, device)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs
    torch._dynamo.reset()
    if not graphs:
        raise AssertionError("nothing was compiled: torch counted no graph")
    return {**training.check(found, expected, precision), "graphs": graphs} if found else {}
