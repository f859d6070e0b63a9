"""ParamScheduler: a learning-rate schedule that moves momentum, betas or weight decay instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_type


class ParamScheduler:
    """Moves one option of an optimizer's groups as a scheduler would move the learning rate.

    Return it next to the learning-rate schedule, as in ``return [optimizer], [lr_schedule, ParamScheduler(…)]``. Each
    of them has its own `interval`.

    Args:
        optimizer: Any optimizer.
        param: An option of its groups: ``"momentum"``, ``"weight_decay"``, or ``"betas.0"`` for the first of a tuple.
        scheduler: Called with an optimizer whose learning rate stands for the option: any of torch's or lightlib's
            schedulers in a `functools.partial`.

    Raises:
        MisconfigurationException: The optimizer has no such option, or it is no number.
        ArgumentTypeError: `scheduler` cannot be called, or returns an object without `step` and `state_dict`.

    Example:
        >>> from functools import partial
        >>> import torch
        >>> from torch.optim.lr_scheduler import LinearLR
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.8)
        >>> schedule = ParamScheduler(optimizer, "momentum", partial(LinearLR, start_factor=0.5, total_iters=4))
        >>> optimizer.param_groups[0]["momentum"]
        0.4
        >>> schedule.step()
        >>> optimizer.param_groups[0]["momentum"]
        0.5
    """

    def __init__(self, optimizer: Optimizer, param: str, scheduler: Callable[[Any], Any]) -> None:
        super().__init__()
        expected = "a class of scheduler, or a function that takes an optimizer"
        check_type("ParamScheduler", "scheduler", scheduler, Callable, expected, "partial(LinearLR, total_iters=100)")
        self._optimizer, self.param = optimizer, param
        key, _, index = str(param).partition(".")
        self._key, self._index = key, int(index) if index.isdigit() else None
        values = [self._read(group) for group in optimizer.param_groups]
        self._stand_in = SGD([{"params": [torch.zeros(1)], "lr": value} for value in values], lr=0.0)
        self.scheduler = scheduler(self._stand_in)
        if not hasattr(self.scheduler, "step") or not hasattr(self.scheduler, "state_dict"):
            raise ArgumentTypeError(
                f"ParamScheduler's scheduler returned {self.scheduler!r:.60} ({type(self.scheduler).__name__}).",
                expected="an object with `step` and `state_dict`.",
                fix=f"ParamScheduler(optimizer, {param!r}, partial(LinearLR, total_iters=100))",
            )
        self._stand_in.step()  # torch's schedulers expect an optimizer step before their own
        self._write()

    def step(self, *args: Any) -> None:
        """Step the scheduler, with the metric if it reads one, and give its values to the optimizer."""
        self.scheduler.step(*args)
        self._write()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler and the present values."""
        return {"scheduler": self.scheduler.state_dict(), "values": self.get_last_value()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`, and write the values into the optimizer."""
        self.scheduler.load_state_dict(state["scheduler"])
        for group, value in zip(self._stand_in.param_groups, state["values"], strict=True):
            group.update(lr=value)
        self._write()

    def get_last_value(self) -> list[Any]:
        """Return the present value of each group."""
        return [group["lr"] for group in self._stand_in.param_groups]

    def _read(self, group: dict[str, Any]) -> float:
        value = group.get(self._key)
        if self._index is not None and isinstance(value, (tuple, list)) and self._index < len(value):
            value = value[self._index]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            numbers = [
                f"{name}.{i}" if isinstance(option, (tuple, list)) else name
                for name, option in group.items()
                for i in range(len(option) if isinstance(option, (tuple, list)) and name != "params" else 1)
                if name != "params" and isinstance(option, (int, float, tuple, list)) and not isinstance(option, bool)
            ]
            raise MisconfigurationException(
                f"ParamScheduler got param={self.param!r}, which is {value!r:.60} in {type(self._optimizer).__name__}.",
                expected=f"an option that is a number: {', '.join(numbers)}.",
                fix=f"ParamScheduler(optimizer, {numbers[-1]!r}, …)",
            )
        return float(value)

    def _write(self) -> None:
        for group, value in zip(self._optimizer.param_groups, self.get_last_value(), strict=False):
            if self._index is None:
                group[self._key] = value
            else:
                parts = list(group[self._key])
                parts[self._index] = value
                group[self._key] = type(group[self._key])(parts)
