"""PerParameter: base of these optimizers, with the loop over parameters and the checks of options."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from lightlib.errors import MisconfigurationException, wrong_type, wrong_value

_EXAMPLES: dict[str, Any] = {
    "lr": 0.001,
    "muon_lr": 0.02,
    "betas": (0.9, 0.99),
    "eps": 1e-6,
    "momentum": 0.9,
    "trust_coefficient": 0.001,
    "weight_decay": 0.01,
    "maximize": True,
}


class PerParameter(Optimizer, ABC):
    """An optimizer that steps one parameter after the other.

    Nothing in a step waits for the device: norms stay tensors, and steps are counted on the CPU.
    The options of every group are checked, also those of a group that is added later.

    Args:
        params: Parameters, named parameters, or groups of them.
        defaults: The options of groups that do not set them.
    """

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)

    @abstractmethod
    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Step one parameter in place. All tensors are real.

        Args:
            parameter: The parameter.
            gradient: Its gradient; negated where `maximize` is set.
            state: The state of this parameter; empty at its first step.
            group: The options.
        """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all parameters that have a gradient.

        Args:
            closure: Computes the loss and the gradients again.

        Returns:
            The closure's result, or None.

        Raises:
            MisconfigurationException: A gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.step_group(group)
        return loss

    def step_group(self, group: dict[str, Any]) -> None:
        """Step the parameters of a group that have a gradient."""
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient = self._dense(parameter.grad)
                gradient = -gradient if group["maximize"] else gradient
                self.step_parameter(_real(parameter), _real(gradient), self.state[parameter], group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; options that it does not set are those of the optimizer.

        Raises:
            ArgumentTypeError: An option has the wrong type.
            MisconfigurationException: An option is out of its range.
        """
        if isinstance(param_group, dict):  # torch raises the error for any other type
            for name, value in {**self.defaults, **param_group}.items():
                self._check(name, value)
        super().add_param_group(param_group)

    def _check(self, name: str, value: Any) -> None:
        if name not in _EXAMPLES:
            return
        below = 1.0 if name in ("betas", "momentum") else math.inf
        several = isinstance(value, (tuple, list)) and len(value) == 2
        if name == "maximize":
            right, requirement = isinstance(value, bool), "a bool"
        elif name == "betas":
            right, requirement = several and all(map(_is_number, value)), "two numbers"
        else:
            right, requirement = _is_number(value), "a number"
        within = (
            not right or name == "maximize" or all(0 <= number < below for number in (value if several else (value,)))
        )
        if not (right and within):
            interval = "" if name == "maximize" else " in [0, 1)" if below == 1 else " >= 0"
            error = wrong_value if right else wrong_type
            raise error(type(self).__name__, name, value, f"{requirement}{interval}", repr(_EXAMPLES[name]))

    def _dense(self, gradient: Tensor) -> Tensor:
        if gradient.is_sparse:
            raise MisconfigurationException(
                f"{type(self).__name__} got a sparse gradient.",
                expected="dense gradients.",
                fix="nn.Embedding(…, sparse=False), or torch.optim.SparseAdam for these parameters.",
            )
        return gradient


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
