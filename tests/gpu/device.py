"""The devices of `make gpu`: GPUs of this machine, or processes on the CPU that pretend to be some."""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import lightlib
from lightlib.accelerators import CPUAccelerator, CUDAAccelerator
from lightlib.errors import MisconfigurationException

MOST = 8  # devices that the cases are made for


class PretendedAccelerator(CPUAccelerator):
    """The CPU with streams, which torch has for it: they have all methods, and do nothing."""

    has_streams = True
    priority = 0

    @staticmethod
    def name() -> str:
        return "pretended"

    def describe(self, device: torch.device) -> str:
        return "CPU, pretended GPU"


@dataclass(frozen=True)
class Device:
    """The devices of a run; with `pretended`, the accelerator and the backend are the only differences.

    Attributes:
        pretended: Whether processes on the CPU take the place of GPUs.
        count: How many there are.
    """

    pretended: bool
    count: int

    @property
    def accelerator(self) -> Any:
        """The Trainer's argument."""
        return PretendedAccelerator() if self.pretended else "cuda"

    @property
    def type(self) -> str:
        return "cpu" if self.pretended else "cuda"

    @property
    def own(self) -> torch.device:
        """The device of this process."""
        return torch.device("cpu") if self.pretended else torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))

    def present(self) -> AbstractContextManager[Any]:
        """Return a context in which torch has an accelerator, so that batches are copied also to a pretended one."""
        return (
            mock.patch.object(torch.accelerator, "is_available", return_value=True) if self.pretended else nullcontext()
        )

    def busy(self, milliseconds: float) -> None:
        """Queue work on the current stream that takes about so long on a GPU of 1.5 GHz, and no memory."""
        if not self.pretended:
            torch.cuda._sleep(int(milliseconds * 1.5e6))

    def counts(self, multiple: int, most: int = MOST) -> list[int]:
        """Return for how many devices a case is made: as few as it can have, and as many as there are."""
        largest = min(most, self.count) // multiple * multiple
        return sorted({multiple, max(multiple, largest)})


def chosen(pretended: bool, devices: int | None) -> Device:
    """Return the devices of a run.

    Raises:
        MisconfigurationException: There is no GPU, or there are not that many.
    """
    if devices is not None and not 1 <= devices <= MOST:
        raise MisconfigurationException(
            f"--devices {devices}.",
            expected=f"a number from 1 to {MOST}.",
            fix="leave it out to use all that there are.",
        )
    if pretended:
        return Device(True, devices or 4)
    there = torch.cuda.device_count()  # does not initialize CUDA
    if not there:
        what, fix = CUDAAccelerator.why_unavailable()
        raise MisconfigurationException(
            f"There is no GPU: {what}.",
            expected="a machine where torch finds a CUDA device.",
            fix=f"{fix.partition(', or ')[0].rstrip('.')}; or --pretend, which runs everything on the CPU with gloo.",
        )
    if (devices or 1) > there:
        raise MisconfigurationException(
            f"--devices {devices}, but this machine has {there}.",
            expected=f"a number from 1 to {there}.",
            fix="leave it out to use all that there are.",
        )
    return Device(False, min(devices or there, MOST))


def facts(device: Device) -> dict[str, Any]:
    """Return the machine and the versions that results belong to; this initializes CUDA."""
    found = {"lightlib": lightlib.__version__, "torch": torch.__version__, "python": platform.python_version()}
    if device.pretended:
        return {"devices": ["pretended, CPU"] * device.count, "pretended": True, **found}
    names = [torch.cuda.get_device_name(index) for index in range(device.count)]
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "devices": names,
        "pretended": False,
        **found,
        "cuda": torch.version.cuda or torch.version.hip,
        "nccl": nccl,
    }


if __name__ == "__main__":  # in a process of its own: the command itself does not hold memory of a GPU
    print(json.dumps(facts(Device(sys.argv[1] == "pretended", int(sys.argv[2])))))
