"""Accelerator: the interface of one kind of device, its abilities and its number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from lightlib.errors import MisconfigurationException, owner

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


class Accelerator(ABC):
    """One kind of device. It knows the hardware, but not processes, strategies or the run.

    The abstract methods are the same as Lightning's; the rest have defaults that promise nothing and are always
    correct. A package adds its own accelerator with an entry point in the group ``lightlib.accelerators``.

    Attributes:
        default_backend: The `torch.distributed` backend for this kind of device.
        device_type: The type of its `torch.device`; empty: the same as `name()`.
        priority: ``accelerator="auto"`` takes the available one with the largest number: MPS has 30, CUDA 20, the CPU
            10. With the default 0 an accelerator is used only by name.
        is_gpu: Whether ``accelerator="gpu"`` may choose it.
        has_streams: Whether `torch.get_device_module` has streams for it. Batches are then copied asynchronously, and
            the next one during a step.
        pins_memory: Whether the device copies faster from and to pinned memory of the CPU.
        has_collectives: Whether `default_backend` exchanges its tensors; without, only one process can train.
        has_float64: Whether the device computes in float64.
        has_ring_attention: Whether torch's ring attention runs on it.

    Example:
        >>> from lightlib.accelerators import CPUAccelerator
        >>> CPUAccelerator().get_parallel_devices(2)
        [device(type='cpu'), device(type='cpu')]
    """

    default_backend: ClassVar[str] = "gloo"
    device_type: ClassVar[str] = ""
    priority: ClassVar[int] = 0
    is_gpu: ClassVar[bool] = False
    has_streams: ClassVar[bool] = False
    pins_memory: ClassVar[bool] = False
    has_collectives: ClassVar[bool] = True
    has_float64: ClassVar[bool] = True
    has_ring_attention: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def parse_devices(devices: Any) -> Any:
        """Check the user's ``devices`` and return it in the form that `get_parallel_devices` takes."""

    @staticmethod
    @abstractmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Return the devices of this machine that a run uses, one for each process."""

    @staticmethod
    @abstractmethod
    def auto_device_count() -> int:
        """Return how many devices ``devices="auto"`` means."""

    @staticmethod
    @abstractmethod
    def is_available() -> bool:
        """Return whether this machine has such a device, without claiming any of its memory."""

    @staticmethod
    @abstractmethod
    def name() -> str:
        """Return the name that ``Trainer(accelerator=…)`` takes."""

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        """Register this class by name, as Lightning's `AcceleratorRegistry` asks it to; nothing by default."""

    @staticmethod
    def why_unavailable() -> tuple[str, str]:
        """Return where such a device was looked for, and how to fix it when there is none."""
        return "its is_available() returned False", f"{owner()}(accelerator='auto')"

    def setup_device(self, device: torch.device) -> None:
        """Make `device` the current one of this process, before anything is put on it."""

    def _refuse_other_types(self, device: torch.device, kind: str) -> None:
        """Raise for a device of another type; a subclass may have another name than its device's type."""
        if device.type != kind:
            raise MisconfigurationException(
                f"The {self.name().upper()} accelerator was given the device {str(device)!r}.",
                expected=f"a device of type {kind!r}.",
                fix=f"{owner()}(accelerator={device.type!r})",
            )

    def setup(self, trainer: Trainer) -> None:
        """Prepare for the run of `trainer`."""

    def teardown(self) -> None:
        """Release memory that is held on the devices, at the end of a run."""

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return numbers about `device`, such as the memory in use."""
        return {}

    def memory(self, device: torch.device) -> int | None:
        """Return the bytes of memory of `device`; None if they are not known, or shared by several processes."""
        return None

    def describe(self, device: torch.device) -> str:
        """Return a short name of the hardware for people, such as ``'H100 80GB'``."""
        return str(device)

    def rng_state(self) -> dict[str, Any]:
        """Return the state of the devices' own random generators (the CPU's belongs to torch, not to a device)."""
        return {}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `rng_state`; entries of other kinds of devices are ignored."""

    def manual_seed(self, seed: int) -> None:
        """Seed the generator of the current device. Nothing by default: the CPU's generator does not belong here."""

    def fork_rng(self, device: torch.device) -> AbstractContextManager[None]:
        """Return a context that restores the generators of the CPU and of the device afterwards."""
        return _restored(self)

    def device_ids(self, device: torch.device) -> list[int] | None:
        """Return `device_ids` for `DistributedDataParallel` and barriers; None for tensors without an index."""
        return None

    def group_device(self, device: torch.device) -> torch.device | None:
        """Return the device to bind process groups to and to exchange objects over; None: torch's choice."""
        return None

    def pin(self, memory: torch.Tensor) -> None:
        """Pin memory of the CPU in place, where `pins_memory` is True."""

    def synchronize(self) -> None:
        """Wait until everything that was queued on the current device is done."""


@contextmanager
def _restored(accelerator: Accelerator) -> Iterator[None]:
    of_cpu, before = torch.get_rng_state(), accelerator.rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(of_cpu)
        accelerator.set_rng_state(before)
