"""Loss scaling, without which the small gradients of float16 would vanish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException, UnknownNameError


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "init_scale": (lambda value: _is_number(value) and value > 0, "a number > 0 (torch's default: 65536.0)."),
    "growth_factor": (lambda value: _is_number(value) and value > 1, "a number > 1 (torch's default: 2.0)."),
    "backoff_factor": (lambda value: _is_number(value) and 0 < value < 1, "a number between 0 and 1 (default: 0.5)."),
    "growth_interval": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
        "an int >= 1 (torch's default: 2000).",
    ),
    "enabled": (lambda value: isinstance(value, bool), "True or False."),
}
_STATE = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


class Scaler(Protocol):
    """Interface of a loss scaler: `LossScaler`, or a replacement when an engine scales the loss."""

    grad_scaler: Any

    def share_overflow_by(self, call: Callable[[Optimizer], None], /) -> None: ...

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
        settings: Arguments of `torch.amp.GradScaler`, or one made by the user; None for torch's defaults.
        device_type: Where the gradients are, such as ``'cpu'`` or ``'cuda'``.

    Raises:
        ArgumentTypeError: `settings` is neither a mapping nor a `torch.amp.GradScaler`.
        UnknownNameError: A setting that `torch.amp.GradScaler` does not have.
        MisconfigurationException: A setting with a value that is out of range.

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

    def __init__(
        self, settings: Mapping[str, Any] | torch.amp.GradScaler | None = None, device_type: str = "cuda"
    ) -> None:
        self.check_settings(settings)
        made = settings if isinstance(settings, torch.amp.GradScaler) else None
        self.grad_scaler = made or torch.amp.GradScaler(device_type, **(settings or {}))  # type: ignore[arg-type]
        self._unscaled: set[int] = set()
        self._stepped: set[int] = set()
        self._share_overflow: Callable[[Optimizer], None] | None = None

    def share_overflow_by(self, call: Callable[[Optimizer], None]) -> None:
        """Call `call` after unscaling, to notify other ranks of an overflow."""
        self._share_overflow = call

    @staticmethod
    def check_settings(settings: object) -> None:
        """Raise when no scaler can be made of `settings`."""
        if settings is None or isinstance(settings, torch.amp.GradScaler):
            return
        if not isinstance(settings, Mapping):
            raise ArgumentTypeError(
                f"The loss scaler's settings are {settings!r}, a {type(settings).__name__}.",
                expected="a mapping of torch.amp.GradScaler's arguments, or a torch.amp.GradScaler.",
                fix="scaler={'init_scale': 1024.0}",
            )
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise UnknownNameError("loss scaler setting", name, _SETTINGS, fix="scaler={'init_scale': 1024.0}")
            is_right, expected = _SETTINGS[name]
            if not is_right(value):
                raise MisconfigurationException(
                    f"The loss scaler's setting {name!r} is {value!r}.",
                    expected=expected,
                    fix="correct it, or leave it out for torch's default.",
                )

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
        if next(gradients, None) is None:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} is to step, but none of its parameters has a gradient.",
                expected="a backward pass before each step when the loss is scaled ('16-mixed').",
                fix="step only the optimizers whose parameters were used, and call zero_grad() only after the step.",
            )
        try:
            self.grad_scaler.unscale_(optimizer)
        except AssertionError as error:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} is to step, but the loss was never scaled ('16-mixed').",
                expected="gradients of a loss that went through the scaler.",
                fix="self.manual_backward(loss) instead of loss.backward().",
            ) from error
        except ValueError as error:
            raise MisconfigurationException(
                f"{type(optimizer).__name__} has float16 parameters, whose gradients cannot be unscaled ('16-mixed').",
                expected="float32 parameters; autocast casts them where float16 is faster.",
                fix="leave out .half(), or use precision='16-true'.",
            ) from error
        self._unscaled.add(id(optimizer))
        if self._share_overflow is not None:
            self._share_overflow(optimizer)

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
                fix="self.manual_backward(loss) before each optimizer.step().",
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
        if self._unscaled:
            self.grad_scaler.update()
        self._unscaled.clear()
        self._stepped.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the `torch.amp.GradScaler`, as Lightning stores it; empty when it is not enabled."""
        if self._stepped:
            self.update()
        return self.grad_scaler.state_dict()

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
        self.grad_scaler.load_state_dict(dict(state))
        self._unscaled.clear()
        self._stepped.clear()


def _skipped_in_kernel(optimizer: Optimizer) -> bool:
    found = getattr(optimizer, "found_inf", None)  # what GradScaler hands to fused optimizers during their step
    return isinstance(found, Tensor) and found.device.type == "cpu" and bool(found.item())
