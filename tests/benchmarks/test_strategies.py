"""Steps by hand and those of lightlib do the same work; their times become ratios and verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpt, strategies, table
from benchmarks.measure import QUICK, Row, Target
from tests.processes.ranks import ranks


def trained(rank: int) -> dict[str, Any]:
    """Train each strategy in turns; return the local weights of both networks after the same batches."""
    optimizer, found = gpt.optimizer, {}
    strategies.WARM_UP = 2  # in the process of this rank
    for strategy in gpt.BY_HAND:
        networks: list[Any] = []

        def noted(module: Any, networks: list[Any] = networks) -> Any:
            networks.append(module)
            return optimizer(module)

        gpt.optimizer = strategies.optimizer = noted
        times = strategies.in_turns(strategy, 3)
        found[strategy] = (
            times,
            [[getattr(p, "_local_tensor", p).detach().clone() for p in network.parameters()] for network in networks],
        )
    return found


@pytest.mark.processes
@pytest.mark.parametrize("processes", strategies.PROCESSES)
def test_both_end_with_the_same_weights(processes):
    before = [p.detach() for p in gpt.gpt().parameters()]
    for found in ranks(processes, trained):
        assert list(found) == ["fsdp", "ddp", "tensor", "pipeline", gpt.WIDE]
        for strategy, ((seconds, ratio), networks) in found.items():
            assert seconds > 0
            assert ratio > 0
            lightlib, by_hand = networks
            assert len(lightlib) == len(by_hand) > 0, strategy
            for one, other in zip(lightlib, by_hand, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert not any(one.equal(other) for one, other in zip(found["ddp"][1][0], before, strict=True))


def held(rank: int) -> list[tuple[int, int]]:
    return [strategies.memory(strategy) for strategy in ("fsdp", "ddp")]


@pytest.mark.processes
def test_both_hold_the_same_memory():
    for (own, by_hand), (replica, plain) in ranks(2, held):
        assert own == by_hand > 0
        assert plain == pytest.approx(replica, rel=1e-4)  # lightlib keeps a few numbers


def test_a_step_is_compared_with_those_around_it():
    turns = strategies.Turns("ddp")
    turns._by_hand = [9.0] * strategies.WARM_UP + [1.0, 3.0, 1.0, 1.0]
    turns._lightlib = [1.0] * strategies.WARM_UP + [2.0, 4.0, 3.0]
    assert turns.seconds_and_ratio() == (1.0, 2.0)  # 2 / 2, 4 / 2 and 3 / 1


def test_a_strategy_that_costs_too_much_is_reported(monkeypatch):
    def run(command, **_):
        times = {"fsdp": [(0.01, 1.0), (0.02, 1.02), (0.03, 1.1)], "ddp": [(0.01, 1.0), (0.02, 1.04), (0.03, 1.1)]}
        times["pipeline"] = [(0.01, 1.2)]  # without a limit
        memory = {"fsdp": [(100, 100), (101, 100)], "ddp": [(100, 100), (103, 100)], "pipeline": [(90, 100)]}
        found = {strategy: {"times": rounds, "memory": memory[strategy]} for strategy, rounds in times.items()}
        Path(command[-2]).write_text(json.dumps(found), encoding="utf-8")
        assert command[-1] == "quick"

    monkeypatch.setattr(strategies.subprocess, "run", run)
    monkeypatch.setattr(strategies, "PROCESSES", (2,))
    results = list(strategies.run(QUICK))
    rows = [(result.who, result.median, result.unit) for result in results if isinstance(result, Row)]
    assert rows == [
        ("plain PyTorch", 20.0, "ms"), ("lightlib", 1.02, "times"),
        ("plain PyTorch", 20.0, "ms"), ("lightlib", 1.04, "times"),
        ("plain PyTorch", 10.0, "ms"), ("lightlib", 1.2, "times"),
    ]  # fmt: skip
    targets = [result for result in results if isinstance(result, Target)]
    assert [(target.value, target.met) for target in targets] == [
        (1.02, True), (1.01, True), (1.04, False), (1.03, False), (0.9, True),
    ]  # fmt: skip
    assert table.text(results).splitlines()[-3].endswith("1.040 times  1.030 times  MISSED")
