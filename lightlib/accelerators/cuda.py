"""NVIDIA and AMD GPUs, both of which torch calls cuda."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from lightlib import lazy
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.devices import device_indices
from lightlib.errors import MisconfigurationException, owner, wrong_type
from lightlib.report import PossibleUserWarning, warn

_DRIVER_FILE = Path("/proc/driver/nvidia/version")


class CUDAAccelerator(Accelerator):
    """GPUs that torch calls ``cuda``.

    Example:
        >>> CUDAAccelerator.name(), CUDAAccelerator.default_backend
        ('cuda', 'nccl')
    """

    default_backend: ClassVar[str] = "nccl"
    priority: ClassVar[int] = 20
    is_gpu: ClassVar[bool] = True
    has_streams: ClassVar[bool] = True
    pins_memory: ClassVar[bool] = True
    has_ring_attention: ClassVar[bool] = True

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        """Return the indices of the GPUs that `devices` asks for; -1 is all of them."""
        return device_indices(devices, torch.cuda.device_count(), "cuda")

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Return one ``cuda:i`` for each index."""
        return [torch.device("cuda", index) for index in CUDAAccelerator.parse_devices(devices)]

    @staticmethod
    def auto_device_count() -> int:
        """All GPUs that this process can see."""
        return torch.cuda.device_count()

    @staticmethod
    def is_available() -> bool:
        """Return whether a GPU can be seen. CUDA is not initialised by asking, so processes can still be forked."""
        return torch.cuda.device_count() > 0

    @staticmethod
    def name() -> str:
        return "cuda"

    @staticmethod
    def why_unavailable() -> tuple[str, str]:
        """Return the state of torch's build, the driver and ``CUDA_VISIBLE_DEVICES``."""
        built_for, driver, visible = _built_for(), _driver(), os.environ.get("CUDA_VISIBLE_DEVICES")
        build = f"is built for {built_for}" if built_for else "is built without CUDA"
        problem = (
            f"torch {torch.__version__} {build}; {driver or 'no NVIDIA driver was found'}; CUDA_VISIBLE_DEVICES is "
            + ("not set" if visible is None else repr(visible))
        )
        if not built_for:
            fix = f"install a torch build with CUDA (pytorch.org/get-started/locally), or {owner()}(accelerator='cpu')."
        elif not driver:
            fix = f"install the GPU's driver, or start the container with its GPUs, or {owner()}(accelerator='cpu')."
        elif visible is not None:
            fix = f"unset CUDA_VISIBLE_DEVICES or name the GPUs that are there, or {owner()}(accelerator='cpu')."
        else:
            fix = f"see whether nvidia-smi lists a GPU and the driver is new enough, or {owner()}(accelerator='cpu')."
        return problem, fix

    def setup_device(self, device: torch.device) -> None:
        """Make `device` the current GPU of this process."""
        self._refuse_other_types(device, "cuda")
        torch.cuda.set_device(device)

    def teardown(self) -> None:
        """Give the memory that torch keeps in reserve back to the driver."""
        torch.cuda.empty_cache()

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return `torch.cuda.memory_stats`: the allocator's counters."""
        return dict(torch.cuda.memory_stats(device))

    def memory(self, device: torch.device) -> int | None:
        return int(torch.cuda.get_device_properties(device).total_memory)

    def describe(self, device: torch.device) -> str:
        """Return model and memory, such as ``'H100 80GB'``."""
        properties = torch.cuda.get_device_properties(device)
        model = re.sub(r"^(NVIDIA|AMD|Tesla)\s+", "", properties.name)
        with_memory = re.match(r".*?\d+\s*GB", model)
        return with_memory.group() if with_memory else f"{model} {round(properties.total_memory / 2**30)}GB"

    def rng_state(self) -> dict[str, Any]:
        """Return the state of every GPU's generator, in a list under ``'cuda'``."""
        return {"cuda": torch.cuda.get_rng_state_all()}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        """Restore the GPUs' generators; warns when the state comes from a machine with another number of them."""
        states = state.get("cuda")
        if states is None:
            return
        count = torch.cuda.device_count()
        if len(states) != count:
            warn(
                f"The random state was saved with {len(states)} cuda devices, this machine has {count}: "
                f"restored for the first {min(len(states), count)}. Random numbers on the rest will differ.",
                PossibleUserWarning,
            )
        for index, device_state in zip(range(count), states, strict=False):
            torch.cuda.set_rng_state(device_state, index)

    def manual_seed(self, seed: int) -> None:
        torch.cuda.manual_seed(seed)

    def fork_rng(self, device: torch.device) -> AbstractContextManager[None]:
        """Restore the CPU's generator and that of `device` afterwards."""
        return torch.random.fork_rng(devices=[device])

    def device_ids(self, device: torch.device) -> list[int]:
        """Return the index of `device`."""
        return [device.index or 0]

    def group_device(self, device: torch.device) -> torch.device:
        """Return `device`, to which NCCL's communicators are bound."""
        return device

    def pin(self, memory: torch.Tensor) -> None:
        """Register `memory` with the driver. Torch's own pinned memory has sizes of powers of two: up to twice as much.

        If the driver refuses, copies are slower, but correct.
        """
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0:
            weakref.finalize(memory, _unpin, memory.data_ptr())
            return
        with contextlib.suppress(RuntimeError):  # the refusal is pending, and the next kernel of this thread raises it
            torch.ones(1, device="cuda")

    def synchronize(self) -> None:
        torch.cuda.synchronize()


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """Return the indices of GPUs on which memory can be had.

    A GPU in exclusive mode that another process holds is seen but not usable. Looking initialises CUDA in this process.

    Args:
        num_devices: How many are needed; -1 for all that are usable, 0 for none.

    Raises:
        ArgumentTypeError: `num_devices` is not an int.
        MisconfigurationException: There are not that many GPUs, or not that many of them are usable.

    Example:
        >>> find_usable_cuda_devices(0)
        []
    """
    if type(num_devices) is not int:
        raise wrong_type("find_usable_cuda_devices", "num_devices", num_devices, "an int: how many, or -1 for all", 2)
    if num_devices == 0:
        return []
    count = torch.cuda.device_count()
    usable: list[int] = []
    for index in range(count):
        if _is_usable(index):
            usable.append(index)
        if len(usable) == num_devices:
            return usable
    if num_devices == -1 and usable:
        return usable
    problem, fix = CUDAAccelerator.why_unavailable()
    needed = "Usable cuda devices are" if num_devices == -1 else f"{num_devices} usable cuda device(s) are"
    raise MisconfigurationException(
        f"{needed} needed; {count} can be seen, {len(usable)} of them are usable: {usable}."
        + ("" if count else f" What was looked at: {problem}."),
        expected="an int from 0 to the number of usable devices, or -1 for all of them.",
        fix=f"find_usable_cuda_devices({len(usable)}), or free the GPUs that other processes hold." if count else fix,
    )


def _unpin(address: int) -> None:
    with contextlib.suppress(RuntimeError):
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _is_usable(index: int) -> bool:
    try:
        torch.empty(1, device=torch.device("cuda", index))
    except RuntimeError:
        return False
    return True


def _built_for() -> str:
    builds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    return " and ".join(f"{name} {version}" for name, version in builds.items() if version is not None)


def _driver() -> str:
    if _DRIVER_FILE.is_file():
        version = re.search(r"\d+\.\d+(\.\d+)?", _DRIVER_FILE.read_text())
        return f"NVIDIA driver {version.group() if version else '(version unknown)'}"
    if shutil.which("nvidia-smi"):
        return "an NVIDIA driver is installed (nvidia-smi)"
    return "an AMD driver is installed (/dev/kfd)" if Path("/dev/kfd").exists() else ""


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
