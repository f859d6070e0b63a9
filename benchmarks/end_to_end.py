"""(f) How much longer a full run of a small CNN and a small GPT takes than the plain loop."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

from benchmarks.measure import Result, Row, Size
from benchmarks.peers import LIGHTLIB, LIGHTNING, NOT_INSTALLED, PLAIN, Peer
from benchmarks.task import REALISTIC, Clock, Rows, Task
from benchmarks.terminal import terminal

__all__ = ["GPT", "cnn", "gpt", "run"]


def run(size: Size) -> Iterator[Result]:
    """Yield how many times as long as the plain loop a run takes."""
    for name, new_task in (("CNN", cnn), ("GPT", gpt)):
        ratios: dict[Peer, list[float]] = {peer: [] for peer in (LIGHTLIB, LIGHTNING) if peer.installed}
        plain: list[float] = []
        for peer in (PLAIN, *ratios):
            _seconds(peer, new_task, 3)  # to warm up
        before = _seconds(PLAIN, new_task, size.large_steps)
        for _ in range(size.fewer_rounds):
            taken = {peer: _seconds(peer, new_task, size.large_steps) for peer in ratios}
            after = _seconds(PLAIN, new_task, size.large_steps)
            plain.append(after * 1e3 / size.large_steps)
            for peer, time in taken.items():
                ratios[peer].append(2 * time / (before + after))
            before = after
        yield Row(f"ms per step of the plain loop itself: {name}", PLAIN.name, plain, "ms")
        for peer in (LIGHTLIB, LIGHTNING):
            note = "" if peer.installed else NOT_INSTALLED
            yield Row(f"full run over plain: {name}, realistic", peer.name, ratios.get(peer, []), "times", note)


def _seconds(peer: Peer, new_task: Callable[[int, Path], Task], steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder, terminal():
        task = new_task(steps, Path(folder))
        gc.collect()
        began = perf_counter()
        peer.code.train(task)
        return perf_counter() - began


def cnn(steps: int, folder: Path) -> Task:
    """Return a task like the handwritten digits: images of 28 by 28, two convolutions."""
    generator = torch.Generator().manual_seed(0)
    batch_size = 32
    images = torch.randn(batch_size * steps, 1, 28, 28, generator=generator)
    digits = torch.randint(10, (batch_size * steps,), generator=generator)
    return Task(_cnn, Rows(images, digits), batch_size, 10, REALISTIC, folder, Clock(0, steps - 1))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


def gpt(steps: int, folder: Path) -> Task:
    """Return a task of predicting the next of 64 characters."""
    generator = torch.Generator().manual_seed(0)
    batch_size, length, characters = 8, 64, 64
    text = torch.randint(characters, (batch_size * steps, length + 1), generator=generator)
    rows = Rows(text[:, :-1], text[:, 1:])
    return Task(lambda: GPT(characters, length), rows, batch_size, characters, REALISTIC, folder, Clock(0, steps - 1))


class GPT(nn.Module):
    """Two transformer blocks of width 64; returns logits as (row, character, position)."""

    def __init__(self, characters: int, length: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.logits = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, text: Tensor) -> Tensor:
        found = self.blocks(self.characters(text) + self.positions, mask=self.mask, is_causal=True)
        return self.logits(found).transpose(1, 2)
