"""Strategies and precisions: the weights after a few steps are those of a plain loop on one device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from tests.gpu import training
from tests.gpu.case import Case, Figures
from tests.gpu.device import Device


def cases(device: Device, precisions: Sequence[str]) -> list[Case]:
    return training.cases(list(training.WAYS), device, precisions)


def run(name: str, device: Device) -> Figures:
    row, _, precision = name.partition("/")
    strategy = training.strategy(row)
    found = training.trained(strategy, training.ranks_of(row), precision, device)
    return training.check(found, reference(precision, device), precision) if found else {}


@lru_cache
def reference(precision: str, device: Device) -> dict[str, Tensor]:
    """Return the weights of the plain loop, which each rank runs on its own device."""
    return training.by_hand(precision, device.own)
