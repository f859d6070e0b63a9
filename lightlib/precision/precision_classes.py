"""Lightning's precision classes: other names for settings of Precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch

from lightlib.errors import check_type, check_word
from lightlib.precision.chosen import Inputs, Modules
from lightlib.precision.precision import Precision
from lightlib.precision.scaler_settings import Settings


class MixedPrecision(Precision):
    """Parameters in float32, operations cast one by one by autocast.

    Args:
        precision: ``'16-mixed'`` (scales the loss) or ``'bf16-mixed'``.
        device: Taken because Lightning's class takes it, and not needed: autocast follows the device of the run.
        scaler: Settings of the loss scaler (see :class:`LossScaler`): ``"dynamic"``, a number for a static scale, a
            mapping, or a `torch.amp.GradScaler`; only with ``'16-mixed'``.
        inputs_to_half: The entries of a batch to cast, by index or key. Default: none, autocast casts when needed.
        float32_modules: Modules in which autocast is off, by name (with wildcards) or class.

    Raises:
        UnknownNameError: Another `precision`.
        ArgumentTypeError: `device` is not the name of a device, or an argument has another type.
        MisconfigurationException: A `scaler` with ``'bf16-mixed'``; and as `Precision`.

    Example:
        >>> MixedPrecision("bf16-mixed").compute_dtype
        torch.bfloat16
    """

    def __init__(
        self,
        precision: Literal["16-mixed", "bf16-mixed"] = "16-mixed",
        device: str | None = None,
        scaler: Settings = None,
        *,
        inputs_to_half: Inputs = None,
        float32_modules: Modules = (),
    ) -> None:
        dtypes = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
        _check("MixedPrecision", precision, dtypes)
        expected, fix = "the name of a type of device, or None", f"MixedPrecision({precision!r})"
        check_type("MixedPrecision", "device", device, str | None, expected, fix=fix)
        compute = dtypes[precision]
        super().__init__(
            precision,
            torch.float32,
            compute,
            torch.float32,
            compute is torch.float16,
            scaler,
            inputs_to_half=inputs_to_half,
            float32_modules=float32_modules,
        )


class HalfPrecision(Precision):
    """Parameters, inputs and operations in a dtype of 16 bits.

    Args:
        precision: ``'16-true'`` or ``'bf16-true'``.
        inputs_to_half: The entries of a batch to cast, by index or key. Default: all.
        float32_modules: Modules whose parameters and operations stay in float32, by name (with wildcards) or class.

    Raises:
        UnknownNameError: Another `precision`.
        ArgumentTypeError: An argument has another type.
        MisconfigurationException: As `Precision`.

    Example:
        >>> HalfPrecision("bf16-true").param_dtype
        torch.bfloat16
    """

    def __init__(
        self,
        precision: Literal["16-true", "bf16-true"] = "16-true",
        *,
        inputs_to_half: Inputs = None,
        float32_modules: Modules = (),
    ) -> None:
        dtypes = {"16-true": torch.float16, "bf16-true": torch.bfloat16}
        _check("HalfPrecision", precision, dtypes)
        half = dtypes[precision]
        super().__init__(precision, half, half, half, inputs_to_half=inputs_to_half, float32_modules=float32_modules)


class DoublePrecision(Precision):
    """Parameters, inputs and operations in float64.

    Example:
        >>> DoublePrecision().name
        '64-true'
    """

    def __init__(self) -> None:
        super().__init__("64-true", torch.float64, torch.float64, torch.float64)


def _check(kind: str, precision: object, names: Iterable[str]) -> None:
    check_word(kind, "precision", precision, names)
