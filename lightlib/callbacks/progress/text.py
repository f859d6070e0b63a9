"""Text of a progress bar: its values at one moment, and their format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Moment:
    """The values of a progress bar at one moment.

    Attributes:
        title: ``"Epoch 3/10"``, ``"Validation"``, ``"Testing loader 2/3"``, ``"Testing noisy 2/3"``.
        batch: Batches done in this epoch, or of this loader.
        total: Batches that there will be; `inf` when unknown.
        elapsed: Seconds since the stage began.
        remaining: Seconds until the end of the run (or of this evaluation); None when it cannot be known.
        rate: Batches per second; None before there is a second batch.
        data_share: The share of the time that was spent waiting for data, 0 to 1; None outside of training.
        metrics: Names and values next to the bar.
    """

    title: str
    batch: int
    total: float
    elapsed: float
    remaining: float | None = None
    rate: float | None = None
    data_share: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def fraction(self) -> float | None:
        """How much is done, 0 to 1; None when the total is unknown."""
        if self.total == math.inf:
            return None
        return min(1.0, self.batch / self.total) if self.total else 1.0


def clock(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds.

    Example:
        >>> clock(3725.4)
        '01:02:05'
    """
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"


def count(moment: Moment) -> str:
    """Write how many batches are done: ``"45/938"``, ``"45/?"`` when the total is unknown."""
    return f"{moment.batch}/{'?' if moment.total == math.inf else int(moment.total)}"


def speed(rate: float) -> str:
    """Write a rate in about three digits.

    Example:
        >>> speed(1234.5), speed(12.34), speed(0.1234)
        ('1234it/s', '12.3it/s', '0.123it/s')
    """
    digits = 0 if rate >= 100 else 1 if rate >= 10 else 2 if rate >= 1 else 3
    return f"{rate:.{digits}f}it/s"


def number(value: Any) -> str:
    """Write a metric's value: three decimals, or a power of ten if these would be too few.

    Example:
        >>> number(0.12345), number(3e-5), number(7), number("a")
        ('0.123', '3.00e-05', '7', 'a')
    """
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"


def facts(moment: Moment) -> list[str]:
    """The text next to the count: the time, the rate, the wait for data.

    The time is what remains of the run; at its end, and where that cannot be known, what has passed.
    """
    words = [f"ETA {clock(moment.remaining)}" if moment.remaining else f"elapsed {clock(moment.elapsed)}"]
    if moment.rate is not None:
        words.append(speed(moment.rate))
    if moment.data_share is not None:
        words.append(f"data {moment.data_share:.0%}")
    return words


def metric_texts(moment: Moment) -> list[str]:
    """The metrics as words: ``["loss=0.123", "v_num=0"]``."""
    return [f"{name}={number(value)}" for name, value in moment.metrics.items()]


def line(moment: Moment) -> str:
    """Write all of a moment as one line of text.

    Example:
        >>> line(Moment("Epoch 1/2", 5, 10, 7.0, metrics={"loss": 0.5}))
        'Epoch 1/2 | 5/10 | elapsed 00:00:07 | loss=0.500'
    """
    words = [moment.title, count(moment), *facts(moment), " ".join(metric_texts(moment))]
    return " | ".join(filter(None, words))
