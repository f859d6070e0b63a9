"""The GPU of an Apple machine, with a stand-in for torch's functions."""

import pytest
import torch

from lightlib import Trainer
from lightlib.accelerators import MPSAccelerator
from lightlib.errors import MisconfigurationException


@pytest.fixture
def apple(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


@pytest.mark.usefixtures("apple")
@pytest.mark.parametrize("devices", [1, "1", -1, [0], "0,", "auto"])
def test_there_is_one(devices):
    accelerator = MPSAccelerator()
    assert accelerator.get_parallel_devices(accelerator.parse_devices(devices)) == [torch.device("mps", 0)]


@pytest.mark.usefixtures("apple")
def test_there_are_never_two():
    with pytest.raises(MisconfigurationException, match="asks for 2 mps devices, but this machine has 1"):
        MPSAccelerator.parse_devices(2)


def test_why_there_is_none():
    what, fix = MPSAccelerator.why_unavailable()
    assert f"torch {torch.__version__} is built " in what
    assert "Trainer(accelerator='cpu')" in fix


def test_another_device_is_refused():
    accelerator = MPSAccelerator()
    accelerator.setup_device(torch.device("mps", 0))
    with pytest.raises(MisconfigurationException, match="was given the device 'cpu'"):
        accelerator.setup_device(torch.device("cpu"))


def test_state_stats_and_waiting_go_to_torch(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: "state")
    monkeypatch.setattr(torch.mps, "set_rng_state", calls.append)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: calls.append("empty_cache"))
    for number, name in enumerate(("current_allocated_memory", "driver_allocated_memory", "recommended_max_memory")):
        monkeypatch.setattr(torch.mps, name, lambda number=number: number)
    accelerator, device = MPSAccelerator(), torch.device("mps", 0)
    accelerator.set_rng_state(accelerator.rng_state())
    accelerator.set_rng_state({})
    accelerator.synchronize()
    accelerator.teardown()
    assert calls == ["state", "synchronize", "empty_cache"]
    assert list(accelerator.get_device_stats(device).values()) == [0, 1, 2]
    assert accelerator.describe(device).startswith("Apple GPU")


@pytest.mark.usefixtures("apple")
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "fsdp", "tensor"])
def test_strategies_of_several_processes_are_refused(strategy):
    with pytest.raises(MisconfigurationException, match=r"with accelerator='mps'(?s:.*)strategy='auto'"):
        Trainer(accelerator="mps", strategy=strategy, max_epochs=1, logger=False)
