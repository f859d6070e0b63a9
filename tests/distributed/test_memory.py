"""Memory of parameters, gradients and optimizer state on each process, and its summary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import ModelSummary
from lightlib.strategies.memory import memory_of
from lightlib.strategies.mesh import MeshStrategy  # noqa: F401  in the names of strategies
from tests.distributed.user import Net, built, data
from tests.processes.ranks import ranks
from tests.runs.plain import subclass

pytestmark = pytest.mark.processes


class Measured(L.Callback):
    """Measures memory when gradients and optimizer state exist."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.found = memory_of(module, trainer.optimizers)


class Kept(ModelSummary):
    """Keeps the summaries in place of printing them."""

    def __init__(self) -> None:
        super().__init__(max_depth=2)
        self.shown: list[Any] = []

    def show(self, summary: Any, **options: Any) -> None:
        layers = [(layer.name, layer.type, layer.parameters, layer.out_size) for layer in summary.layers]
        self.shown.append({"totals": summary.totals(), "layers": layers, "text": str(summary)})


def hold(rank: int, strategy: str, size: int, optimizer: str = "AdamW", fits: int = 1, example: bool = False) -> Any:
    net, measured, kept = built(optimizer=optimizer), Measured(), Kept()
    if example:
        net.example_input_array = torch.ones(4, 4)
        net.__class__ = subclass(Net, forward=lambda self, x: self.model(x))
    trainer = L.Trainer(
        accelerator="cpu", devices=size, strategy=eval(strategy) if size > 1 else "auto", max_epochs=1,
        limit_train_batches=2, callbacks=[measured, kept], logger=False, enable_progress_bar=False,
        enable_checkpointing=False,
    )  # fmt: skip
    loader = DataLoader(data(), 4)
    for fit in range(fits):
        trainer.max_epochs = fit + 1
        trainer.fit(net, loader, loader)
    return measured.found, kept.shown


def whole() -> tuple[int, int]:
    """Return the bytes of all parameters, and those of AdamW's step counts."""
    parameters = list(built().parameters())
    return sum(p.numel() * p.element_size() for p in parameters), 4 * len(parameters)


@pytest.mark.parametrize(
    ("strategy", "size", "parts"),
    [
        ("'ddp'", 2, 1),
        ("'fsdp'", 2, 2),
        ("'fsdp'", 4, 4),
        ("'fsdp_cpu_offload'", 2, 2),
        pytest.param("'hsdp'", 4, 2, marks=pytest.mark.slow),
        pytest.param("MeshStrategy(replicate=1, shard=4)", 4, 4, marks=pytest.mark.slow),
    ],
)
def test_each_process_holds_its_part_of_everything(strategy: str, size: int, parts: int) -> None:
    all_bytes, counts = whole()
    part = all_bytes // parts
    expected = {"parameters": part, "gradients": part, "optimizer_state": 2 * part + counts}
    results = ranks(size, hold, strategy, size)
    assert [found for found, _ in results] == [expected] * size


def test_zero_shares_out_the_optimizer_state_alone() -> None:
    all_bytes, counts = whole()
    (first, shown), (second, _) = ranks(2, hold, "'zero1'", 2)
    largest = max(p.numel() * p.element_size() for p in built().parameters())
    for found in (first, second):
        assert found["parameters"] == found["gradients"] == all_bytes
        assert abs(found["optimizer_state"] - (2 * all_bytes + counts) / 2) <= 2 * largest
    assert first["optimizer_state"] + second["optimizer_state"] == 2 * all_bytes + counts
    assert shown[0]["totals"]["On each process"].startswith(
        "parameters 18.7 kB of 18.7 kB, gradients 18.7 kB, optimizer state 1"
    )


class UntilBackward(L.Callback):
    """Measures the bytes of parameters between forward and backward."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        local = [getattr(one, "to_local", lambda one=one: one)() for one in module.parameters()]
        self.found.append(sum(one.numel() * one.element_size() for one in local))


def between(rank: int, strategy: str) -> Any:
    net, measured, kept = built(), Measured(), UntilBackward()
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_steps=2, callbacks=[measured, kept], logger=False,
        enable_progress_bar=False, enable_checkpointing=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(net, DataLoader(data(), 4))
    return measured.found, kept.found


@pytest.mark.parametrize(("strategy", "full"), [("zero2", True), ("zero3", False), ("fsdp", False)])
def test_stages_two_and_three_of_zero(strategy: str, full: bool) -> None:
    """Of each kind a process holds half after a step; in stage 2 it keeps the parameters until backward."""
    all_bytes, counts = whole()
    part = all_bytes // 2
    for found, before_backward in ranks(2, between, strategy):
        assert found == {"parameters": part, "gradients": part, "optimizer_state": 2 * part + counts}
        assert len(before_backward) == 2
        for held in before_backward:
            assert held == all_bytes if full else part <= held < all_bytes


def test_tensor_parallelism_shares_out_what_the_plan_names() -> None:
    all_bytes, _ = whole()
    named = 4 * 4 * (2 * 16 * 32 + 32)  # of each block, the weights of `up` and `down` and the bias of `up`
    expected = all_bytes - named // 2
    for found, _ in ranks(2, hold, "'tensor'", 2):
        assert found["parameters"] == found["gradients"] == expected


@pytest.mark.parametrize(
    ("strategy", "optimizer", "line"),
    [
        ("'ddp'", "AdamW", "parameters 18.7 kB of 18.7 kB, gradients 18.7 kB, optimizer state 37.3 kB"),
        ("'fsdp'", "AdamW", "parameters 9.33 kB of 18.7 kB, gradients 9.33 kB, optimizer state 18.7 kB"),
        ("'fsdp'", "SGD", "parameters 9.33 kB of 18.7 kB, gradients 9.33 kB, optimizer state 0 B"),
    ],
)
def test_the_summary_says_it_before_training(strategy: str, optimizer: str, line: str) -> None:
    (_, (shown,)), (_, nothing) = ranks(2, hold, strategy, 2, optimizer)
    (_, (alone,)) = hold(0, "", 1, optimizer)
    assert nothing == []
    assert shown["totals"].pop("On each process") == line
    assert shown["totals"] == alone["totals"]
    assert shown["layers"] == alone["layers"]
    assert shown["text"] == f"{alone['text']}\nOn each process: {line}"


def test_the_summary_of_a_pipeline_shows_all_stages() -> None:
    (first, (shown,)), (second, _) = ranks(2, hold, "'pipeline'", 2)
    (_, (alone,)) = hold(0, "", 1)
    all_bytes, counts = whole()
    assert first["parameters"] + second["parameters"] == all_bytes
    assert first["optimizer_state"] + second["optimizer_state"] == 2 * all_bytes + counts
    for stage in (0, 1):
        line = shown["totals"].pop(f"On each process of stage {stage}")
        assert line.startswith(f"parameters 9.{'15' if not stage else '50'} kB of 18.7 kB, gradients 9.")
    assert shown["totals"] == alone["totals"]
    assert shown["layers"] == alone["layers"]


@pytest.mark.parametrize("strategy", ["'fsdp'", "'ddp'"])
def test_an_example_goes_through_a_module_that_is_shared_out(strategy: str) -> None:
    (_, (shown,)), _ = ranks(2, hold, strategy, 2, "AdamW", 1, True)
    (_, (alone,)) = hold(0, "", 1, "AdamW", 1, True)
    assert shown["layers"] == alone["layers"]
    assert shown["layers"][1][3] == [4, 16]
    assert shown["totals"]["FLOPs of a forward"] == alone["totals"]["FLOPs of a forward"]


def test_a_second_fit_measures_the_optimizer_state_that_is_there() -> None:
    (found, shown), _ = ranks(2, hold, "'fsdp'", 2, "AdamW", 2)
    state = [one["totals"]["On each process"].partition("optimizer state ")[2] for one in shown]
    assert state in (["18.7 kB"], ["18.7 kB", "18.8 kB"])
    assert found["optimizer_state"] == 18776
