"""Private functions of Lightning that read the argument `devices`; nequip calls the checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightlib.accelerators import CUDAAccelerator, MPSAccelerator
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown

__all__ = ["available_gpus", "check_data_type", "check_unique", "list_of_text", "parse_gpu_ids", "root_gpu"]

_FIX = "devices=2, devices=[0, 1] or devices='0,1'"


def check_data_type(device_ids: object) -> None:
    """Refuse values that are no int, string or sequence of ints: `_check_data_type`."""
    parts: Sequence[Any] = [device_ids]
    if isinstance(device_ids, (list, tuple)):
        parts = device_ids
    elif isinstance(device_ids, str):
        return
    wrong = next((part for part in parts if type(part) is not int), parts)
    if wrong is not parts:
        raise ArgumentTypeError(
            f"devices is {shown(device_ids)}.", expected="an int, a string, or a sequence of ints.", fix=_FIX
        )


def check_unique(device_ids: list[int]) -> None:
    """Refuse a device that is listed twice: `_check_unique`."""
    if len(set(device_ids)) < len(device_ids):
        raise MisconfigurationException(
            f"devices={device_ids!r} lists a device twice.", expected="each index once.", fix="devices=[0, 1]"
        )


def list_of_text(s: int | str | list[int]) -> int | list[int]:
    """Return the devices that a string means: `_normalize_parse_gpu_string_input`.

    Example:
        >>> list_of_text("0,1"), list_of_text("2"), list_of_text("0,")
        ([0, 1], 2, [0])
    """
    if not isinstance(s, str):
        return s
    return [int(part) for part in s.split(",") if part.strip()] if "," in s else int(s.strip())


def available_gpus(include_cuda: bool = False, include_mps: bool = False) -> list[int]:
    """Return the indices of this machine's GPUs: `_get_all_available_gpus`."""
    kinds = [*([CUDAAccelerator()] if include_cuda else []), *([MPSAccelerator()] if include_mps else [])]
    counts = [kind.auto_device_count() for kind in kinds if kind.is_available()]
    return list(range(max(counts, default=0)))


def parse_gpu_ids(gpus: Any, include_cuda: bool = False, include_mps: bool = False) -> list[int] | None:
    """Return the indices that `gpus` means; None for none: `_parse_gpu_ids`."""
    check_data_type(gpus)
    read = list_of_text(gpus)
    if read == 0 or (isinstance(read, (list, tuple)) and not read):
        return None
    there = available_gpus(include_cuda, include_mps)
    chosen = (there if read == -1 else list(range(read))) if isinstance(read, int) else list(read)
    chosen = there if chosen == [-1] else chosen
    check_unique(chosen)
    missing = [index for index in chosen if index not in there]
    if missing or not chosen:
        raise MisconfigurationException(
            f"devices={gpus!r} asks for the GPUs {missing or 'of this machine'}, which has {there or 'none'}.",
            expected="GPUs that are there.",
            fix='accelerator="auto" with devices="auto" takes what there is.',
        )
    return chosen


def root_gpu(gpus: list[Any]) -> Any:
    """Return the first of the GPUs: `_determine_root_gpu_device`."""
    return gpus[0]
