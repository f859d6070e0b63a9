"""Schedules without an end of their own: constant, square root, milestones, cosine with restarts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch.optim import Optimizer

from lightlib.errors import MisconfigurationException, check_number
from lightlib.schedulers.annealing import cosine
from lightlib.schedulers.closed_form import ClosedFormLR, in_steps, step_count


class ConstantWarmupLR(ClosedFormLR):
    """The first learning rate, after a linear warm-up.

    Args:
        optimizer: Any optimizer.
        warmup_steps: Steps of the warm-up.
        last_epoch: As torch's.
    """

    def rate(self, base: Any, step: int) -> Any:
        return base


class InverseSquareRootLR(ClosedFormLR):
    """The learning rate falls with the square root of the steps after a warm-up (Vaswani et al., arXiv:1706.03762).

    Args:
        optimizer: Any optimizer; its learning rate is the highest.
        warmup_steps: Steps of the linear warm-up, at least 1.
        last_epoch: As torch's.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int, last_epoch: int = -1) -> None:
        super().__init__(optimizer, step_count(self, "warmup_steps", warmup_steps, 1), last_epoch)

    def rate(self, base: Any, step: int) -> Any:
        return base * math.sqrt(self.warmup_steps / (self.warmup_steps + step + 1))


class MultiStepWarmupLR(ClosedFormLR):
    """The learning rate is multiplied by `gamma` at each milestone, after a warm-up.

    Args:
        optimizer: Any optimizer.
        milestones: Steps since the beginning, ascending; floats below 1 are fractions of `total_steps`.
        warmup_steps: Steps of the linear warm-up, at most the first milestone.
        gamma: The factor.
        total_steps: For milestones that are fractions; a factory gets the run's optimizer steps.
        last_epoch: As torch's.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int | float],
        warmup_steps: int = 0,
        gamma: float = 0.1,
        total_steps: int | None = None,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None and any(isinstance(milestone, float) for milestone in milestones):
            raise MisconfigurationException(
                f"MultiStepWarmupLR got milestones={list(milestones)!r}, which are fractions, and no total_steps.",
                expected="total_steps, or milestones in steps.",
                fix="MultiStepWarmupLR(optimizer, milestones=[0.6, 0.9], total_steps=1000)",
            )
        self.milestones = [in_steps(self, "milestones", milestone, total_steps or 0) for milestone in milestones]
        if self.milestones != sorted(self.milestones) or (self.milestones and self.milestones[0] < warmup_steps):
            raise MisconfigurationException(
                f"MultiStepWarmupLR got milestones={list(milestones)!r} with warmup_steps={warmup_steps!r}.",
                expected="ascending milestones after the warm-up.",
                fix="MultiStepWarmupLR(optimizer, milestones=[300, 800], warmup_steps=100)",
            )
        self.gamma = check_number(type(self).__name__, "gamma", gamma, least=0, example=0.1)
        super().__init__(optimizer, warmup_steps, last_epoch)

    def rate(self, base: Any, step: int) -> Any:
        return base * self.gamma ** bisect_right(self.milestones, step + self.warmup_steps)


class CosineRestartLR(ClosedFormLR):
    """Cosines of given lengths and heights, one after the other (SGDR: Loshchilov and Hutter, arXiv:1608.03983).

    After the last one the learning rate stays at its end.

    Args:
        optimizer: Any optimizer.
        periods: Steps of each cosine.
        restart_weights: The height of each cosine, as a multiple of the first learning rate. Default: 1.
        eta_min: The learning rate at the end of each.
        warmup_steps: Steps of the linear warm-up before the first.
        last_epoch: As torch's.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        periods: Sequence[int],
        restart_weights: Sequence[float] | None = None,
        eta_min: float = 0.0,
        warmup_steps: int = 0,
        last_epoch: int = -1,
    ) -> None:
        self.periods = [step_count(self, "periods", period, 1) for period in periods]
        self.restart_weights = [1.0] * len(self.periods) if restart_weights is None else list(restart_weights)
        if not self.periods or len(self.restart_weights) != len(self.periods):
            raise MisconfigurationException(
                f"CosineRestartLR got periods={list(periods)!r} and restart_weights={restart_weights!r}.",
                expected="at least one period, and as many weights as periods.",
                fix="CosineRestartLR(optimizer, periods=[100, 200], restart_weights=[1, 0.5])",
            )
        self.eta_min = check_number(type(self).__name__, "eta_min", eta_min, least=0, example=1e-6)
        super().__init__(optimizer, warmup_steps, last_epoch)

    def rate(self, base: Any, step: int) -> Any:
        ends = list(accumulate(self.periods))
        i = min(bisect_right(ends, step), len(ends) - 1)
        part = min(1.0, (step - (ends[i] - self.periods[i])) / self.periods[i])
        return self.eta_min + (base * self.restart_weights[i] - self.eta_min) * cosine(part)
