"""get_scheduler: the schedules of Hugging Face's Trainer, by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from lightlib.errors import MisconfigurationException, nearest

_Factor = Callable[..., float]


def get_scheduler(
    name: str,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, Any] | None = None,
) -> LRScheduler | ReduceLROnPlateau:
    """Return a schedule by the name that Hugging Face's `transformers` gives it, with the same values.

    Args:
        name: ``"linear"``, ``"cosine"``, ``"cosine_with_restarts"``, ``"cosine_with_min_lr"``, ``"polynomial"``,
            ``"constant"``, ``"constant_with_warmup"``, ``"inverse_sqrt"``, ``"warmup_stable_decay"`` or
            ``"reduce_lr_on_plateau"``.
        optimizer: Any optimizer.
        num_warmup_steps: Optimizer steps of the linear warm-up, from 0 on.
        num_training_steps: Optimizer steps of the run: ``self.trainer.estimated_stepping_batches``.
        scheduler_specific_kwargs: Further arguments: `num_cycles`; `lr_end` and `power`; `min_lr` or `min_lr_rate`;
            `timescale`; `num_decay_steps`, `num_stable_steps`, `warmup_type`, `decay_type` and `min_lr_ratio`; those
            of torch's ReduceLROnPlateau.

    Returns:
        A LambdaLR for the interval ``"step"``, or a ReduceLROnPlateau.

    Raises:
        MisconfigurationException: The name is unknown, or a number that the schedule needs is missing.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = get_scheduler("linear", optimizer, num_warmup_steps=4, num_training_steps=20)
        >>> [schedule.lr_lambdas[0](step) for step in (0, 2, 4, 12, 20)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    options = dict(scheduler_specific_kwargs or {})
    if name == "reduce_lr_on_plateau":
        return ReduceLROnPlateau(optimizer, **options)
    if name not in _FACTORS:
        names = [*_FACTORS, "reduce_lr_on_plateau"]
        raise MisconfigurationException(
            f"get_scheduler got name={name!r}.{nearest(str(name), names)}",
            expected=f"one of {', '.join(map(repr, names))}.",
            fix="get_scheduler('cosine', optimizer, num_warmup_steps=100, num_training_steps=1000)",
        )
    needs = {"constant": (), "constant_with_warmup": ("num_warmup_steps",), "inverse_sqrt": ("num_warmup_steps",)}
    numbers = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    missing = [key for key in needs.get(name, tuple(numbers)) if numbers[key] is None]
    if name == "warmup_stable_decay" and "num_stable_steps" in options:
        missing = [key for key in missing if key != "num_training_steps"]
    if missing:
        raise MisconfigurationException(
            f"get_scheduler({name!r}) got no {' and no '.join(missing)}.",
            expected="an int, in optimizer steps.",
            fix=f"get_scheduler({name!r}, optimizer, num_warmup_steps=100, "
            "num_training_steps=self.trainer.estimated_stepping_batches)",
        )
    factor, warmup, total = _FACTORS[name], num_warmup_steps or 0, num_training_steps or 0
    try:
        if name in ("polynomial", "cosine_with_min_lr"):
            bases = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
            return LambdaLR(optimizer, [_of(factor, warmup, total, base=base, **options) for base in bases])
        return LambdaLR(optimizer, _of(factor, warmup, total, **options))
    except TypeError as error:
        raise MisconfigurationException(
            f"get_scheduler({name!r}) got scheduler_specific_kwargs={options!r}: {error}.",
            expected="arguments of this schedule.",
            fix=f"get_scheduler({name!r}, optimizer, …, scheduler_specific_kwargs={{}})",
        ) from None


def _of(factor: _Factor, warmup: int, total: int, **options: Any) -> _Factor:
    return partial(factor, warmup=warmup, total=total, **options)


def _rise(step: int, warmup: int) -> float | None:
    return step / max(1, warmup) if step < warmup else None


def _part(step: int, warmup: int, total: int) -> float:
    return (step - warmup) / max(1, total - warmup)


def _half_cosine(part: float, cycles: float) -> float:
    return max(0.0, 0.5 * (1 + math.cos(math.pi * cycles * 2 * part)))


def _linear(step: int, warmup: int, total: int) -> float:
    rise = _rise(step, warmup)
    return max(0.0, (total - step) / max(1, total - warmup)) if rise is None else rise


def _cosine(step: int, warmup: int, total: int, num_cycles: float = 0.5) -> float:
    rise = _rise(step, warmup)
    return _half_cosine(_part(step, warmup, total), num_cycles) if rise is None else rise


def _cosine_with_restarts(step: int, warmup: int, total: int, num_cycles: int = 1) -> float:
    rise, part = _rise(step, warmup), _part(step, warmup, total)
    if rise is not None:
        return rise
    return 0.0 if part >= 1 else _half_cosine((num_cycles * part) % 1, 0.5)


def _cosine_with_min_lr(
    step: int,
    warmup: int,
    total: int,
    base: float,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> float:
    if (min_lr is None) == (min_lr_rate is None):
        raise TypeError("it needs either min_lr or min_lr_rate")
    least = min_lr / base if min_lr is not None else float(min_lr_rate or 0.0)
    rise = _rise(step, warmup)
    if rise is not None:
        return rise
    wave = 0.5 * (1 + math.cos(math.pi * num_cycles * 2 * _part(step, warmup, total)))
    return max(0.0, wave * (1 - least) + least)


def _polynomial(step: int, warmup: int, total: int, base: float, lr_end: float = 1e-7, power: float = 1.0) -> float:
    rise = _rise(step, warmup)
    if rise is not None:
        return rise
    if step > total:
        return lr_end / base
    left: float = (1 - (step - warmup) / (total - warmup)) ** power
    return ((base - lr_end) * left + lr_end) / base


def _constant(step: int, warmup: int, total: int) -> float:  # noqa: ARG001
    return 1.0


def _constant_with_warmup(step: int, warmup: int, total: int) -> float:  # noqa: ARG001
    rise = _rise(step, warmup)
    return 1.0 if rise is None else rise


def _inverse_sqrt(step: int, warmup: int, total: int, timescale: int | None = None) -> float:  # noqa: ARG001
    rise, scale = _rise(step, warmup), timescale or warmup or 10_000
    return 1.0 / math.sqrt((step + scale - warmup) / scale) if rise is None else rise


def _warmup_stable_decay(
    step: int,
    warmup: int,
    total: int,
    num_decay_steps: int,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> float:
    stable = total - warmup - num_decay_steps if num_stable_steps is None else num_stable_steps
    if step < warmup:
        factor = _shape(warmup_type, step / max(1, warmup))
    elif step < warmup + stable:
        return 1.0
    elif step < warmup + stable + num_decay_steps:
        part = (step - warmup - stable) / max(1, num_decay_steps)
        wave = decay_type == "cosine"
        factor = _half_cosine(part, num_cycles) if wave else _shape(decay_type, 1 - part)
    else:
        return min_lr_ratio
    return max(0.0, factor * (1 - min_lr_ratio) + min_lr_ratio)


def _shape(kind: str, part: float) -> float:
    """Return a number from 0 to 1 for the part of a rise."""
    shapes = {"linear": part, "cosine": 0.5 * (1 - math.cos(math.pi * part)), "1-sqrt": 1 - math.sqrt(1 - part)}
    if kind not in shapes:
        raise TypeError(f"{kind!r} is none of the shapes {', '.join(map(repr, shapes))}")
    return shapes[kind]


_FACTORS: dict[str, _Factor] = {
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "cosine_with_min_lr": _cosine_with_min_lr,
    "polynomial": _polynomial,
    "constant": _constant,
    "constant_with_warmup": _constant_with_warmup,
    "inverse_sqrt": _inverse_sqrt,
    "warmup_stable_decay": _warmup_stable_decay,
}
