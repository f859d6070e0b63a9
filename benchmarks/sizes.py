"""(k) Bytes: of the loss in chunks, of recomputed activations, and of the checkpoint of an adapter."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lightlib
from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB
from lightlib.callbacks import ModelCheckpoint
from lightlib.losses import linear_cross_entropy
from lightlib.simulation.fit import simulate
from lightlib.strategies import SingleDeviceStrategy
from lightlib.transforms import lora

__all__ = ["run"]

TOKENS, CLASSES, WIDTH, LAYERS = 2048, 16384, 64, 8


def run(size: Size) -> Iterator[Result]:  # noqa: ARG001  bytes are exact
    """Yield bytes with and without each way to save them, and the shares."""
    yield from _results(
        f"MB at most in a step, {TOKENS} tokens and {CLASSES} classes: the loss",
        {"of all scores at once": _peak(_head(cross_entropy_of_all)), "in chunks of 128": _peak(_head(chunked))},
        Target("loss in chunks: share of the bytes of a step", 0, 1 / 4, ""),
    )
    yield from _results(
        f"MB at most in a step of {LAYERS} blocks: activations",
        {"kept": _peak(_blocks()), "computed again": _peak(_blocks(), activation_checkpointing=True)},
        Target("activation_checkpointing: share of the bytes of a step", 0, 1 / 2, ""),
    )
    yield from _results(
        "MB of a checkpoint of an adapter on a frozen model:",
        {"of all weights": _checkpoint("all"), "save='trainable'": _checkpoint("trainable")},
        Target("save='trainable': share of the bytes of a checkpoint", 0, 1 / 10, ""),
    )


def _results(what: str, bytes_of: dict[str, int], target: Target) -> Iterator[Result]:
    (_, most), (_, least) = bytes_of.items()
    for how, count in bytes_of.items():
        yield Row(f"{what} {how}", LIGHTLIB.name, [count / 1e6], "MB")
    yield Target(target.what, least / most, target.limit, target.unit)


def chunked(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the loss of 128 tokens at a time."""
    return linear_cross_entropy(hidden, weight, target, chunk_size=128)


def cross_entropy_of_all(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the loss of the scores of all tokens."""
    return cross_entropy(hidden @ weight.T, target)


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([one for one in parameters if one.requires_grad])


def _head(loss: Any) -> tuple[lightlib.Module, Any]:
    def step(module: Any, batch: Any) -> Tensor:
        result: Tensor = loss(batch[0], module.model.weight, batch[1])
        return result

    model = nn.Linear(WIDTH, CLASSES, bias=False)
    batch = torch.randn(TOKENS, WIDTH), torch.randint(CLASSES, (TOKENS,))
    return lightlib.Module.from_model(model, optimizer=_optimizer, step=step), batch


def _blocks() -> tuple[lightlib.Module, Any]:
    layer = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)]

    def step(module: Any, batch: Any) -> Tensor:
        result: Tensor = module.model(batch).square().mean()
        return result

    return lightlib.Module.from_model(nn.Sequential(*layer), optimizer=_optimizer, step=step), torch.randn(
        16, 128, WIDTH
    )


def _peak(fitted: tuple[lightlib.Module, Any], **options: Any) -> int:
    module, batch = fitted
    return simulate(module, batch, SingleDeviceStrategy(**options)).peak


def _checkpoint(save: Any) -> int:
    """Return the bytes of a checkpoint after a step."""
    model = lora(nn.Sequential(*(nn.Linear(16 * WIDTH, 16 * WIDTH) for _ in range(LAYERS))), "*", rank=4)

    def step(module: Any, batch: Any) -> Tensor:
        result: Tensor = module.model(batch[0]).square().mean()
        return result

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightlib.Trainer(
            accelerator="cpu", devices=1, max_steps=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder, callbacks=[ModelCheckpoint(folder, save=save)],
        )  # fmt: skip
        data = DataLoader(TensorDataset(torch.randn(2, 16 * WIDTH)))
        trainer.fit(lightlib.Module.from_model(model, optimizer=_optimizer, step=step), data)
        return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder) if name.endswith("ckpt"))
