"""Accelerators: kinds of hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy
from lightlib.accelerators.accelerator import Accelerator as Accelerator
from lightlib.accelerators.cpu import CPUAccelerator as CPUAccelerator
from lightlib.accelerators.cuda import CUDAAccelerator as CUDAAccelerator
from lightlib.accelerators.cuda import find_usable_cuda_devices as find_usable_cuda_devices
from lightlib.accelerators.mps import MPSAccelerator as MPSAccelerator
from lightlib.accelerators.resolve import choose as choose

__all__ = [
    "Accelerator",
    "CPUAccelerator",
    "CUDAAccelerator",
    "MPSAccelerator",
    "choose",
    "find_usable_cuda_devices",
]


if not TYPE_CHECKING:
    __getattr__ = lazy.lightning_names(__name__)
