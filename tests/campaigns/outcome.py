"""The outcome of a run, and the differences between two outcomes."""

from __future__ import annotations

import csv
import functools
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lightlib.checkpoint import formats
from tests.campaigns.program import OUTCOME

# Allowed differences between two runs: names and times; the division of events into files; and, in a checkpoint, the
# files that were still to be deleted when it was taken.
MAY_DIFFER = ("run", "serial", "torch", "version", "loggers")
SET_ASIDE = r"^checkpoints/|/events\.out\.|/metrics-v\d+\.csv$"  # by a run that found no checkpoint to resume from
IN_CHECKPOINTS = ("evicted", "latest")


def collect(where: Path) -> dict[str, Any]:
    """Return everything that a run has left in its folder, as plain values and tensors."""
    files = {str(path.relative_to(where)): path for path in sorted(where.rglob("*")) if not path.is_dir()}
    folder = where / "checkpoints"
    kept = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    checkpoints = [name for name in kept if not name.startswith(".")]
    return {
        "result": torch.load(where / OUTCOME, "cpu", weights_only=False) if (where / OUTCOME).exists() else None,
        "names": dict.fromkeys(checkpoints, ""),
        "left over": dict.fromkeys([name for name in kept if name.startswith(".")], ""),
        "files": dict.fromkeys([name for name in files if not re.search(SET_ASIDE, name)], ""),
        "csv": _rows(where / "csv" / "version_0" / "metrics.csv"),
        "tensorboard": _scalars(where / "tensorboard" / "version_0"),
        "contents": {name: without(content(folder / name), IN_CHECKPOINTS) for name in checkpoints},
    }


def content(path: Path) -> Any:
    """Return the content of a checkpoint, or the error if it cannot be read."""
    try:
        found = formats.load(str(path))
    except Exception as error:  # noqa: BLE001
        return f"NOT READABLE: {type(error).__name__}: {error}"
    return whole(found)


def whole(value: Any) -> Any:
    """Return a checkpoint's content with everything read that is read lazily."""
    if hasattr(value, "read") and hasattr(value, "dtype") and not isinstance(value, torch.Tensor):
        return value.read()
    if isinstance(value, Mapping):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(whole(item) for item in value) if type(value) in (list, tuple) else value
    return value


def without(value: Any, names: tuple[str, ...]) -> Any:
    """Return a value with these keys removed from its dictionaries."""
    if isinstance(value, Mapping):
        return {key: without(item, names) for key, item in value.items() if key not in names}
    return value


def kinds(differing: list[str]) -> list[str]:
    """Return in which parts of the outcome two runs differ: "weights", "names", "csv" and so on."""
    parts = [line.removeprefix("['").replace("result']['", "").split("'")[0] for line in differing]
    return list(dict.fromkeys(parts))


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars that TensorBoard shows of a run."""
    if not folder.is_dir():
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def differences(expected: Any, found: Any, place: str = "") -> Iterator[str]:
    """Yield the places where two values differ, bit for bit."""
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        if expected.shape != found.shape or expected.dtype != found.dtype:
            yield f"{place}: {tuple(expected.shape)} {expected.dtype} became {tuple(found.shape)} {found.dtype}"
        elif not torch.equal(expected, found) and not _both_nan(expected, found):
            far = (expected.double() - found.double()).abs().max() if expected.numel() else 0.0
            yield f"{place}: differs by at most {float(far):.3g}"
    elif isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in expected:
            if key in MAY_DIFFER:
                continue
            if key not in found:
                yield f"{place}[{key!r}] is missing"
            else:
                yield from differences(expected[key], found[key], f"{place}[{key!r}]")
        yield from (f"{place}[{key!r}] is new" for key in found if key not in expected and key not in MAY_DIFFER)
    elif isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        for i, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from differences(one, other, f"{place}[{i}]")
        if len(expected) != len(found):
            yield f"{place}: {len(expected)} entries became {len(found)}: {shortened(expected)} -> {shortened(found)}"
    elif expected != found and not (_is_nan(expected) and _is_nan(found)):
        yield f"{place}: {shortened(expected)} became {shortened(found)}"


def shortened(value: Any) -> str:
    """Return the text of a value, in at most 160 characters."""
    text = str(value)
    return text if len(text) <= 160 else f"{text[:100]} … {text[-56:]}"


def _both_nan(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.is_floating_point() and torch.equal(one.nan_to_num(7e7), other.nan_to_num(7e7))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def moved(value: Any, old: str, new: str) -> Any:
    """Return a value with this folder replaced in all its paths."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, Mapping):
        return {moved(key, old, new): moved(item, old, new) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(moved(item, old, new) for item in value)
    return value


_collected_once = functools.lru_cache(maxsize=32)(collect)  # a reference is compared with many runs


def compare(expected: Path, found: Path) -> list[str]:
    """Return the differences between the outcomes of two runs, most important first; `expected` has ended."""
    one, other = _collected_once(expected), moved(collect(found), str(found) + os.sep, str(expected) + os.sep)
    other = moved(other, str(found), str(expected))
    one = moved(one, str(expected), str(expected))
    return list(differences(one, other))
