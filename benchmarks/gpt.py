"""A GPT of four blocks as one chain of layers, its text, and a step of each strategy by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.task import Rows

__all__ = [
    "BATCH_SIZE", "BY_HAND", "MICROBATCHES", "SPLIT", "WIDE", "WIDTH", "WIDTHS", "Step", "gpt", "loss", "one_device",
    "optimizer", "text",
]  # fmt: skip

WIDTH, BLOCKS, CHARACTERS, LENGTH = 64, 4, 64, 64
WIDE = "pipeline of width 256"
WIDTHS = {WIDE: 256}  # of the strategies that do not have `WIDTH`
BATCH_SIZE, MICROBATCHES = 8, 4
SPLIT = {"query": "colwise", "key": "colwise", "value": "colwise", "out": "rowwise", "up": "colwise", "down": "rowwise"}
_STAGES = {2: (0, 3, 7), 4: (0, 2, 3, 4, 7)}  # the first layer of each stage, and the end
Step = Callable[[Tensor, Tensor], object]


class _Embedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(CHARACTERS, width), nn.Parameter(torch.zeros(LENGTH, width))

    def forward(self, text: Tensor) -> Tensor:
        found: Tensor = self.characters(text) + self.positions
        return found


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        heads = (layer(normed).unflatten(-1, (-1, 16)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(-2))
        found: Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return found


def gpt(width: int = WIDTH) -> nn.Sequential:
    """Return the network, with the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = (_Block(width) for _ in range(BLOCKS))
        return nn.Sequential(_Embedding(width), *blocks, nn.LayerNorm(width), nn.Linear(width, CHARACTERS))


def text(steps: int) -> Rows:
    """Return characters and the ones after them, for so many steps."""
    generator = torch.Generator().manual_seed(0)
    characters = torch.randint(CHARACTERS, (BATCH_SIZE * steps, LENGTH + 1), generator=generator)
    return Rows(characters[:, :-1], characters[:, 1:])


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy over all positions."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer."""
    return torch.optim.AdamW(module.parameters(), 1e-3)


def _step(network: nn.Module, device: torch.device) -> Step:
    adam = optimizer(network)

    def step(inputs: Tensor, targets: Tensor) -> None:
        adam.zero_grad()
        loss(network(inputs.to(device)), targets.to(device)).backward()
        adam.step()

    return step


def one_device(device: torch.device) -> Step:
    """Return a step on one device."""
    return _step(gpt().to(device), device)


def _ddp(device: torch.device) -> Step:
    return _step(DistributedDataParallel(gpt().to(device), gradient_as_bucket_view=True), device)  # as lightlib


def _fsdp(device: torch.device) -> Step:
    network, mesh = gpt().to(device), init_device_mesh(device.type, (distributed.get_world_size(),))
    for block in network[1 : 1 + BLOCKS]:
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return _step(network, device)


def _tensor(device: torch.device) -> Step:
    network, mesh = gpt().to(device), init_device_mesh(device.type, (distributed.get_world_size(),))
    styles: dict[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    for block in network[1 : 1 + BLOCKS]:
        parallelize_module(block, mesh, {name: styles[kind]() for name, kind in SPLIT.items()})
    return _step(network, device)


def _pipeline(device: torch.device, width: int = WIDTH) -> Step:
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    layers = gpt(width)[slice(*_STAGES[ranks][rank : rank + 2])].to(device)
    stage = PipelineStage(layers, rank, ranks, device)
    schedule, adam = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss), optimizer(layers)

    def step(inputs: Tensor, targets: Tensor) -> None:
        adam.zero_grad()
        given = {"target": targets.to(device), "losses": []} if rank == ranks - 1 else {}
        schedule.step(*[inputs.to(device)][: rank == 0], **given)
        adam.step()

    return step


BY_HAND: dict[str, Callable[[torch.device], Step]] = {
    "fsdp": _fsdp,
    "ddp": _ddp,
    "tensor": _tensor,
    "pipeline": _pipeline,
    WIDE: partial(_pipeline, width=WIDTHS[WIDE]),
}
