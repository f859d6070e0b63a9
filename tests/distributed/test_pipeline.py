"""The pipeline against one process: schedules, splitting, odd batches, evaluation, products."""

from __future__ import annotations

import os
import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

import lightlib as L
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.pipeline.pipeline_axis import Pipeline
from tests.distributed.runs import Block, Decoder, assert_same, seeded, trained
from tests.processes.ranks import ranks
from tests.runs.plain import calling, with_methods
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes

EXACTLY = {"precision": "64-true"}  # AdamW amplifies rounding from the order of additions, more on some CPUs
TOLERANCE = 1e-8
SCHEDULES = ["gpipe", "1f1b", "interleaved", "looped_bfs", "interleaved_zero_bubble"]
if Version(torch.__version__) >= Version("2.12"):
    SCHEDULES += ["zbv", "dualpipev"]


class Deep(Decoder):
    """Four blocks in a ModuleList; a forward that knows nothing of stages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.blocks = nn.ModuleList(Block(4) for _ in range(4))
        for block in self.blocks:
            block.attention.k = nn.Linear(16, 16, bias=False)  # a bias has a gradient of 0, which Adam would amplify
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32, bias=False)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 3e-3)


class Chain(L.Module):
    """An nn.Sequential, with a head outside of it, a weighted loss, and random numbers before the call."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        widths = [8, 16, 16, 12, 10]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.Tanh()]
        self.layers = nn.Sequential(nn.Sequential(*layers[:4]), *layers[4:])
        self.head = nn.Linear(10, 3)
        self.noise = noise
        self.inputs: list[torch.Tensor] = []

    def training_step(self, batch, batch_idx):
        x, y = batch["x"] + self.noise * torch.randn_like(batch["x"]), batch["y"]
        features = self.layers(x)
        scores = self.head(features)
        loss = F.cross_entropy(scores, y, reduction="sum")
        self.log("train_loss", loss / len(y), on_step=False, on_epoch=True, batch_size=len(y))
        return {"loss": loss, "weight": len(y), "scores": scores, "names": batch["names"]}

    def validation_step(self, batch, batch_idx):
        self.log(
            "val_loss", F.cross_entropy(self.head(self.layers(batch["x"])), batch["y"]), batch_size=len(batch["y"])
        )

    def test_step(self, batch, batch_idx):
        self.log("batches", 1.0, reduce_fx="sum")

    def predict_step(self, batch, batch_idx):
        return {"scores": self.head(self.layers(batch["x"])), "names": batch["names"]}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if "scores" in outputs:
            assert outputs["scores"].shape == (len(batch["y"]), 3)
            assert len(outputs["names"]) == len(outputs["scores"]) or isinstance(outputs["names"][0], list)

    def configure_optimizers(self):
        groups = [{"params": self.layers.parameters()}, {"params": self.head.parameters(), "lr": 0.03}]
        return torch.optim.SGD(groups, 0.05, momentum=0.9)


class Tolerant(L.Module):
    """Plain children: the forward skips absent ones, and the body's own parameter is on stage 0."""

    def __init__(self, stages: Any) -> None:
        super().__init__()
        self.body = Body()
        self.stages = stages

    def parallel_plan(self):
        return {"pipelined": "body", "stages": self.stages}

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self.body(batch[0], scale=torch.ones(len(batch[0]), 1) * 2), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(8))
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.0)

    def forward(self, x, scale):
        x = x + self.shift if self.shift is not None else x
        for layer in (self.first, self.second):
            x = torch.tanh(layer(x)) * scale if layer is not None else x
        return self.third(x) if self.third is not None else x


def samples(count: int = 26) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(count, 8, generator=generator), torch.randint(3, (count,), generator=generator)
    return [{"x": x[i], "y": y[i], "names": f"sample {i}"} for i in range(count)]


def fitted(module: L.Module, strategy: Any, devices: int, data: Any, size: int = 8, **options: Any) -> dict[str, Any]:
    """Return the results of a fit, and the predictions."""
    trainer = L.Trainer(
        **QUIET, strategy=strategy, devices=devices, num_sanity_val_steps=0, **{"max_epochs": 2} | options
    )
    loader = DataLoader(data, size)
    evaluates = isinstance(module, Chain)
    trainer.fit(module, loader, loader if evaluates else None)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    tested = trainer.test(module, loader, verbose=False) if evaluates else None
    return {
        "metrics": metrics,
        "tested": tested,
        "norm": None if trainer.gradient_norm is None else float(trainer.gradient_norm),
        "weights": {name: value.clone() for name, value in trainer.strategy.module_state().items()},
        "predictions": trainer.predict(module, loader) if evaluates else None,
        "step": trainer.global_step,
    }


def decoders(rank: int, pipelines: list[dict[str, Any]], others: dict[str, int], options: dict[str, Any]) -> list[Any]:
    """Return one run for each pipeline; one process without any when there is none."""
    warnings.simplefilter("ignore")
    options = EXACTLY | options
    if not pipelines:
        return [trained(seeded(Deep), "auto", 1, gradient_clip_val=0.5, **options)]
    devices = 2
    for size in others.values():
        devices *= size
    return [
        trained(
            seeded(Deep), MeshStrategy(pipeline=Pipeline(2, **one), **others), devices, gradient_clip_val=0.5, **options
        )
        for one in pipelines
    ]


def test_all_schedules_train_an_unchanged_decoder_to_the_numbers_of_one_process() -> None:
    expected = ranks(1, decoders, [], {}, {})[0][0]
    found = ranks(2, decoders, [{"schedule": one} for one in SCHEDULES], {}, {})
    for run, other in zip(*found, strict=True):
        assert_same(expected, run, TOLERANCE)
        assert run["metrics"] == other["metrics"], "every stage knows the metrics"
        assert run["norm"] == other["norm"]


def test_accumulation_with_a_short_last_window_adds_up_exactly() -> None:
    options = {"accumulate_grad_batches": 2}
    expected = ranks(1, decoders, [], {}, options)[0][0]
    pipelines = [{"schedule": one} for one in ("1f1b", "interleaved_zero_bubble", "zbv")]
    for run in ranks(2, decoders, pipelines, {}, options)[0]:
        assert_same(expected, run, TOLERANCE)


@pytest.mark.parametrize("others", [{"shard": 2}, pytest.param({"replicate": 2}, marks=pytest.mark.slow)])
def test_with_shards_or_copies_inside(others) -> None:
    options = {"accumulate_grad_batches": 2}
    expected = ranks(1, decoders, [], {}, options)[0][0]
    pipelines = [{"schedule": one} for one in ("1f1b", "interleaved_zero_bubble", "zbv")]
    for run in ranks(4, decoders, pipelines, others, options)[0]:
        assert_same(expected, run, TOLERANCE)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_reduced_precision(precision) -> None:
    options = {"precision": precision}
    expected = ranks(1, decoders, [], {}, options)[0][0]
    for run in ranks(2, decoders, [{"schedule": "1f1b"}, {"schedule": "zbv"}], {}, options)[0]:
        # Micro-batches are rounded separately, and AdamW's first steps have the size of the rate, however small the
        # gradient.
        assert run["metrics"]["val_loss"] == pytest.approx(expected["metrics"]["val_loss"], rel=1e-3)
        moved = [float((run["weights"][n] - v).norm() / v.norm()) for n, v in expected["weights"].items()]
        assert max(moved) < 2e-2


def chains(rank: int, pipelines: list[dict[str, Any]], options: dict[str, Any]) -> list[Any]:
    warnings.simplefilter("ignore")
    return [
        fitted(
            seeded(Chain),
            MeshStrategy(pipeline=Pipeline(2, **one)) if one else "auto",
            2 if one else 1,
            samples(),
            **options,
        )
        for one in pipelines
    ]


def test_a_sequential_with_a_head_outside_weights_odd_batches_evaluation_and_prediction() -> None:
    """26 samples in batches of 8: the last batch of 2 is not split, though the schedule needs more."""
    expected = ranks(1, chains, [{}], {})[0][0]
    pipelines = [{"schedule": one} for one in ("gpipe", "1f1b", "interleaved", "zbv", "dualpipev")]
    found = ranks(2, chains, pipelines, {})
    for first, last in zip(*found, strict=True):
        assert_same(expected, first, 1e-5)
        for run in (first, last):
            assert run["tested"] == expected["tested"], "a step that does not call the part"
            assert run["step"] == expected["step"]
            for one, other in zip(run["predictions"], expected["predictions"], strict=True):
                torch.testing.assert_close(one["scores"], other["scores"], rtol=1e-4, atol=1e-5)
                assert one["names"] == other["names"]


def tolerant(rank: int, cases: list[Any]) -> list[Any]:
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator))
    return [
        fitted(
            seeded(Tolerant, stages),
            MeshStrategy(pipeline=Pipeline(2, schedule=s)) if s else "auto",
            2 if s else 1,
            data,
        )
        for stages, s in cases
    ]


def test_named_stages_of_a_forward_that_does_without_absent_layers() -> None:
    expected = ranks(1, tolerant, [((), None)])[0][0]
    lists = [["shift", "first", "drop"], ["second", "third"]]
    for run in ranks(2, tolerant, [(["second"], "1f1b"), (["body.third"], "gpipe"), (lists, "gpipe")])[0]:
        assert_same(expected, run, 1e-5)


def noisy(rank: int) -> tuple[Any, Any]:
    """Return random numbers that a step draws before the pipelined call, and the rank."""

    def training_step(self, batch, batch_idx):
        self.drawn = torch.rand(3)

    warnings.simplefilter("ignore")
    torch.manual_seed(rank)  # as dropout would leave the generators of two stages
    module = calling(seeded(Chain, noise=1.0), training_step)
    fitted(module, MeshStrategy(pipeline=2), 2, samples(8), max_epochs=3)
    return module.drawn, rank


def test_random_numbers_before_the_call_are_the_same_on_both_sides() -> None:
    (first, _), (last, _) = ranks(2, noisy)
    assert torch.equal(first, last)


class Frozen(Deep):
    def __init__(self) -> None:
        super().__init__()
        for part in (self.words, self.places, self.blocks[0]):
            part.requires_grad_(False)


class Tied(Deep):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.words.weight


def others(rank: int, cases: list[tuple[type, str | None]]) -> list[Any]:
    warnings.simplefilter("ignore")
    return [
        trained(seeded(kind), MeshStrategy(pipeline=Pipeline(2, schedule=s)) if s else "auto", 2 if s else 1, **EXACTLY)
        for kind, s in cases
    ]


def test_frozen_first_layers() -> None:
    expected = ranks(1, others, [(Frozen, None)])[0][0]
    for run in ranks(2, others, [(Frozen, "1f1b"), (Frozen, "interleaved_zero_bubble"), (Frozen, "zbv")])[0]:
        assert_same(expected, run, TOLERANCE)


def test_tied_layers_on_the_process_that_has_the_first_and_the_last_stage() -> None:
    expected = ranks(1, others, [(Tied, None)])[0][0]
    run = ranks(2, others, [(Tied, "zbv")])[0][0]
    assert_same(expected, run, TOLERANCE)


def four(rank: int, schedules: list[str]) -> list[Any]:
    warnings.simplefilter("ignore")
    return [trained(seeded(Deep), MeshStrategy(pipeline=Pipeline(4, schedule=s)), 4, **EXACTLY) for s in schedules]


def test_four_processes() -> None:
    expected = ranks(1, others, [(Deep, None)])[0][0]
    for run in ranks(4, four, ["gpipe", "1f1b"])[0]:
        assert_same(expected, run, TOLERANCE)


def test_lengths_that_change_from_batch_to_batch() -> None:
    found = ranks(2, lengths)
    expected = ranks(1, lengths)[0]
    torch.testing.assert_close(found[0], expected, rtol=TOLERANCE, atol=TOLERANCE / 10)


def lengths(rank: int) -> Any:
    warnings.simplefilter("ignore")
    windows = [
        torch.randint(32, (4, 2 + index % 3), generator=torch.Generator().manual_seed(index)) for index in range(6)
    ]
    module = seeded(Deep)
    two = os.environ["WORLD_SIZE"] == "2"
    trainer = L.Trainer(
        **QUIET,
        devices=2 if two else 1,
        strategy=MeshStrategy(pipeline=2) if two else "auto",
        max_epochs=1,
        limit_val_batches=0,
        **EXACTLY,
    )
    trainer.fit(module, DataLoader([(one[:, :-1], one[:, 1:]) for one in windows], None))
    return dict(sorted(trainer.strategy.module_state().items()))


class Splitting(Chain):
    """Cuts a batch in its own way."""

    def split_batch(self, batch, n):
        self.asked = n
        return [{key: value[index::n] for key, value in batch.items()} for index in range(n)]


def splitting(rank: int, kinds: list[tuple[type, dict[str, Any]]]) -> list[Any]:
    warnings.simplefilter("ignore")
    two = os.environ["WORLD_SIZE"] == "2"
    return [
        fitted(seeded(kind), MeshStrategy(pipeline=2, **options) if two else "auto", 2 if two else 1, samples(24))
        for kind, options in kinds
    ]


def test_split_batch_and_compiled_layers() -> None:
    compiled = {"compile": L.strategies.Compile(backend="eager")}
    expected = ranks(1, splitting, [(Chain, {})])[0][0]
    for run in ranks(2, splitting, [(Splitting, {}), (Chain, compiled)])[0]:
        assert_same(expected, run, 1e-5)


def uncollated(rank: int) -> tuple[Any, float]:
    """Train with lists of samples; each tensor in them has as many numbers as a batch has samples."""

    def training_step(self, batch, batch_idx):
        return Chain.training_step(self, default_collate(batch), batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert len(batch) == 8

    warnings.simplefilter("ignore")
    two = os.environ["WORLD_SIZE"] == "2"
    strategy = MeshStrategy(pipeline=2) if two else "auto"
    trainer = L.Trainer(**QUIET, devices=2 if two else 1, strategy=strategy, max_epochs=2, **EXACTLY)
    module = with_methods(seeded(Chain), training_step, on_train_batch_end)
    trainer.fit(module, DataLoader(samples(24), 8, collate_fn=list))
    return dict(sorted(trainer.strategy.module_state().items())), float(trainer.callback_metrics["train_loss"])


def test_a_list_of_samples_is_cut_between_samples() -> None:
    weights, loss = ranks(1, uncollated)[0]
    for found, its_loss in ranks(2, uncollated)[:1]:
        torch.testing.assert_close(found, weights, rtol=TOLERANCE, atol=TOLERANCE / 10)
        assert its_loss == pytest.approx(loss, rel=TOLERANCE)
