"""The CPU as an accelerator."""

import sys
from types import SimpleNamespace

import pytest
import torch

from lightlib.accelerators import CPUAccelerator
from lightlib.errors import MisconfigurationException

CPU = torch.device("cpu")


def test_devices_are_processes():
    accelerator = CPUAccelerator()
    assert accelerator.get_parallel_devices(accelerator.parse_devices("3")) == [CPU] * 3
    assert accelerator.auto_device_count() == 1
    assert accelerator.is_available()
    assert accelerator.default_backend == "gloo"


def test_nothing_of_the_device_needs_saving_or_waiting():
    accelerator = CPUAccelerator()
    accelerator.setup_device(CPU)
    assert accelerator.rng_state() == {}
    accelerator.synchronize()
    accelerator.teardown()
    assert accelerator.describe(CPU).startswith("cpu")


def test_another_device_is_refused():
    with pytest.raises(MisconfigurationException, match=r"was given the device 'cuda:0'.*\n.*\n.*accelerator='cuda'"):
        CPUAccelerator().setup_device(torch.device("cuda", 0))


def test_stats_come_from_psutil(monkeypatch):
    memory = SimpleNamespace(percent=12.5)
    monkeypatch.setitem(
        sys.modules,
        "psutil",
        SimpleNamespace(virtual_memory=lambda: memory, swap_memory=lambda: memory, cpu_percent=lambda: 50.0),
    )
    assert CPUAccelerator().get_device_stats(CPU) == {
        "cpu_vm_percent": 12.5,
        "cpu_percent": 50.0,
        "cpu_swap_percent": 12.5,
    }


def test_stats_without_psutil_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MisconfigurationException, match="pip install psutil"):
        CPUAccelerator().get_device_stats(CPU)
