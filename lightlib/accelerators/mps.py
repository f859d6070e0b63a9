"""The GPU of an Apple machine (Metal Performance Shaders)."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from lightlib import lazy
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.devices import device_indices
from lightlib.errors import owner


class MPSAccelerator(Accelerator):
    """The GPU of an Apple machine. There is never more than one.

    Example:
        >>> MPSAccelerator.name(), MPSAccelerator.default_backend
        ('mps', 'gloo')
    """

    priority: ClassVar[int] = 30
    is_gpu: ClassVar[bool] = True
    has_collectives: ClassVar[bool] = False
    has_float64: ClassVar[bool] = False

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        """Return ``[0]`` when `devices` asks for the one there is."""
        return device_indices(devices, MPSAccelerator.auto_device_count(), "mps")

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Return ``[torch.device('mps', 0)]``."""
        return [torch.device("mps", index) for index in MPSAccelerator.parse_devices(devices)]

    @staticmethod
    def auto_device_count() -> int:
        """One, or none."""
        return int(MPSAccelerator.is_available())

    @staticmethod
    def is_available() -> bool:
        """Return whether torch is built for Metal and macOS offers it."""
        return torch.backends.mps.is_available()

    @staticmethod
    def name() -> str:
        return "mps"

    @staticmethod
    def why_unavailable() -> tuple[str, str]:
        """Return the state of torch's build and the system."""
        system = f"{platform.system()} {platform.machine()}"
        built = "with" if torch.backends.mps.is_built() else "without"
        return (
            f"torch {torch.__version__} is built {built} MPS; the system is {system}",
            f"use an Apple machine with a recent macOS, or {owner()}(accelerator='cpu').",
        )

    def setup_device(self, device: torch.device) -> None:
        """Refuse a device that is not ``mps``; there is only one."""
        self._refuse_other_types(device, "mps")

    def teardown(self) -> None:
        """Give the memory that torch keeps in reserve back to the system."""
        torch.mps.empty_cache()

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return the bytes in use by tensors, those held from the driver, and the maximum that macOS recommends."""
        return {
            "mps_allocated_bytes": torch.mps.current_allocated_memory(),
            "mps_driver_allocated_bytes": torch.mps.driver_allocated_memory(),
            "mps_recommended_max_bytes": torch.mps.recommended_max_memory(),
        }

    def describe(self, device: torch.device) -> str:
        """Return the machine, such as ``'Apple GPU (arm64)'``."""
        return f"Apple GPU ({platform.machine()})"

    def rng_state(self) -> dict[str, Any]:
        """Return the state of the GPU's generator under ``'mps'``."""
        return {"mps": torch.mps.get_rng_state()}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        if "mps" in state:
            torch.mps.set_rng_state(state["mps"])

    def manual_seed(self, seed: int) -> None:
        torch.mps.manual_seed(seed)

    def synchronize(self) -> None:
        torch.mps.synchronize()


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
