"""Find accelerators: all that are known, and the one of a torch device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from lightlib import registry
from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import ArgumentTypeError

_cache: dict[str, Accelerator] = {}  # by type of device


def of(device: torch.device) -> Accelerator:
    """Return the accelerator of a device; for a type of device that none knows, one that promises nothing.

    Example:
        >>> of(torch.device("cpu")).name(), of(torch.device("meta")).has_streams
        ('cpu', False)
    """
    return _cache.get(device.type) or by_device_type(device.type) or _Unknown(device.type)


def by_device_type(kind: str) -> Accelerator | None:
    """Return the accelerator of a type of device, built in or of an installed package; None when none knows it."""
    if kind not in _cache:
        built_in = kind in registry.BUILT_IN["accelerators"]
        every = map(new_accelerator, [kind] if built_in else registry.names("accelerators"))
        match = next(
            (accelerator for accelerator in every if (accelerator.device_type or accelerator.name()) == kind), None
        )
        if match is None:
            return None
        _cache[kind] = match
    return _cache[kind]


def by_priority() -> list[Accelerator]:
    """Return all accelerators, also those of installed packages, in the order in which ``"auto"`` tries them."""
    accelerators = [new_accelerator(name) for name in registry.names("accelerators")]
    return sorted(accelerators, key=lambda accelerator: -accelerator.priority)


def new_accelerator(name: str) -> Accelerator:
    """Return a new accelerator by its name in the registry."""
    accelerator = registry.get("accelerators", name)()
    if not isinstance(accelerator, Accelerator):
        raise ArgumentTypeError(
            f"The entry point {name!r} of group 'lightlib.accelerators' made a {type(accelerator).__name__}.",
            expected="a subclass of lightlib.accelerators.Accelerator.",
            fix="correct the entry point in the package that declares it.",
        )
    return accelerator


class _Unknown(Accelerator):
    """A type of device for which no accelerator is installed, such as ``meta`` or ``xpu``."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:  # noqa: ARG004  no device to choose from
        return []

    @staticmethod
    def auto_device_count() -> int:
        return 0

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def name() -> str:
        return "unknown"

    def fork_rng(self, device: torch.device) -> AbstractContextManager[None]:
        """Keep the device's generator too, if the device is the one that torch was built for."""
        current = torch.accelerator.current_accelerator()
        if current is not None and current.type == self._kind:
            return torch.random.fork_rng([device], device_type=self._kind)
        return super().fork_rng(device)
