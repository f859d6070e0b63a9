"""The expected memory of an optimizer's state equals its memory after the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightlib.callbacks.summary.training_memory import TrainingMemory, described, expected_memory, size

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("ASGD", {}),
    ("Adadelta", {}),
    ("Adagrad", {}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True, "foreach": False}),
    ("Adamax", {}),
    ("Muon", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("Rprop", {}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_the_state_of_torchs_optimizers_is_foreseen(name: str, options: dict[str, Any]) -> None:
    layer = nn.Linear(64, 32, bias=False)
    optimizer = getattr(torch.optim, name)(layer.parameters(), **options)
    if name == "Adagrad":
        optimizer.state.clear()  # it makes its state at once
    expected = expected_memory(layer, [optimizer])
    assert expected.parameters == expected.gradients == 64 * 32 * 4
    optimizer = getattr(torch.optim, name)(layer.parameters(), **options)
    layer(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    measured = expected_memory(layer, [optimizer])
    assert measured.optimizer_state is not None
    assert expected.optimizer_state is not None
    scalars = 64
    assert 0 <= measured.optimizer_state - expected.optimizer_state <= scalars


def test_an_unknown_optimizer_is_measured_when_it_has_stepped() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["both"] = [torch.ones(3), {"second": torch.ones(2)}]

    layer = nn.Linear(3, 1, bias=False)
    optimizer = Own(layer.parameters())
    before = expected_memory(layer, [torch.optim.SGD(layer.parameters(), 0.1), optimizer])
    assert before.optimizer_state is None
    assert described([before], 12).endswith("gradients 12 B, the optimizer's state from its first step")
    optimizer.step()
    assert expected_memory(layer, [optimizer]).optimizer_state == 20


def test_frozen_and_lazy_parameters() -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.LazyLinear(3))
    net[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(net[:2].parameters())
    assert expected_memory(net, [optimizer]) == TrainingMemory(128, 64, 128)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9995, "10.0 kB"), (999_500, "1.00 MB"), (7e9, "7.00 GB")],
)
def test_bytes_are_written_in_about_three_digits(count: float, text: str) -> None:
    assert size(count) == text


def test_processes_that_differ_are_a_span() -> None:
    several = [TrainingMemory(900, 900, 1800), TrainingMemory(1200, 1200, 2400)]
    assert described(several, 2100) == (
        "parameters 900 B to 1.20 kB of 2.10 kB, gradients 900 B to 1.20 kB, optimizer state 1.80 to 2.40 kB"
    )
