"""ExpectedMetrics: fails at the end of a run if its metrics differ from expected numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightlib.callbacks.callback import Callback
from lightlib.errors import (
    ArgumentTypeError,
    LightlibError,
    MisconfigurationException,
    check_number,
    check_word,
    nearest,
    wrong_type,
)

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_Stage = Literal["fit", "validate", "test"]
STAGES: tuple[_Stage, ...] = get_args(_Stage)


class UnexpectedMetricsError(LightlibError, AssertionError):
    """A metric at the end of a run is not the expected one."""


class ExpectedMetrics(Callback):
    """Fails at the end of a run if logged metrics differ from expected numbers, which guards recipes and examples.

    Every metric is compared before the error is raised, so it names all that differ. With several processes each
    compares the values that it has, and all fail together.

    Args:
        expected: Numbers by the name of a metric in `trainer.callback_metrics`; or a pair (least, greatest), of which
            one may be None.
        rtol: The allowed difference as a share of the expected number. Default: 0.01.
        atol: The allowed difference in addition to that. Default: 0.
        stage: At the end of which call they are compared: ``"fit"``, ``"validate"`` or ``"test"``. Default: ``"fit"``.

    Raises:
        ArgumentTypeError: `expected` is no dict of names and numbers, or a tolerance is no number.
        MisconfigurationException: `expected` is empty, a pair is empty or in the wrong order, a tolerance is negative,
            or `stage` is something else.
        UnexpectedMetricsError: When the run ends: a metric differs, is NaN, or was not logged.

    Example:
        >>> import lightlib as L
        >>> check = ExpectedMetrics({"val_loss": 0.25, "val_accuracy": (0.9, None)}, rtol=0.05)
        >>> trainer = L.Trainer(callbacks=[check])
    """

    after_module = True  # its `on_*_end` sees the values that the module logs last
    priority = "lowest"

    def __init__(
        self, expected: Mapping[str, Any], rtol: float = 0.01, atol: float = 0.0, stage: _Stage = "fit"
    ) -> None:
        super().__init__()
        argument: Any = expected
        if not isinstance(argument, Mapping) or not all(isinstance(name, str) for name in argument):
            raise wrong_type("ExpectedMetrics", "expected", expected, "a dict of names and numbers", "{'val_loss': 1}")
        if not expected:
            raise MisconfigurationException(
                "ExpectedMetrics({}) compares nothing.",
                expected="at least one metric.",
                fix='ExpectedMetrics({"val_loss": 0.25})',
            )
        for name, tolerance in (("rtol", rtol), ("atol", atol)):
            check_number("ExpectedMetrics", name, tolerance, least=0, below=math.inf, example=0.01)
        check_word("ExpectedMetrics", "stage", stage, STAGES)
        self.expected, self.rtol, self.atol, self.stage = dict(expected), rtol, atol, stage
        self._bounds = {name: _bounds(name, value, rtol, atol) for name, value in expected.items()}

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._compare(trainer, "fit")

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.state.fn == "validate":
            self._compare(trainer, "validate")

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._compare(trainer, "test")

    def _compare(self, trainer: Trainer, stage: str) -> None:
        if stage != self.stage:
            return
        metrics = trainer.callback_metrics
        measured = {name: float(metrics[name]) for name in self._bounds if name in metrics}
        wrong = [
            self._line(name, measured.get(name), metrics) for name in self._bounds if not self._fits(name, measured)
        ]
        if not trainer.strategy.reduce_boolean_decision(bool(wrong), all=False):
            return
        everywhere = trainer.strategy.collectives.all_gather_object(wrong)
        rank, lines = next((rank, lines) for rank, lines in enumerate(everywhere) if lines)
        where = f" on rank {rank}" if len(everywhere) > 1 else ""
        raise UnexpectedMetricsError(
            f"{len(lines)} of {len(self._bounds)} metrics are not as expected at the end of {stage}{where}:\n"
            + "\n".join(f"    {line}" for line in lines),
            expected="the numbers that were given to ExpectedMetrics.",
            fix="look for the change that moved them; if it is intended, give the new numbers, or a larger rtol.",
        )

    def _fits(self, name: str, measured: Mapping[str, float]) -> bool:
        least, greatest = self._bounds[name]
        return name in measured and least <= measured[name] <= greatest

    def _line(self, name: str, value: float | None, metrics: Mapping[str, Any]) -> str:
        if value is None:
            return f"{name}: was not logged.{nearest(name, metrics)}"
        bound = self.expected[name]
        if not _is_number(bound):
            return f"{name}: {value:.6g}, expected between {bound[0]} and {bound[1]}"
        difference = f"differs by {abs(value - bound):.3g}" if math.isfinite(value) else "is not finite"
        least, greatest = self._bounds[name]
        return f"{name}: {value:.6g}, expected {bound:.6g} ({difference}, allowed {(greatest - least) / 2:.3g})"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _bounds(name: str, value: Any, rtol: float, atol: float) -> tuple[float, float]:
    if _is_number(value):
        allowed = atol + rtol * abs(value)
        return value - allowed, value + allowed
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    if not is_pair or not all(limit is None or _is_number(limit) for limit in value):
        raise ArgumentTypeError(
            f"ExpectedMetrics({{{name!r}: {value!r}}}).",
            expected="a number, or a pair of the least and the greatest one.",
            fix=f'ExpectedMetrics({{"{name}": 0.25}})',
        )
    least, greatest = (-math.inf if value[0] is None else value[0]), (math.inf if value[1] is None else value[1])
    if least > greatest or least == -greatest == -math.inf:
        raise MisconfigurationException(
            f"ExpectedMetrics({{{name!r}: {value!r}}}) allows {'no' if least > greatest else 'every'} number.",
            expected="a pair in ascending order, with one number at least.",
            fix=f'ExpectedMetrics({{"{name}": (0.9, None)}})',
        )
    return least, greatest
