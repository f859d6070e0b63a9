"""Compilation, activation checkpointing and offload under every strategy: the numbers of a plain loop."""

from __future__ import annotations

import shutil
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.launch.watch.failure import OtherRankError
from lightlib.strategies import MeshStrategy
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.modules import Regression
from tests.strategies.axes.transforms.residual import by_hand, data, network

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

BACKEND = {"backend": "aot_eager"}
ARGUMENTS: list[dict[str, Any]] = [
    {"compile": BACKEND},
    {"compile": {"target": "blocks", **BACKEND}, "activation_checkpointing": True, "activation_offload": "blocks"},
    {"activation_checkpointing": {"every": 2, "save": ["linear"]}},
    {"activation_offload": True, "activation_checkpointing": True},
    {"activation_offload": ["net.[1-4]"]},
]
STRATEGIES: dict[str, Any] = {
    "ddp": "ddp",
    "zero1": "zero1",
    "fsdp": "fsdp",
    "tensor": "tensor",
    "pipeline": "pipeline",
    "hsdp": "hsdp",
    "tensor, shard": {"tensor": 2, "shard": 2},
    "pipeline, shard": {"pipeline": 2, "shard": 2},
}


def fitted(strategy: Any, arguments: dict[str, Any], size: int) -> Any:
    module = Regression(network(dropout=0.0))
    how = MeshStrategy(**strategy) if isinstance(strategy, dict) else strategy
    trainer = L.Trainer(
        **quiet.QUIET, max_epochs=1, strategy=how, devices=size, use_distributed_sampler=False, **arguments
    )
    trainer.fit(module, data())
    assert not any("forward" in vars(part) for part in module.modules() if hasattr(part, "hidden"))  # as before
    return trainer.strategy.module_state(), _hidden(module)


def _hidden(module: nn.Module) -> int:
    """How often the forward of a block has run in Python."""
    return sum(len(part.hidden) for part in module.modules() if hasattr(part, "hidden"))


def every(rank: int, strategy: Any, size: int) -> Any:
    torch.set_num_threads(1)
    return [fitted(strategy, arguments, size) for arguments in [{}, *ARGUMENTS]]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 2) for name in ("ddp", "zero1", "fsdp", "tensor", "pipeline")),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in ("hsdp", "tensor, shard", "pipeline, shard")),
    ],
)
def test_the_numbers_of_a_plain_loop(name: str, size: int) -> None:
    expected = {f"net.{key}": value for key, value in by_hand(dropout=0.0).state_dict().items()}
    for rank, results in enumerate(ranks(size, every, STRATEGIES[name], size)):
        (plain, calls), *others = results
        assert calls
        for weights, _ in others:
            assert list(weights) == list(plain)
            assert rank or list(weights) == list(expected)
            for key, value in weights.items():
                torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
                if name in ("ddp", "zero1", "fsdp"):
                    assert value.equal(plain[key])
        compiled, with_all, again, offloaded_again, offloaded = [calls for _, calls in others]
        # the first forward under tensor parallelism is compared with that of unsplit layers, which are not compiled
        assert compiled == with_all == (4 if "tensor" in name else 0)
        assert offloaded == calls < again < offloaded_again


def in_two_runs(rank: int) -> Any:
    torch.set_num_threads(1)
    arguments = ARGUMENTS[1]
    module = Regression(network(dropout=0.0))
    how = {**quiet.QUIET, "strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    first = L.Trainer(**how, max_epochs=1, **arguments)
    first.fit(module, data())
    first.max_epochs = 2
    first.fit(module, data())
    compiled = _hidden(module)
    L.Trainer(**how, max_epochs=1).fit(module, data())  # what the first Trainer changed is undone
    return dict(module.net.state_dict()), compiled, _hidden(module)


def test_a_second_run_and_a_trainer_without_them() -> None:
    expected = by_hand(epochs=3, dropout=0.0).state_dict()
    for weights, compiled, plain in ranks(2, in_two_runs):
        assert compiled == 0
        assert plain == 4 * len(data())
        for key, value in weights.items():
            assert value.equal(expected[key])


def compiled_in_a_pipeline(rank: int) -> list[str]:
    module = Regression(network(dropout=0.0))
    with warnings.catch_warnings(record=True) as caught:  # torch warns too
        L.Trainer(**quiet.QUIET, max_epochs=1, strategy="pipeline", devices=2).fit(
            torch.compile(module, **BACKEND), data()
        )
    return [str(one.message) for one in caught]


def test_a_compiled_module_in_a_pipeline_is_warned_of() -> None:
    first, _ = ranks(2, compiled_in_a_pipeline)
    assert any("a pipeline calls its layers one by one: nothing is compiled" in text for text in first)


def refused_in_a_pipeline(rank: int) -> str:
    with pytest.raises((MisconfigurationException, OtherRankError)) as caught:  # the first rank's error ends the second
        fitted("pipeline", {"activation_checkpointing": ["net"]}, 2)
    return str(caught.value)


def test_the_module_that_a_pipeline_cuts_is_refused() -> None:
    for text in ranks(2, refused_in_a_pipeline):
        assert "activation_checkpointing: net is, or holds, the module that the pipeline cuts" in text
        assert 'Fix: activation_checkpointing=["net.*"]' in text


def default_backend(rank: int) -> Any:
    found = []
    for strategy in ("ddp", "fsdp"):
        plain, _ = fitted(strategy, {}, 2)
        for compile_ in (True, "blocks"):
            weights, calls = fitted(strategy, {"compile": compile_, "activation_checkpointing": True}, 2)
            found.append((plain, weights, calls))
    return found


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_the_default_backend_of_torch() -> None:
    for results in ranks(2, default_backend):
        for plain, weights, calls in results:
            assert calls == 0
            for key, value in weights.items():
                torch.testing.assert_close(value, plain[key], rtol=1e-4, atol=1e-5)
