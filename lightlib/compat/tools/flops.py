"""Figures of data sheets: the operations per second that a GPU can do at most."""

from __future__ import annotations

import torch

from lightlib import report

__all__ = ["get_available_flops"]

_KINDS: tuple[torch.dtype | str, ...] = (
    torch.float64,
    torch.float32,
    "tfloat32",
    torch.bfloat16,
    torch.float16,
    torch.int8,
    "int4",
)
# 10^12 operations per second, in the order of the line above; those of tensor cores where there are some.
_TABLE = """
    h200 sxm1       | 34   67    990   2000   2000   4000   -
    h200 nvl1       | 30   60    840   1700   1700   3300   -
    h100 nvl        | 67   133.8 989.4 1978.8 1978.8 3957.8 -
    h100 sxm        | 33.5 66.9  494.7 989.4  989.4  1978.9 -
    h100 pcie       | 25.6 51.2  378   756    756    1513   -
    rtx 4090        | -    82.6  82.6  82.6   82.6   660.6  1321.2
    rtx 4080        | -    48.7  48.7  48.7   48.7   389.9  779.8
    rtx 4080 super  | -    52.2  52.2  52.2   52.2   417.6  835.2
    l4              | -    30.3  60    121    121    242    484
    l40             | -    90.5  90.5  181    181    362    724
    a100            | 9.7  19.5  156   312    312    624    -
    a6000           | -    38.7  77.4  38.7   38.7   309.7  619.3
    a40             | -    37.4  74.8  37.4   37.4   299.3  598.7
    a10g            | -    31.2  62.5  125    125    250    500
    rtx 3090 ti     | -    40    40    40     40     320    640
    rtx 3090        | -    35.6  35.6  35.6   35.6   284    568
    rtx 3080 ti     | -    34.1  34.1  34.1   34.1   272.8  546.6
    rtx 3080        | -    29.8  29.8  29.8   29.8   238    476
    rtx 3070        | -    20.3  20.3  20.3   20.3   162.6  325.2
    t4              | -    8.1   -     -      65     130    260
    quadro rtx 5000 | -    11.2  -     -      89.2   -      -
    rtx 2080 super  | -    11.2  -     -      22.3   178.4  356.8
    rtx 2080 ti     | -    14.2  -     -      28.5   227.7  455.4
    rtx 2080        | -    10.6  -     -      21.2   169.6  339.1
    rtx 2070 super  | -    9.1   -     -      18.1   145    290
    titan rtx       | -    16.3  -     -      32.6   261    522
    v100 sxm        | 7.8  15.7  -     -      125    -      -
    v100 pcie       | 7    14    -     -      112    -      -
    v100s pcie      | 8.2  16.4  -     -      130    -      -
"""
# The first row whose words are all in the name of a device gives its chip.
_NAMES = (
    ("h200 sxm1", "h200 sxm1"),
    ("h200 nvl1", "h200 nvl1"),
    ("h100 hbm3", "h100 sxm"),
    ("h100 nvl", "h100 nvl"),
    ("h100 pcie", "h100 pcie"),
    ("h100 hbm2e", "h100 pcie"),
    ("l4 tesla", "l40"),
    ("a6000", "a6000"),
    ("a100", "a100"),
    ("a40", "a40"),
    ("a10g", "a10g"),
    ("quadro rtx 5000", "quadro rtx 5000"),
    ("titan rtx", "titan rtx"),
    ("v100-sxm", "v100 sxm"),
    ("v100-pcie", "v100 pcie"),
    ("v100s-pcie", "v100s pcie"),
    ("t4", "t4"),
)


def get_available_flops(device: torch.device, dtype: torch.dtype | str) -> int | None:
    """Return the operations per second that a device can do at most; None if its data sheet is not known.

    Args:
        device: A CUDA device; any other one gives None.
        dtype: A dtype, ``"tfloat32"`` or ``"int4"``. float32 means TF32 where torch multiplies in it.

    Example:
        >>> get_available_flops(torch.device("cpu"), torch.float32)
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    chip = _chip(name.lower())
    found = _figures().get(chip)
    if found is None:
        report.warn(f"The operations per second of {name!r} are not known.")
        return None
    if dtype is torch.float32 and _uses_tf32(device):
        dtype = "tfloat32"
    if dtype not in found:
        report.warn(f"The data sheet of {name!r} has no figure for {dtype}.")
        return None
    return found[dtype]


def _uses_tf32(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 8 and torch.get_float32_matmul_precision() != "highest"


def _chip(name: str) -> str:
    """Return the name of a chip in the table, or ``""``."""
    words = name.split()
    if "geforce rtx" in name and len(words) > 3:
        more = " super" if "super" in name else " ti" if "ti" in words else ""
        return f"rtx {words[3]}{more}"
    found = next((chip for looked, chip in _NAMES if all(part in name for part in looked.split())), "")
    return found or ("l4" if "l4" in name else "")


def _figures() -> dict[str, dict[torch.dtype | str, int]]:
    figures: dict[str, dict[torch.dtype | str, int]] = {}
    for line in _TABLE.strip().splitlines():
        chip, _, row = line.partition("|")
        pairs = zip(_KINDS, row.split(), strict=True)
        figures[chip.strip()] = {kind: round(float(figure) * 1e12) for kind, figure in pairs if figure != "-"}
    return figures
