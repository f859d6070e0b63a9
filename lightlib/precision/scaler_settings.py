"""Settings of the loss scaler: torch's, a static scale, and rules that torch does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.torch_private import scale_of

Settings = Mapping[str, Any] | torch.amp.GradScaler | float | str | None
HYSTERESIS = "hysteresis_left"  # in the state of a scaler with hysteresis


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_KNOWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "init_scale": (lambda value: _is_number(value) and value > 0, "a number > 0 (torch's default: 65536.0)."),
    "growth_factor": (lambda value: _is_number(value) and value > 1, "a number > 1 (torch's default: 2.0)."),
    "backoff_factor": (lambda value: _is_number(value) and 0 < value < 1, "a number between 0 and 1 (default: 0.5)."),
    "growth_interval": (_is_count, "an int >= 1 (torch's default: 2000)."),
    "enabled": (lambda value: isinstance(value, bool), "True or False."),
    "initial_scale_power": (
        lambda value: _is_number(value) and isinstance(value, int) and -126 <= value <= 127,
        "an int from -126 to 127: the scale begins as this power of 2.",
    ),
    "hysteresis": (_is_count, "an int >= 1 (default: 1): the scale shrinks at the n-th overflow."),
    "consecutive_hysteresis": (lambda value: isinstance(value, bool), "True or False."),
    "min_scale": (lambda value: _is_number(value) and value > 0, "a number > 0 (default: no limit)."),
}
_OWN = ("initial_scale_power", "hysteresis", "consecutive_hysteresis", "min_scale")
_EXAMPLE = "scaler={'init_scale': 1024.0}"


@dataclass
class ScaleRule:
    """A correction of the scale after torch's `GradScaler` has updated it.

    Everything is computed on the scale's device, so nothing waits for it.

    Args:
        static: The scale that never changes; None if it grows and shrinks.
        hysteresis: The scale shrinks at this many overflows, and at each one after them, until it has grown.
        consecutive: Count overflows again after each step that was taken, instead of after the scale has grown.
        min_scale: The scale does not become less.

    Example:
        >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        >>> rule = ScaleRule(static=8.0)
        >>> _ = scaler.scale(torch.ones(1))
        >>> rule.update(scaler)
        >>> scaler.get_scale()
        8.0
    """

    static: float | None = None
    hysteresis: int = 1
    consecutive: bool = False
    min_scale: float | None = None

    def __post_init__(self) -> None:
        self._left: Tensor | int = self.hysteresis  # overflows until the scale shrinks

    def update(self, scaler: torch.amp.GradScaler) -> None:
        """Update the scale after the steps of an iteration."""
        if self.static is not None:
            scaler.update(self.static)
            return
        before = scale_of(scaler)
        scaler.update()
        after = scale_of(scaler)
        new = after
        if self.hysteresis > 1:
            left = torch.as_tensor(self._left, device=after.device)
            shrunk = after < before
            waits = shrunk & (left > 1)
            new = torch.where(waits, before, after)
            refilled = ~shrunk if self.consecutive else after > before
            self._left = torch.where(refilled, self.hysteresis, left - waits.to(left.dtype))
        if self.min_scale is not None:
            new = new.clamp(min=self.min_scale)
        scaler.update(new)

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs besides that of torch's scaler."""
        return {HYSTERESIS: int(self._left)} if self.hysteresis > 1 else {}

    def load(self, theirs: dict[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """Restore the result of `state`, and return the state for torch's scaler; a static scale is a setting."""
        self._left = min(int(state.get(HYSTERESIS, self.hysteresis)), self.hysteresis)
        return theirs if self.static is None else {**theirs, "scale": self.static}


def check_settings(settings: object) -> None:
    """Raise when no scaler can be made of `settings`.

    Raises:
        ArgumentTypeError: They are of another type.
        UnknownNameError: A setting or a word that is not known.
        MisconfigurationException: A value is out of range, or two settings exclude each other.
    """
    if settings is None or isinstance(settings, torch.amp.GradScaler):
        return
    if isinstance(settings, str):
        if settings != "dynamic":
            raise UnknownNameError("loss scaler", settings, ("dynamic",), fix="scaler='dynamic', or scaler=1024.0.")
        return
    if _is_number(settings):
        _check_value("init_scale", settings)
        return
    if not isinstance(settings, Mapping):
        raise ArgumentTypeError(
            f"The loss scaler's settings are {settings!r}, a {type(settings).__name__}.",
            expected="'dynamic', a number for a static scale, a mapping of settings, or a torch.amp.GradScaler.",
            fix=_EXAMPLE,
        )
    for name, value in settings.items():
        if name not in _KNOWN:
            raise UnknownNameError("loss scaler setting", name, _KNOWN, fix=_EXAMPLE)
        _check_value(name, value)
    _check_together(settings)


def _check_value(name: str, value: Any) -> None:
    is_right, expected = _KNOWN[name]
    if not is_right(value):
        raise MisconfigurationException(
            f"The loss scaler's setting {name!r} is {value!r}.",
            expected=expected,
            fix="correct it, or leave it out for the default.",
        )


def _check_together(settings: Mapping[str, Any]) -> None:
    power = settings.get("initial_scale_power")
    if power is not None and "init_scale" in settings:
        raise MisconfigurationException(
            f"The loss scaler has init_scale={settings['init_scale']!r} and initial_scale_power={power!r}.",
            expected="one of the two: both set the first scale.",
            fix=f"scaler={{'init_scale': {2.0**power!r}}}",
        )
    first, least = float(settings.get("init_scale", 2.0 ** (16 if power is None else power))), settings.get("min_scale")
    if least is not None and least > first:
        raise MisconfigurationException(
            f"The loss scaler has min_scale={least!r}, and its first scale is {first!r}.",
            expected="a first scale that is not less than the least one.",
            fix=f"scaler={{'init_scale': {float(least)!r}, 'min_scale': {least!r}}}",
        )
    if settings.get("consecutive_hysteresis") and settings.get("hysteresis", 1) == 1:
        raise MisconfigurationException(
            "The loss scaler has consecutive_hysteresis=True without hysteresis.",
            expected="a hysteresis of 2 or more, whose count it begins again.",
            fix="scaler={'hysteresis': 2, 'consecutive_hysteresis': True}",
        )


def scaler_of(settings: Settings, device_type: str) -> tuple[torch.amp.GradScaler, ScaleRule | None]:
    """Return torch's scaler for checked settings, and the rule that it does not have, or None."""
    if isinstance(settings, torch.amp.GradScaler):
        return settings, None
    if isinstance(settings, Mapping):
        arguments = {name: value for name, value in settings.items() if name not in _OWN}
        if "initial_scale_power" in settings:
            arguments["init_scale"] = 2.0 ** settings["initial_scale_power"]
        hysteresis, least = settings.get("hysteresis", 1), settings.get("min_scale")
        rule = ScaleRule(None, hysteresis, settings.get("consecutive_hysteresis", False), least)
        plain = hysteresis == 1 and least is None
        return torch.amp.GradScaler(device_type, **arguments), None if plain else rule
    if settings is None or isinstance(settings, str):
        return torch.amp.GradScaler(device_type), None
    return torch.amp.GradScaler(device_type, init_scale=float(settings)), ScaleRule(float(settings))
