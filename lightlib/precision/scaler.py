"""Loss scaling, without which the small gradients of float16 would vanish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightlib.errors import CheckpointError, MisconfigurationException, owner
from lightlib.precision.scaler_settings import HYSTERESIS, Settings, check_settings, scaler_of

_STATE = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


class Scaler(Protocol):
    """Interface of a loss scaler: `LossScaler`, or a replacement when an engine scales the loss."""

    grad_scaler: Any

    def unscale_by(self, call: Callable[[Optimizer], None], /, *, empty: bool = False) -> None: ...

    def check(self, optimizer: Optimizer, /) -> None: ...

    def check_together(self, optimizers: Sequence[Optimizer], /) -> None: ...

    def scale(self, loss: Tensor, /) -> Tensor: ...

    def unscale(self, optimizer: Optimizer, /) -> None: ...

    def step(self, optimizer: Optimizer, /) -> bool: ...

    def update(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...


class LossScaler:
    """Scales the loss up before `backward`, the gradients down before the step, and skips steps that overflow.

    It drives a `torch.amp.GradScaler` and gives the same numbers as a loop written by hand around one. Gradients are
    always unscaled before the step, also for fused optimizers, so that they can be clipped and logged.

    Args:
        settings: ``"dynamic"`` or None for torch's defaults; a number for a static scale; a `torch.amp.GradScaler`; or
            a mapping of arguments of `torch.amp.GradScaler` (``init_scale``, ``growth_factor``, ``backoff_factor``,
            ``growth_interval``, ``enabled``) and of ``initial_scale_power`` (in place of ``init_scale``),
            ``min_scale``, ``hysteresis`` (the scale shrinks at the n-th overflow since it has grown, and at each after
            that) and ``consecutive_hysteresis`` (counts again after each step that was taken).
        device_type: Where the gradients are, such as ``'cpu'`` or ``'cuda'``.

    Raises:
        ArgumentTypeError: `settings` are of another type.
        UnknownNameError: A setting that is not known.
        MisconfigurationException: A setting with a value that is out of range, or two that exclude each other.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> scaler = LossScaler({"init_scale": 8.0}, "cpu")
        >>> scaler.scale(weight.sum()).backward()
        >>> scaler.unscale(optimizer)
        >>> weight.grad
        tensor([1.])
        >>> scaler.step(optimizer)
        True
        >>> scaler.update()
    """

    def __init__(self, settings: Settings = None, device_type: str = "cuda") -> None:
        super().__init__()
        check_settings(settings)
        self.grad_scaler, self._rule = scaler_of(settings, device_type)
        self._unscaled: set[int] = set()
        self._stepped: set[int] = set()
        self._unscale: Callable[[Optimizer], None] = self.grad_scaler.unscale_
        self._empty = False

    def unscale_by(self, call: Callable[[Optimizer], None], *, empty: bool = False) -> None:
        """Unscale with `call` in place of `grad_scaler.unscale_`; with `empty` an optimizer may have no gradients."""
        self._unscale, self._empty = call, empty

    def check(self, optimizer: Optimizer) -> None:
        """Raise when the loss cannot be scaled for `optimizer`."""
        if self.grad_scaler.is_enabled() and isinstance(optimizer, torch.optim.LBFGS):
            raise MisconfigurationException(
                "LBFGS cannot be used with precision '16-mixed': it evaluates the loss several times within one step, "
                "and the gradients of each would have to be unscaled and checked for overflow in between.",
                expected="an optimizer that evaluates the loss once per step.",
                fix="precision='bf16-mixed' or '32-true', which scale no loss; or another optimizer.",
            )

    def check_together(self, optimizers: Sequence[Optimizer]) -> None:
        """Raise when two optimizers that step after one backward hold the same parameter: it is unscaled by each."""
        owners: dict[int, int] = {}
        for number, optimizer in enumerate(optimizers):
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                owner = owners.setdefault(id(parameter), number)
                if owner != number and self.grad_scaler.is_enabled():
                    raise MisconfigurationException(
                        f"A parameter of shape {tuple(parameter.shape)} is in optimizers {owner} and {number}, and "
                        "precision '16-mixed' scales the loss: each of them would divide its gradient by the scale.",
                        expected="every parameter in one optimizer.",
                        fix="leave it out of one of them; or precision='bf16-mixed' or '32-true', which scale no loss.",
                    )

    def scale(self, loss: Tensor) -> Tensor:
        """Return `loss` times the current scale. After a step it begins the next iteration, as `update` does."""
        if self._stepped:
            self.update()
        return self.grad_scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of `optimizer` by the scale; once per iteration, a second call changes nothing.

        Raises:
            MisconfigurationException: The loss was not scaled, there are no gradients, or they are float16 already.
        """
        if not self.grad_scaler.is_enabled() or id(optimizer) in self._unscaled:
            return
        self.check(optimizer)
        gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        if next(gradients, None) is None and not self._empty:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} is to step, but none of its parameters has a gradient.",
                expected="a backward pass before each step when the loss is scaled ('16-mixed').",
                fix="step only the optimizers whose parameters were used, and call zero_grad() only after the step.",
            )
        try:
            self._unscale(optimizer)
        except AssertionError as error:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} is to step, but the loss was never scaled ('16-mixed').",
                expected="gradients of a loss that went through the scaler.",
                fix=f"{owner().backward} instead of loss.backward().",
            ) from error
        except ValueError as error:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} has float16 parameters, whose gradients cannot be unscaled ('16-mixed').",
                expected="float32 parameters; autocast casts them where float16 is faster.",
                fix="leave out .half(), or use precision='16-true'.",
            ) from error
        self._unscaled.add(id(optimizer))

    def step(self, optimizer: Optimizer) -> bool:
        """Unscale if that was not done, then step `optimizer` unless a gradient is infinite or NaN.

        Returns:
            Whether the step was taken. A fused optimizer on a GPU decides that in its kernel, and asking would make the
            CPU wait for the GPU: then the answer is True.

        Raises:
            MisconfigurationException: As in `unscale`; or a second step without a backward pass in between.
        """
        if id(optimizer) in self._stepped:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} is to step a second time, but no loss was scaled since its first step.",
                expected="one step for each backward pass when the loss is scaled ('16-mixed').",
                fix=f"{owner().backward} before each optimizer.step().",
            )
        self.unscale(optimizer)
        stepped: list[bool] = []
        # GradScaler calls optimizer.step unless it skips: a hook on it notices without waiting for the device.
        with optimizer.register_step_post_hook(lambda taken, *_: stepped.append(not _skipped_in_kernel(taken))):
            self.grad_scaler.step(optimizer)
        if self.grad_scaler.is_enabled():
            self._stepped.add(id(optimizer))
        return stepped == [True]

    def update(self) -> None:
        """Grow or shrink the scale after the steps of an iteration; without a step it does nothing."""
        if self._unscaled and self._rule is not None:
            self._rule.update(self.grad_scaler)
        elif self._unscaled:
            self.grad_scaler.update()
        self._unscaled.clear()
        self._stepped.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the `torch.amp.GradScaler`, as Lightning stores it; empty when it is not enabled.

        With hysteresis it holds the overflows that are left until the scale shrinks.
        """
        if self._stepped:
            self.update()
        state: dict[str, Any] = self.grad_scaler.state_dict()
        return {**state, **self._rule.state()} if self._rule is not None and state else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        if not self.grad_scaler.is_enabled():
            return
        missing = [name for name in _STATE if name not in state]
        if missing:
            raise CheckpointError(
                f"The loss scaler's state holds {sorted(state)}; missing: {', '.join(missing)}.",
                expected="the state of an enabled torch.amp.GradScaler.",
                fix="resume with the precision with which the checkpoint was written, or load its weights only.",
            )
        theirs = {name: value for name, value in state.items() if name != HYSTERESIS}
        self.grad_scaler.load_state_dict(theirs if self._rule is None else self._rule.load(theirs, state))
        self._unscaled.clear()
        self._stepped.clear()


def _skipped_in_kernel(optimizer: Optimizer) -> bool:
    found_inf = getattr(optimizer, "found_inf", None)  # what GradScaler hands to fused optimizers during their step
    return isinstance(found_inf, Tensor) and found_inf.device.type == "cpu" and bool(found_inf.item())
