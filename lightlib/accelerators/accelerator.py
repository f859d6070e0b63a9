"""Accelerator: what a kind of device is, how many there are, and how to speak to one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

__all__ = ["Accelerator"]


class Accelerator(ABC):
    """One kind of device. It knows the hardware and nothing of processes, strategies or the run.

    The abstract methods are the same as Lightning's; the others have plain defaults. A package makes its own
    accelerator known by an entry point in the group ``lightlib.accelerators``.

    Attributes:
        default_backend: The `torch.distributed` backend for this kind of device.

    Example:
        >>> from lightlib.accelerators import CPUAccelerator
        >>> CPUAccelerator().get_parallel_devices(2)
        [device(type='cpu'), device(type='cpu')]
    """

    default_backend: ClassVar[str] = "gloo"

    @staticmethod
    @abstractmethod
    def parse_devices(devices: Any) -> Any:
        """Check what the user wrote for ``devices`` and return it in the form that `get_parallel_devices` takes."""

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

    @staticmethod
    def why_unavailable() -> tuple[str, str]:
        """Return what was looked at to find such a device, and what to do when there is none."""
        return "its is_available() returned False", "Trainer(accelerator='auto')"

    def setup_device(self, device: torch.device) -> None:
        """Make `device` the current one of this process, before anything is put on it."""

    def setup(self, trainer: Trainer) -> None:
        """Prepare for the run of `trainer`."""

    def teardown(self) -> None:
        """Give back what is held on the devices, at the end of a run."""

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return numbers about `device`, such as the memory in use."""
        return {}

    def describe(self, device: torch.device) -> str:
        """Return a short name of the hardware for people, such as ``'H100 80GB'``."""
        return str(device)

    def rng_state(self) -> dict[str, Any]:
        """Return the state of the devices' own random generators (the CPU's belongs to torch, not to a device)."""
        return {}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `rng_state` returned; entries of other kinds of devices are left alone."""

    def synchronize(self) -> None:
        """Wait until everything that was queued on the current device is done."""
