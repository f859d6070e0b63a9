"""Usage: the peak memory and the mean CPU of a trial, from the measurements of its worker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FILE = "usage.jsonl"  # in the folder of an attempt


class Usage(NamedTuple):
    """The memory and CPU of a trial, over its attempts.

    Attributes:
        peak_memory_bytes: The largest measured memory of its processes; None if it was not measured.
        mean_cpu_percent: Of one core, over its measurements; None if there were fewer than two.
        peak_gpu_memory_bytes: The largest measured memory of its GPUs together; None without a GPU.
        mean_gpu_percent: The mean utilization of its GPUs; None without a GPU.
    """

    peak_memory_bytes: int | None
    mean_cpu_percent: float | None
    peak_gpu_memory_bytes: int | None
    mean_gpu_percent: float | None


def usage_of(attempts: Iterable[Path]) -> Usage:
    """Return the memory and CPU of a trial.

    Args:
        attempts: The folders of its attempts.
    """
    lines = [line for path in attempts for line in _lines(path / FILE)]
    memory = [line["memory_bytes"] for line in lines if "memory_bytes" in line]
    percents = [line["cpu_percent"] for line in lines if line.get("cpu_percent") is not None]
    graphics = [line["gpus"] for line in lines if line.get("gpus")]
    utilization = [gpu["utilization_percent"] for each in graphics for gpu in each]
    return Usage(
        max(memory, default=None),
        _mean(percents),
        max((sum(gpu["memory_bytes"] for gpu in each) for each in graphics), default=None),
        _mean(utilization),
    )


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 1) if values else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the measurements in a file; the last one may be torn."""
    try:
        texts = path.read_text().splitlines()
    except OSError:
        return
    for text in texts:
        try:
            content = json.loads(text)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content
