"""Data parallel in one process, on the CPU: numbers of a plain loop, and the name "dp"."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lightlib
from lightlib.errors import MisconfigurationException
from lightlib.fabric.data_parallel import DataParallelStrategy


def make():
    return lightlib.Fabric(accelerator="cpu", devices=2, strategy=DataParallelStrategy())


def test_a_loop_computes_as_a_plain_one():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    plain, batches = copy.deepcopy(module), list(torch.randn(6, 8, 3))
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        plain(batch).square().mean().backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
    fabric = make()
    fabric.launch()
    model, stepper = fabric.setup(module, torch.optim.Adam(module.parameters(), lr=0.1))
    for batch in fabric.setup_dataloaders(batches):
        stepper.zero_grad()
        with fabric.no_backward_sync(model):
            fabric.backward(model(batch).square().mean())
        fabric.clip_gradients(model, stepper, max_norm=0.5)
        stepper.step()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True))
    fabric.save("dp.ckpt", {"model": model, "optimizer": stepper})
    assert sorted(torch.load("dp.ckpt")["model"]) == sorted(plain.state_dict())


def test_forward_goes_through_torchs_data_parallel(monkeypatch):
    called = []
    forward = nn.DataParallel.forward

    def noted(self, *args, **kwargs):
        called.append(type(self.module).__name__)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(nn.DataParallel, "forward", noted)
    model = make().setup(nn.Linear(2, 1))
    assert model(torch.ones(4, 2)).shape == (4, 1)
    assert called == ["Linear"]


def test_there_is_one_process_and_all_reduce_is_the_mean_of_the_elements():
    fabric = make()
    # these three are those of Lightning 2.6.6
    assert fabric.all_reduce(torch.tensor([1.0, 2.0, 6.0])).item() == 3.0
    assert fabric.all_reduce(torch.tensor([1, 2]), reduce_op="sum").tolist() == 1
    assert fabric.all_gather(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert (fabric.world_size, fabric.strategy.root_device.type, len(fabric.strategy.devices)) == (1, "cpu", 2)


def test_the_name_gives_ddp_on_the_cpu():
    with pytest.warns(UserWarning, match="strategy='dp'. uses 'ddp'"):
        fabric = lightlib.Fabric(accelerator="cpu", devices=1, strategy="dp")
    assert (
        fabric.strategy.describe() == lightlib.Fabric(accelerator="cpu", devices=1, strategy="ddp").strategy.describe()
    )


def test_a_subclass_is_refused():
    class Mine(DataParallelStrategy):
        pass

    with pytest.raises(MisconfigurationException, match="Mine derives from DataParallelStrategy"):
        Mine()


def test_a_trainer_does_not_have_it():
    with pytest.raises(MisconfigurationException, match="'dp'"):
        lightlib.Trainer(accelerator="cpu", devices=2, strategy="dp")
