"""Schedules that end after a number of steps: cosine, flat, linear, polynomial, stable and decay."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from torch.optim import Optimizer

from lightlib.errors import check_number, check_word
from lightlib.schedulers.closed_form import AnnealingLR, in_steps, step_count

_Decay = Literal["linear", "cosine", "sqrt"]
_DECAYS: tuple[_Decay, ...] = get_args(_Decay)


def cosine(part: float) -> float:
    """Return 1 at the beginning and 0 at the end, along half a cosine."""
    return (1 + math.cos(math.pi * part)) / 2


class CosineAnnealingWarmupLR(AnnealingLR):
    """Half a cosine down to `eta_min` after a warm-up (Loshchilov and Hutter, arXiv:1608.03983, without restarts).

    Args:
        optimizer: Any optimizer.
        total_steps: Length of the schedule with its warm-up; a factory gets the run's optimizer steps.
        warmup_steps: Steps of the linear warm-up; a float below 1 is a fraction of `total_steps`.
        eta_min: The last learning rate.
        last_epoch: As torch's.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> CosineAnnealingWarmupLR(optimizer, total_steps=100, warmup_steps=0.1).get_last_lr()
        [0.1]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int | float = 0,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.eta_min = check_number(type(self).__name__, "eta_min", eta_min, least=0, example=1e-6)
        super().__init__(optimizer, total_steps, warmup_steps, last_epoch)

    def rate(self, base: Any, step: int) -> Any:
        return self.eta_min + (base - self.eta_min) * cosine(self.part(step))


class FlatAnnealingWarmupLR(AnnealingLR):
    """The first learning rate for `pct_start` of the steps after the warm-up, then half a cosine down to `eta_min`.

    Args:
        optimizer, total_steps, warmup_steps, eta_min, last_epoch: As those of `CosineAnnealingWarmupLR`.
        pct_start: The flat fraction, from 0 to 1.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int | float = 0,
        pct_start: float = 0.72,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.pct_start = check_number(type(self).__name__, "pct_start", pct_start, least=0, most=1, example=0.72)
        self.eta_min = check_number(type(self).__name__, "eta_min", eta_min, least=0, example=1e-6)
        super().__init__(optimizer, total_steps, warmup_steps, last_epoch)

    def rate(self, base: Any, step: int) -> Any:
        flat = int(self.annealed_steps * self.pct_start)
        part = min(1.0, max(0, step - flat) / max(1, self.annealed_steps - flat))
        return self.eta_min + (base - self.eta_min) * cosine(part)


class FlatAnnealingLR(FlatAnnealingWarmupLR):
    """`FlatAnnealingWarmupLR` without a warm-up.

    Args:
        optimizer, total_steps, pct_start, eta_min, last_epoch: As its.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        pct_start: float = 0.72,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, total_steps, 0, pct_start, eta_min, last_epoch)


class PolynomialWarmupLR(AnnealingLR):
    """A power of the part that is left: down to `eta_min` after a warm-up.

    Args:
        optimizer, total_steps, warmup_steps, eta_min, last_epoch: As those of `CosineAnnealingWarmupLR`.
        power: The exponent; 1 is a line.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int | float = 0,
        eta_min: float = 0.0,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.eta_min = check_number(type(self).__name__, "eta_min", eta_min, least=0, example=1e-6)
        self.power = check_number(type(self).__name__, "power", power, least=0, example=2.0)
        super().__init__(optimizer, total_steps, warmup_steps, last_epoch)

    def rate(self, base: Any, step: int) -> Any:
        return self.eta_min + (base - self.eta_min) * (1 - self.part(step)) ** self.power


class LinearWarmupLR(PolynomialWarmupLR):
    """A line down to 0 after a warm-up.

    Args:
        optimizer, total_steps, warmup_steps, last_epoch: As those of `CosineAnnealingWarmupLR`.
    """

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_steps: int | float = 0, last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, total_steps, warmup_steps, last_epoch=last_epoch)


class WarmupStableDecayLR(AnnealingLR):
    """WSD: a warm-up, the first learning rate, and a decay in the last `decay_steps` (Hu et al., arXiv:2404.06395).

    A run can be continued from a checkpoint of its stable part with another `total_steps`.

    Args:
        optimizer, total_steps, warmup_steps, eta_min, last_epoch: As those of `CosineAnnealingWarmupLR`.
        decay_steps: Steps of the decay; a float below 1 is a fraction of `total_steps`.
        decay: ``"linear"``, ``"cosine"``, or ``"sqrt"``, which is 1 - sqrt(part) (Hägele et al., arXiv:2405.18392).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int | float = 0,
        decay_steps: int | float = 0.2,
        eta_min: float = 0.0,
        decay: _Decay = "linear",
        last_epoch: int = -1,
    ) -> None:
        self.decay = check_word("WarmupStableDecayLR", "decay", decay, _DECAYS)
        self.eta_min = check_number(type(self).__name__, "eta_min", eta_min, least=0, example=1e-6)
        self.decay_steps = in_steps(self, "decay_steps", decay_steps, step_count(self, "total_steps", total_steps, 1))
        super().__init__(optimizer, total_steps, warmup_steps, last_epoch)

    def rate(self, base: Any, step: int) -> Any:
        decayed = min(self.annealed_steps, self.decay_steps)
        part = min(1.0, max(0, step - (self.annealed_steps - decayed)) / max(1, decayed))
        left = {"linear": 1 - part, "cosine": cosine(part), "sqrt": 1 - math.sqrt(part)}[self.decay]
        return self.eta_min + (base - self.eta_min) * left
