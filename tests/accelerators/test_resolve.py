"""Resolving the Trainer's `accelerator` and `devices` to an accelerator and its devices."""

import sys

import pytest
import torch

from lightlib import registry
from lightlib.accelerators import CPUAccelerator, CUDAAccelerator, MPSAccelerator, choose
from lightlib.accelerators.resolve import unused
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError

CPU = torch.device("cpu")


def machine(monkeypatch, *, gpus=0, mps=False):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.delattr(sys, "ps1", raising=False)


class Imagined(CPUAccelerator):
    """An accelerator of another package."""

    @staticmethod
    def name():
        return "imagined"

    @staticmethod
    def auto_device_count():
        return 2


@pytest.mark.parametrize(
    ("asked", "gpus", "mps", "kind"),
    [
        ("auto", 0, False, CPUAccelerator),
        ("auto", 2, False, CUDAAccelerator),
        ("auto", 2, True, MPSAccelerator),
        ("gpu", 2, False, CUDAAccelerator),
        ("gpu", 2, True, MPSAccelerator),
        ("gpu", 0, True, MPSAccelerator),
        ("cuda", 2, True, CUDAAccelerator),
        ("mps", 2, True, MPSAccelerator),
        ("cpu", 2, True, CPUAccelerator),
    ],
)
def test_which_accelerator(monkeypatch, asked, gpus, mps, kind):
    machine(monkeypatch, gpus=gpus, mps=mps)
    assert type(choose(asked)[0]) is kind


@pytest.mark.parametrize(
    ("devices", "indices"), [("auto", [0, 1, 2]), (-1, [0, 1, 2]), ("-1", [0, 1, 2]), (2, [0, 1]), ([2, 0], [2, 0])]
)
def test_which_gpus(monkeypatch, devices, indices):
    machine(monkeypatch, gpus=3)
    assert choose("gpu", devices)[1] == [torch.device("cuda", index) for index in indices]


@pytest.mark.parametrize(("devices", "count"), [("auto", 1), (1, 1), (3, 3), ("2", 2)])
def test_devices_of_the_cpu_are_processes(devices, count):
    assert choose("cpu", devices)[1] == [CPU] * count


@pytest.mark.parametrize("devices", [0, "0", []])
@pytest.mark.parametrize("accelerator", ["cpu", "gpu"])
def test_no_devices(monkeypatch, accelerator, devices):
    machine(monkeypatch, gpus=2)
    with pytest.raises(MisconfigurationException, match="devices="):
        choose(accelerator, devices)


def test_an_interactive_session_takes_one_gpu_and_says_so(monkeypatch, caplog):
    machine(monkeypatch, gpus=4)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr("lightlib.report.log.propagate", True)
    monkeypatch.setattr("lightlib.report.log.handlers", [])  # pytest adds its own where nothing is propagated
    with caplog.at_level("INFO", logger="lightlib"):
        assert choose("gpu")[1] == [torch.device("cuda", 0)]
    assert caplog.messages == ["Using 1 of 4 cuda devices in an interactive session; devices=4 uses all."]
    assert len(choose("gpu", -1)[1]) == 4


def test_gpu_without_one_says_what_was_probed(monkeypatch):
    machine(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(MisconfigurationException) as caught:
        choose("gpu")
    said = str(caught.value)
    assert "accelerator='gpu', but this machine has no GPU that torch can use." in said
    assert f"torch {torch.__version__} is built" in said
    assert "CUDA_VISIBLE_DEVICES is '3'" in said
    assert "mps: torch" in said
    assert "\n  Fix: " in said


def test_cuda_without_one_says_what_was_probed(monkeypatch):
    machine(monkeypatch)
    with pytest.raises(MisconfigurationException, match=r"accelerator='cuda', but .* no cuda device: torch .*driver"):
        choose("cuda")


def test_mps_without_one_says_what_was_probed(monkeypatch):
    machine(monkeypatch)
    with pytest.raises(MisconfigurationException, match=r"no mps device: torch .* is built .* MPS; the system is"):
        choose("mps")


@pytest.mark.parametrize("name", ["tpu", "hpu", "xla", "TPU"])
def test_hardware_that_is_not_supported(name):
    with pytest.raises(MisconfigurationException, match=f"accelerator='{name}' is not supported") as caught:
        choose(name)
    assert "Expected: 'auto', 'cpu', 'gpu', 'cuda' or 'mps'" in str(caught.value)
    assert "Fix: " in str(caught.value)


@pytest.mark.parametrize(
    ("accelerator", "gpus", "mps", "name"),
    [
        (CPUAccelerator(), 0, False, ""),
        (CPUAccelerator(), 2, False, "cuda"),
        (CPUAccelerator(), 0, True, "mps"),
        (CUDAAccelerator(), 2, False, ""),
        (Imagined(), 2, False, ""),
    ],
)
def test_a_gpu_that_a_run_on_the_cpu_leaves_unused(monkeypatch, accelerator, gpus, mps, name):
    machine(monkeypatch, gpus=gpus, mps=mps)
    assert unused(accelerator) == name


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("cuda:1", "Trainer(accelerator='cuda', devices=[1])"),
        ("GPU:0", "Trainer(accelerator='gpu', devices=[0])"),
        ("cpu:0", "Trainer(accelerator='cpu', devices=1)"),
    ],
)
def test_one_device_by_its_index_is_answered_with_that_index(name, fix):
    with pytest.raises(MisconfigurationException) as caught:
        choose(name)
    assert str(caught.value).splitlines()[0] == f"accelerator={name!r} names one device."
    assert str(caught.value).endswith(f"Fix: {fix}")


def test_an_unknown_name():
    with pytest.raises(UnknownNameError, match=r"Unknown accelerator 'cudda'. Did you mean 'cuda'\?"):
        choose("cudda")
    with pytest.raises(UnknownNameError, match=r"one of 'auto', 'cpu', 'cuda', 'gpu', 'mps'"):
        choose("nothing of the sort")
    with pytest.raises(UnknownNameError, match=r"Fix: Trainer\(accelerator='cpu'\)"):
        choose("CPU")


@pytest.mark.parametrize(
    ("accelerator", "what"),
    [(None, "NoneType"), (1, "int"), (CPUAccelerator, "not an instance"), (["cpu"], "list")],
)
def test_a_wrong_type(accelerator, what):
    with pytest.raises(ArgumentTypeError, match=what) as caught:
        choose(accelerator)
    assert "Fix: " in str(caught.value)


@pytest.mark.parametrize("devices", [True, 1.5, "abc", None, {}])
@pytest.mark.parametrize("accelerator", ["cpu", "gpu"])
def test_wrong_devices_have_three_part_errors(monkeypatch, accelerator, devices):
    machine(monkeypatch, gpus=2)
    with pytest.raises(MisconfigurationException) as caught:
        choose(accelerator, devices)
    what, expected, fix = str(caught.value).split("\n")
    assert f"devices={devices!r}" in what
    assert expected.startswith("  Expected: ")
    assert fix.startswith("  Fix: ")


def test_an_instance():
    accelerator = Imagined()
    assert choose(accelerator) == (accelerator, [CPU, CPU])
    assert choose(accelerator, 3)[1] == [CPU] * 3


def test_the_name_of_an_installed_package(monkeypatch):
    monkeypatch.setattr(registry, "names", lambda group: ["cpu", "imagined"])
    monkeypatch.setattr(registry, "get", lambda group, name: Imagined)
    assert isinstance(choose("imagined")[0], Imagined)
    monkeypatch.setattr(registry, "get", lambda group, name: dict)
    with pytest.raises(ArgumentTypeError, match=r"group .lightlib\.accelerators. made a dict"):
        choose("imagined")


def test_an_instance_that_is_not_available():
    class Absent(Imagined):
        @staticmethod
        def is_available():
            return False

    with pytest.raises(MisconfigurationException, match="this machine has no imagined device: its is_available"):
        choose(Absent())
