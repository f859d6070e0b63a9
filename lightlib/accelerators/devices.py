"""Parse `devices=`: a count, a numeric string, indices, '0,1', or -1 for all."""

from __future__ import annotations

from collections.abc import Sequence

from lightlib.errors import ArgumentTypeError, MisconfigurationException, owner

_EXPECTED = "an int >= 1 (how many), -1 or 'auto' (all), a list of indices [0, 2], or a string '2', '0,2' or '-1'."


def _fix() -> str:
    return f"{owner()}(devices='auto'), devices=2 for two of them, or devices=[0, 2] for these two."


def process_count(devices: object) -> int:
    """Return the number of CPU processes that `devices` asks for."""
    count = _count(devices)
    if count is not None and count >= 1:
        return count
    has_meaning_elsewhere = count is not None or isinstance(devices, (str, list, tuple))
    raise (MisconfigurationException if has_meaning_elsewhere else ArgumentTypeError)(
        f"devices={devices!r} was given for the CPU.",
        expected="a number of processes: an int >= 1 or a numeric string. CPUs have no indices, and there is no 'all'.",
        fix=f"{owner()}(accelerator='cpu', devices=1)",
    )


def device_indices(devices: object, available: int, kind: str) -> list[int]:
    """Return the indices that `devices` asks for, of the `available` devices of this `kind`.

    Example:
        >>> device_indices("0,2", available=4, kind="cuda")
        [0, 2]
        >>> device_indices(-1, available=4, kind="cuda")
        [0, 1, 2, 3]
    """
    indices, count = _indices(devices), _count(devices)
    if devices == "auto" or count == -1:
        indices = list(range(available))
    elif indices is None and count is not None and 0 <= count <= available:
        indices = list(range(count))
    elif indices is None:
        raise _no_such_count(devices, count, available, kind)
    if not indices:
        raise MisconfigurationException(
            f"devices={devices!r} asks for no {kind} device at all.",
            expected=_EXPECTED,
            fix=f"{owner()}(devices='auto'), or {owner()}(accelerator='cpu') to train on the CPU.",
        )
    _check(indices, devices, available, kind)
    return indices


def _check(indices: list[int], devices: object, available: int, kind: str) -> None:
    if len(set(indices)) != len(indices):
        raise MisconfigurationException(
            f"devices={devices!r} names a {kind} device more than once.",
            expected="every index once.",
            fix=f"{owner()}(devices={sorted(set(indices))})",
        )
    missing = [str(index) for index in indices if not 0 <= index < available]
    if missing:
        raise MisconfigurationException(
            f"devices={devices!r} names {kind} device {', '.join(missing)}, but this machine has {available} of them.",
            expected=f"indices from 0 to {available - 1}.",
            fix=f"{owner()}(devices={list(range(available))}), or devices='auto' for all.",
        )


def _no_such_count(devices: object, count: int | None, available: int, kind: str) -> MisconfigurationException:
    if count is None and not isinstance(devices, str):
        return ArgumentTypeError(f"devices={devices!r} is a {type(devices).__name__}.", expected=_EXPECTED, fix=_fix())
    if count is None or count < 0:
        return MisconfigurationException(
            f"devices={devices!r} has no meaning for {kind} devices.", expected=_EXPECTED, fix=_fix()
        )
    return MisconfigurationException(
        f"devices={devices!r} asks for {count} {kind} devices, but this machine has {available}.",
        expected=f"at most {available}.",
        fix=f"{owner()}(devices={available}), or devices='auto' for all.",
    )


def _count(devices: object) -> int | None:
    if isinstance(devices, bool) or not isinstance(devices, (int, str)):
        return None
    try:
        return int(devices)
    except ValueError:
        return None


def _indices(devices: object) -> list[int] | None:
    if isinstance(devices, str):
        parts = [_count(part) for part in devices.split(",") if part.strip()]
        listed = [part for part in parts if part is not None]
        return listed if "," in devices and len(listed) == len(parts) else None
    if not isinstance(devices, Sequence):
        return None
    wrong = [index for index in devices if isinstance(index, bool) or not isinstance(index, int)]
    if wrong:
        raise ArgumentTypeError(
            f"devices={devices!r} holds {wrong[0]!r}, a {type(wrong[0]).__name__}.",
            expected="a list of device indices, all of them ints.",
            fix=f"{owner()}(devices=[0, 1])",
        )
    return list(devices)
