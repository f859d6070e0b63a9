"""The CPU: always there; a 'device' is a process."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from lightlib import lazy, optional
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.devices import process_count


class CPUAccelerator(Accelerator):
    """The CPU. ``devices`` is the number of processes.

    Example:
        >>> CPUAccelerator().parse_devices("2")
        2
    """

    priority: ClassVar[int] = 10

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return process_count(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Return ``torch.device('cpu')`` once for each process."""
        return [torch.device("cpu")] * process_count(devices)

    @staticmethod
    def auto_device_count() -> int:
        """One process: torch already uses all cores from one."""
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "cpu"

    def setup_device(self, device: torch.device) -> None:
        """Refuse a device that is not the CPU."""
        self._refuse_other_types(device, "cpu")

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return how busy the machine is, in percent: memory, processors, swap. Needs the package psutil."""
        psutil = optional.load(
            "psutil", "CPUAccelerator.get_device_stats", otherwise="DeviceStatsMonitor(cpu_stats=False)"
        )
        return {
            "cpu_vm_percent": psutil.virtual_memory().percent,
            "cpu_percent": psutil.cpu_percent(),
            "cpu_swap_percent": psutil.swap_memory().percent,
        }

    def describe(self, device: torch.device) -> str:
        """Return ``'cpu'`` with the architecture, such as ``'cpu (x86_64)'``."""
        machine = platform.machine()
        return f"cpu ({machine})" if machine else "cpu"


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
