"""ClosedFormLR: a schedule that depends on the step and the first learning rate alone."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightlib.errors import MisconfigurationException, check_int


class ClosedFormLR(LRScheduler):
    """The base class of lightlib's schedules: write `rate`, and call `super().__init__` last.

    The learning rate after n steps is computed from the optimizer's first one and from n, not from the one before, so
    a resumed run has the same values bit for bit, and with a `begin` in its configuration a schedule leaves the
    learning rate as it is until then.

    Args:
        optimizer: Any optimizer.
        warmup_steps: The number of first steps in which the learning rate rises: in step t (from 0 on) it is multiplied
            by (t + 1) / `warmup_steps`. Default 0.
        last_epoch: As in torch's schedules. Default -1: a new schedule.

    Example:
        >>> import torch
        >>> class Halves(ClosedFormLR):
        ...     def rate(self, base, step):
        ...         return base * 0.5**step
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
        >>> schedule = Halves(optimizer, warmup_steps=2)
        >>> rates = [optimizer.param_groups[0]["lr"]]
        >>> for _ in range(4):
        ...     optimizer.step()
        ...     schedule.step()
        ...     rates.append(optimizer.param_groups[0]["lr"])
        >>> rates
        [0.4, 0.8, 0.8, 0.4, 0.2]
    """

    closed_form = True  # for `core.optimization`: it may be called beyond its end, and may begin late

    def __init__(self, optimizer: Optimizer, warmup_steps: int = 0, last_epoch: int = -1) -> None:
        self.warmup_steps = step_count(self, "warmup_steps", warmup_steps)
        super().__init__(optimizer, last_epoch)

    def rate(self, base: Any, step: int) -> Any:
        """Return the learning rate of a group after the warm-up.

        Args:
            base: The group's first learning rate.
            step: Steps of the schedule since the warm-up.
        """
        raise NotImplementedError

    def get_lr(self) -> list[Any]:
        """Return the present learning rate of each group."""
        step = self.last_epoch
        if step < self.warmup_steps:
            return [base * ((step + 1) / self.warmup_steps) for base in self.base_lrs]
        return [self.rate(base, step - self.warmup_steps) for base in self.base_lrs]


class AnnealingLR(ClosedFormLR):
    """A schedule that ends after `total_steps`; the learning rate then stays."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_steps: int | float = 0, last_epoch: int = -1
    ) -> None:
        self.total_steps = step_count(self, "total_steps", total_steps, 1)
        warmup = in_steps(self, "warmup_steps", warmup_steps, self.total_steps)
        if warmup >= self.total_steps:
            raise MisconfigurationException(
                f"{type(self).__name__} got warmup_steps={warmup_steps!r} and total_steps={total_steps!r}.",
                expected="a warm-up that is shorter than the schedule.",
                fix=f"{type(self).__name__}(optimizer, total_steps=1000, warmup_steps=100)",
            )
        self.annealed_steps = self.total_steps - warmup
        super().__init__(optimizer, warmup, last_epoch)

    def part(self, step: int) -> float:
        """Return which part of the annealing has passed, from 0 to 1."""
        return min(1.0, step / self.annealed_steps)


def step_count(scheduler: object, name: str, value: int, least: int = 0) -> int:
    """Return an argument that has to be an int of at least `least`."""
    owner, meaning = type(scheduler).__name__, ", in steps of the schedule"
    return check_int(owner, name, value, least, meaning=meaning, example=100)


def in_steps(scheduler: object, name: str, value: Any, total: int) -> int:
    """Return an argument in steps; a float below 1 is a fraction of `total`."""
    if isinstance(value, float) and 0 <= value < 1:
        return int(value * total)
    return step_count(scheduler, name, value)
