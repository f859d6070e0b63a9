"""The Trainer's durations as text, in the arguments that mean the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightlib.callbacks.durations import TIMES, Duration, parsed, seconds
from lightlib.core.progress.plan import Plan
from lightlib.errors import MisconfigurationException, owner

_ARGUMENT_OF = {"ep": "max_epochs", "st": "max_steps", "s": "max_time"}
_INTERVALS = '"2ep", "100st", "500ba", "1e6sp", "1e6tok" or a time: ' + TIMES


def with_durations(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Trainer's arguments with `max_duration` and a text of `val_check_interval` resolved.

    Two entries are Durations or None: `max_duration` in batches, samples or tokens, and `validate_each` in optimizer
    steps, samples or tokens. Other units are put into the arguments that have them.

    Raises:
        MisconfigurationException: A text is no duration, or its unit is limited by another argument as well.

    Example:
        >>> given = {"max_duration": "10ep", "max_epochs": None, "val_check_interval": None}
        >>> with_durations(given)["max_epochs"]
        10
    """
    settings = {**arguments, "validate_each": None}
    if settings["max_duration"] is not None:
        settings |= _limit(settings)
    if isinstance(settings["val_check_interval"], str):
        settings |= _interval(settings["val_check_interval"], settings["check_val_every_n_epoch"])
    return settings


def _limit(settings: Mapping[str, Any]) -> dict[str, Any]:
    text = settings["max_duration"]
    if isinstance(text, str) and ":" in text:  # as in `max_time`
        limit = Duration(seconds(owner(), "max_duration", text), "s")
    else:
        limit = parsed(owner(), "max_duration", text, example='"10ep"')
    argument = _ARGUMENT_OF.get(limit.unit)
    if argument is None:
        return {"max_duration": limit}
    if settings[argument] not in (None, -1):
        raise MisconfigurationException(
            f"max_duration={text!r} and {argument}={settings[argument]!r}.",
            expected="one of the two: they limit the same.",
            fix=f"leave out {argument}.",
        )
    number = {"seconds": limit.number} if limit.unit == "s" else limit.number
    unlimited = {} if argument == "max_epochs" or settings["max_epochs"] is not None else {"max_epochs": -1}
    return {"max_duration": None, argument: number, **unlimited}


def _interval(text: str, every_n_epoch: Any) -> dict[str, Any]:
    """Return `val_check_interval` and `check_val_every_n_epoch` for a text; batches count over the entire run."""
    if ":" in text:
        return {}
    every = parsed(owner(), "val_check_interval", text, _INTERVALS)
    if every.unit == "s":
        return {}
    if every_n_epoch not in (1, None):
        raise MisconfigurationException(
            f"val_check_interval={text!r} and check_val_every_n_epoch={every_n_epoch!r}.",
            expected="one of the two: a text is the interval over the entire run.",
            fix="leave out check_val_every_n_epoch.",
        )
    if every.unit == "ba":
        return {"val_check_interval": every.number, "check_val_every_n_epoch": None}
    if every.unit != "ep":
        return {"val_check_interval": 1.0, "check_val_every_n_epoch": None, "validate_each": every}
    if every.number < 1:
        return {"val_check_interval": float(every.number), "check_val_every_n_epoch": 1}
    if every.number != int(every.number):
        raise MisconfigurationException(
            f"val_check_interval={text!r} is neither a part of an epoch nor a whole number of epochs.",
            expected='at most "1ep", or a whole number.',
            fix=f'Trainer(val_check_interval="{round(every.number)}ep")',
        )
    return {"val_check_interval": 1.0, "check_val_every_n_epoch": every.number}


def steps_in(batches: float, plan: Plan) -> float:
    """Return the optimizer steps that reach a number of batches, counted over the epochs.

    Example:
        >>> steps_in(13, Plan(num_batches=10, accumulate=4))  # of 4, 4, 2 and 4 batches
        4
    """
    steps = epoch = 0
    while 0 < plan.num_batches < batches:
        steps += math.ceil(plan.num_batches / plan.accumulation(epoch))
        batches, epoch = batches - plan.num_batches, epoch + 1
    return steps + math.ceil(batches / plan.accumulation(epoch))
