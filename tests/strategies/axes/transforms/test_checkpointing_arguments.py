"""Activation checkpointing on one device and under DDP: the same bits from fewer kept bytes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.precision import MixedPrecision
from lightlib.strategies import ActivationCheckpoint, Compile, DDPStrategy, SingleDeviceStrategy
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.modules import Regression
from tests.runs.plain import same_weights


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 8)) for _ in range(4))
        )


def data() -> list[torch.Tensor]:
    return list(torch.randn(4, 16, 8, generator=torch.Generator().manual_seed(2)))


class Net(Regression):
    def __init__(self) -> None:
        super().__init__(network())
        self.kept = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = self.loss(batch)
        self.kept = sum(kept.values())
        return loss


def fit(strategy: Any, **arguments: Any) -> Net:
    module = Net()
    torch.manual_seed(3)
    L.Trainer(**quiet.QUIET, max_epochs=1, strategy=strategy, **arguments).fit(module, data())
    return module


def by_hand() -> nn.Sequential:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(3)
    for x in data():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("given", [True, ActivationCheckpoint(), ActivationCheckpoint(blocks=["net.[0-3]"])])
def test_on_one_device_the_bits_of_a_loop_from_half_of_the_bytes(given: Any) -> None:
    module = fit(SingleDeviceStrategy(activation_checkpointing=given))
    assert same_weights(module.net, by_hand())
    assert module.kept < 0.5 * fit("single_device").kept
    assert not any("forward" in vars(part) for part in module.modules())  # as before the run


def test_named_blocks_and_a_second_fit() -> None:
    strategy = SingleDeviceStrategy(activation_checkpointing=ActivationCheckpoint(blocks=["net.1"]))
    module = fit(strategy)
    whole = fit("single_device")
    every = fit(SingleDeviceStrategy(activation_checkpointing=True))
    assert every.kept < module.kept < whole.kept
    again = fit(strategy)
    assert again.kept == module.kept
    assert same_weights(again, module)


@pytest.mark.parametrize("save", [(), ["linear"]])
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(8), nn.BatchNorm1d(8, momentum=None), nn.InstanceNorm1d(16, 0.1, 0.1, True, True)]
)
def test_running_statistics_count_each_batch_once(norm: nn.Module, save: Any) -> None:
    def run(axis: Any) -> Net:
        module = Net()
        module.net[1].insert(0, copy.deepcopy(norm))
        torch.manual_seed(3)
        L.Trainer(**quiet.QUIET, max_epochs=2, activation_checkpointing=axis).fit(module, data())
        return module

    assert same_weights(run(ActivationCheckpoint(save=save)), run(None))


def test_next_to_modules_in_float32() -> None:
    precision = MixedPrecision("bf16-mixed", float32_modules=["net.1"])
    one = fit(SingleDeviceStrategy(activation_checkpointing=True), plugins=precision)
    other = fit("single_device", plugins=precision)
    assert same_weights(one, other)
    assert list(filter(lambda name: "forward" in vars(one.get_submodule(name)), ["net.0", "net.1"])) == ["net.1"]


def both(rank: int) -> Any:
    found = []
    for given in (True, False):
        module = fit(DDPStrategy(activation_checkpointing=given), devices=2, use_distributed_sampler=False)
        found.append((dict(module.net.state_dict()), module.kept))
    return found


@pytest.mark.processes
def test_under_ddp_the_bits_of_a_run_without_it() -> None:
    for (weights, kept), (plain, kept_without) in ranks(2, both):
        assert kept < 0.5 * kept_without
        for name, value in plain.items():
            assert weights[name].equal(value)
            assert not value.equal(network().state_dict()[name])


@pytest.mark.parametrize("strategy", [SingleDeviceStrategy, DDPStrategy])
@pytest.mark.parametrize("given", ["yes", 2, Compile()])
def test_what_is_refused(strategy: Any, given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"(?s)A strategy got .* for ActivationCheckpoint.*True or a A"):
        strategy(activation_checkpointing=given)


def test_a_module_without_such_blocks() -> None:
    with pytest.raises(MisconfigurationException, match=r"blocks='layers.\*' matches no module"):
        fit(SingleDeviceStrategy(activation_checkpointing=ActivationCheckpoint(blocks=["layers.*"])))
