"""PretendAccelerator: a card that exists only by name and computes on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from lightlib.accelerators import Accelerator
from lightlib.errors import MisconfigurationException

__all__ = ["PretendAccelerator"]

_CARDS = 2


class PretendAccelerator(Accelerator):
    """Two pretend cards.

    Real hardware sets `device_type` to the type of its `torch.device`, and `priority` and `is_gpu` to take part in
    ``accelerator="auto"`` and ``"gpu"``.
    """

    default_backend: ClassVar[str] = "gloo"

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """Return the number of cards to use."""
        try:
            count = _CARDS if devices in ("auto", -1, "-1") else int(str(devices))
        except ValueError:
            count = 0
        if not 1 <= count <= _CARDS:
            raise MisconfigurationException(
                f"devices={devices!r} was given for the pretend card.",
                expected=f"a number from 1 to {_CARDS}, or 'auto' for all.",
                fix="Trainer(accelerator='pretend', devices=1)",
            )
        return count

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [torch.device("cpu")] * devices

    @staticmethod
    def auto_device_count() -> int:
        return _CARDS

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "pretend"

    def describe(self, device: torch.device) -> str:
        return "pretend card"

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        return {"threads": torch.get_num_threads()}

    # Random numbers that dropout would draw on a card. Those of the CPU are saved and restored by lightlib.
    def rng_state(self) -> dict[str, Any]:
        return {"pretend": self._generator.get_state()}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        if "pretend" in state:
            self._generator.set_state(state["pretend"])

    def manual_seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)
