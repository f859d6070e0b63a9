"""A GPT that lightlib trains under each strategy and precision, and a plain loop as reference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from benchmarks.gpt import BATCH_SIZE, WIDTH, gpt, loss, text
from benchmarks.strategies import GPTModule
from lightlib.precision import MixedPrecision
from lightlib.strategies import MeshStrategy, Pipeline, Replicate, Shard, SingleDeviceStrategy, Strategy
from tests.gpu.case import Case, DiffersError
from tests.gpu.device import Device

STEPS = 5
SCALE = 1024.0  # the first one; with the default, a loss in float16 overflows under FSDP
TRUE = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}
MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
# Of the change of the weights in training. Wrong gradients change them by more: a batch that is read twice, a sum in
# place of a mean, a missing rank.
TOLERANCES = {
    "64-true": 1e-9, "32-true": 1e-4, "bf16-mixed": 0.03, "16-mixed": 0.005, "bf16-true": 0.1, "16-true": 0.02,
}  # fmt: skip


class Way(NamedTuple):
    """A strategy, with the numbers of processes that it can have.

    Attributes:
        sizes: Arguments of MeshStrategy; empty: one device.
        multiple: The least number of processes, which divides all of them.
        most: The largest number that the network allows.
    """

    sizes: Mapping[str, Any]
    multiple: int = 1
    most: int = 8


WAYS = {
    "single_device": Way({}, most=1),
    "ddp": Way({"replicate": -1}),
    "zero1": Way({"replicate": "zero"}, 2),
    "fsdp": Way({"shard": -1}),
    "fsdp, not resharded": Way({"shard": "held"}, 2),
    "fsdp, offloaded": Way({"shard": "offloaded"}),
    "fsdp, checkpointed": Way({"shard": -1, "activation_checkpointing": True}),
    "hsdp": Way({"replicate": 2, "shard": -1}, 4),
    "tensor": Way({"tensor": -1}, 2, 4),
    "pipeline": Way({"pipeline": -1}, 2, 4),
    "pipeline, interleaved": Way({"pipeline": "interleaved"}, 2, 2),
    "tensor 2, shard": Way({"tensor": 2, "shard": -1}, 4),
    "tensor 2, replicate": Way({"tensor": 2, "replicate": -1}, 4),
    "pipeline 2, shard": Way({"pipeline": 2, "shard": -1}, 4, 4),
    "pipeline 2, tensor 2": Way({"pipeline": 2, "tensor": 2}, 4, 4),
    "pipeline 2, tensor 2, shard": Way({"pipeline": 2, "tensor": 2, "shard": -1}, 8, 8),
}
_ARGUMENTS: dict[str, Callable[[], Any]] = {
    "zero": lambda: Replicate(-1, zero=True),
    "held": lambda: Shard(-1, reshard_after_forward=False),
    "offloaded": lambda: Shard(-1, cpu_offload=True),
    "interleaved": lambda: Pipeline(2, schedule="interleaved"),
}


class Trained(GPTModule):
    """The GPT of the benchmarks, trained by SGD: a wrong scale of gradients is visible in its steps."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self)


def samples() -> TensorDataset:
    """Return the text of all steps."""
    rows = text(STEPS)
    return TensorDataset(rows.inputs, rows.targets)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)


def cases(ways: Sequence[str], device: Device, columns: Sequence[str]) -> list[Case]:
    """Return a case for each strategy, number of processes and precision."""
    found = []
    for name in ways:
        way = WAYS[name]
        for number in device.counts(way.multiple, way.most):
            row = name if way.most == 1 else f"{name}, {number} rank{'s' * (number > 1)}"
            found += [Case(row, column, number, number) for column in columns]
    return found


def ranks_of(row: str) -> int:
    """Return the number of processes of a row."""
    return int(row.split()[-2]) if row.endswith((" rank", " ranks")) else 1


def strategy(row: str, **transforms: Any) -> Strategy:
    """Return the strategy of a row."""
    way = WAYS[row if row in WAYS else row.rpartition(", ")[0]]
    if not way.sizes:
        return SingleDeviceStrategy()
    given = {key: _ARGUMENTS[value]() if isinstance(value, str) else value for key, value in way.sizes.items()}
    return MeshStrategy(**{**given, **transforms})


def trained(
    chosen: Strategy, ranks: int, precision: str, device: Device, wrapped: Callable[[Any], Any] = lambda module: module
) -> dict[str, Tensor]:
    """Train with lightlib, on each rank; return the weights of all ranks on the first one, and nothing on the rest."""
    scaled = precision == "16-mixed"
    how = {"plugins": [MixedPrecision(precision, scaler={"init_scale": SCALE})]} if scaled else {"precision": precision}
    trainer = quiet_trainer(device, strategy=chosen, devices=ranks, **how)
    sizes = getattr(chosen, "sizes", {})
    readers = ranks // (max(1, sizes.get("tensor", 1)) * max(1, sizes.get("pipeline", 1)))
    if -1 in (sizes.get("tensor"), sizes.get("pipeline")):
        readers = 1
    trainer.fit(wrapped(Trained(WIDTH)), DataLoader(samples(), BATCH_SIZE // readers))
    state = chosen.module_state()
    return {name: weight.detach().cpu() for name, weight in state.items()} if trainer.is_global_zero else {}


def quiet_trainer(device: Device, **arguments: Any) -> L.Trainer:
    """Return a Trainer that writes and draws nothing."""
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return L.Trainer(**{"accelerator": device.accelerator, "devices": 1, "max_epochs": 1, **off, **arguments})


def by_hand(precision: str, device: torch.device, lr: float = 0.2) -> dict[str, Tensor]:
    """Train the network in a plain loop, on one device; return its weights."""
    network = gpt().to(device, TRUE.get(precision, torch.float32))
    optimizer = sgd(network)
    optimizer.param_groups[0]["lr"] = lr
    scaler = torch.amp.GradScaler(device.type, SCALE, enabled=precision == "16-mixed")
    for batch in DataLoader(samples(), BATCH_SIZE):
        inputs, targets = (tensor.to(device) for tensor in batch)
        mixed = torch.autocast(device.type, MIXED[precision]) if precision in MIXED else contextlib.nullcontext()
        with mixed:
            value = loss(network(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
    return {f"network.{name}": weight.detach().cpu() for name, weight in network.state_dict().items()}


def error_of(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return the distance of all weights to the expected ones, over the change of these in training."""
    if found.keys() != expected.keys():
        raise DiffersError(f"the weights have other names: {sorted(found.keys() ^ expected.keys())[:4]}")
    start = {f"network.{name}": weight for name, weight in gpt().state_dict().items()}
    error, change = (
        sum(float((one[name].double() - expected[name].double()).square().sum()) for name in expected) ** 0.5
        for one in (found, start)
    )
    return error / change


def check(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], precision: str) -> dict[str, Any]:
    """Return the error of the weights as a figure.

    Raises:
        DiffersError: It is beyond the tolerance of the precision.
    """
    error = error_of(found, expected)
    if not error <= TOLERANCES[precision]:
        raise DiffersError(f"the weights differ by {error:.3g} of their change, at most {TOLERANCES[precision]:g}")
    return {"error": error}
