"""GPUs: the calls to torch.cuda, with stand-ins; one test needs a real GPU."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightlib.accelerators import CUDAAccelerator, cuda, find_usable_cuda_devices
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import PossibleUserWarning

needs_gpu = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("two_gpus")
def test_devices():
    accelerator = CUDAAccelerator()
    assert accelerator.is_available()
    assert accelerator.auto_device_count() == 2
    assert accelerator.get_parallel_devices(accelerator.parse_devices("1,")) == [torch.device("cuda", 1)]
    assert accelerator.get_parallel_devices(accelerator.parse_devices(-1)) == [
        torch.device("cuda", 0),
        torch.device("cuda", 1),
    ]
    with pytest.raises(MisconfigurationException, match="asks for 3 cuda devices, but this machine has 2"):
        accelerator.parse_devices(3)


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize(
    ("built", "driver", "visible", "what", "fix"),
    [
        (
            None,
            None,
            None,
            "is built without CUDA; no NVIDIA driver was found; CUDA_VISIBLE_DEVICES is not set",
            "torch build",
        ),
        ("13.0", None, None, "is built for CUDA 13.0; no NVIDIA driver was found", "install the GPU's driver"),
        ("13.0", "550.54.15", "", "NVIDIA driver 550.54.15; CUDA_VISIBLE_DEVICES is ''", "unset CUDA_VISIBLE_DEVICES"),
        ("13.0", "550.54.15", None, "CUDA_VISIBLE_DEVICES is not set", "nvidia-smi lists a GPU"),
    ],
)
def test_why_there_is_none(monkeypatch, tmp_path, built, driver, visible, what, fix):
    version = tmp_path / "version"
    if driver:
        version.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Thu Mar 1\n")
    monkeypatch.setattr(cuda, "_DRIVER_FILE", version)
    monkeypatch.setattr(cuda.shutil, "which", lambda name: None)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    said, advised = CUDAAccelerator.why_unavailable()
    assert f"torch {torch.__version__} " in said
    assert what in said
    assert fix in advised


@pytest.mark.parametrize(
    ("name", "memory", "short"),
    [
        ("NVIDIA H100 80GB HBM3", 85_000_000_000, "H100 80GB"),
        ("NVIDIA A100-SXM4-40GB", 42_000_000_000, "A100-SXM4-40GB"),
        ("NVIDIA H200", 150_000_000_000, "H200 140GB"),
        ("NVIDIA GeForce RTX 4090", 25_386_352_640, "GeForce RTX 4090 24GB"),
        ("Tesla T4", 15_828_320_256, "T4 15GB"),
    ],
)
def test_describe(monkeypatch, name, memory, short):
    properties = SimpleNamespace(name=name, total_memory=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert CUDAAccelerator().describe(torch.device("cuda", 0)) == short


def test_setup_device(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    CUDAAccelerator().setup_device(torch.device("cuda", 1))
    assert current == [torch.device("cuda", 1)]
    with pytest.raises(MisconfigurationException, match="was given the device 'cpu'"):
        CUDAAccelerator().setup_device(torch.device("cpu"))


@pytest.mark.usefixtures("two_gpus")
def test_random_state_of_every_gpu(monkeypatch):
    restored = {}
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["a", "b"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index: restored.update({index: state}))
    accelerator = CUDAAccelerator()
    state = accelerator.rng_state()
    assert state == {"cuda": ["a", "b"]}
    accelerator.set_rng_state(state)
    assert restored == {0: "a", 1: "b"}


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("saved", "count"), [(["a"], 1), (["a", "b", "c"], 2)])
def test_random_state_of_another_number_of_gpus(monkeypatch, saved, count):
    restored = {}
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index: restored.update({index: state}))
    with pytest.warns(PossibleUserWarning, match=f"saved with {len(saved)} cuda devices, this machine has 2"):
        CUDAAccelerator().set_rng_state({"cuda": saved})
    assert len(restored) == count


def test_random_state_of_a_cpu_run_is_left_alone():
    CUDAAccelerator().set_rng_state({})


@pytest.mark.usefixtures("two_gpus")
def test_find_usable_skips_gpus_in_use(monkeypatch):
    def empty(size, device):
        if device.index == 0:
            raise RuntimeError("all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(torch, "empty", empty)
    assert find_usable_cuda_devices() == [1]
    assert find_usable_cuda_devices(1) == [1]
    assert find_usable_cuda_devices(0) == []
    with pytest.raises(MisconfigurationException, match=r"2 can be seen, 1 of them are usable: \[1\]") as caught:
        find_usable_cuda_devices(2)
    assert "Fix: find_usable_cuda_devices(1)" in str(caught.value)


@pytest.mark.usefixtures("no_gpus")
def test_find_usable_without_gpus():
    with pytest.raises(MisconfigurationException, match=r"0 can be seen.*What was looked at: torch"):
        find_usable_cuda_devices()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("number", [True, 1.5, "2", None])
def test_find_usable_wants_an_int(number):
    with pytest.raises(ArgumentTypeError, match=r"find_usable_cuda_devices\(num_devices="):
        find_usable_cuda_devices(number)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("number", [-2, 3])
def test_find_usable_wants_a_number_that_is_there(monkeypatch, number):
    monkeypatch.setattr(torch, "empty", lambda size, device: None)
    with pytest.raises(MisconfigurationException, match=f"{number} usable cuda device"):
        find_usable_cuda_devices(number)


class Driver:
    """Registers memory, or refuses it; as with CUDA, the next kernel raises an error that was not taken."""

    def __init__(self, refuses):
        self.refuses, self.pending, self.registered = refuses, False, []

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        self.pending = self.refuses
        self.registered += [] if self.refuses else [(address, size)]
        return int(self.refuses)

    def cudaHostUnregister(self, address):  # noqa: N802
        self.registered = [pair for pair in self.registered if pair[0] != address]

    def kernel(self, *sizes, device):
        was, self.pending = self.pending, False
        if was:
            raise RuntimeError("CUDA error: operation not supported")


@pytest.mark.parametrize("refuses", [False, True])
def test_memory_is_pinned_until_it_is_freed_and_a_refusal_raises_nowhere(monkeypatch, refuses):
    driver, memory = Driver(refuses), torch.zeros(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch, "ones", driver.kernel)
    CUDAAccelerator().pin(memory)
    assert driver.registered == ([] if refuses else [(memory.data_ptr(), 16)])
    driver.kernel(1, device="cuda")  # of the next step
    del memory
    assert driver.registered == []


@needs_gpu
def test_on_a_real_gpu():
    accelerator, device = CUDAAccelerator(), torch.device("cuda", 0)
    accelerator.setup_device(device)
    assert accelerator.describe(device).endswith("GB")
    state = accelerator.rng_state()
    first = torch.rand(4, device=device)
    accelerator.set_rng_state(state)
    assert torch.equal(first, torch.rand(4, device=device))
    assert accelerator.get_device_stats(device)["allocated_bytes.all.current"] > 0
    assert 0 in find_usable_cuda_devices()
    accelerator.synchronize()
    accelerator.teardown()
