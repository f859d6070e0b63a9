"""Checks of the arguments of samplers, and the values that they give for each sample."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import torch

from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_int, shown


def check_seed(owner: str, seed: int | None) -> int | None:
    """Return the seed if it is None or an int of at least 0."""
    return None if seed is None else check_int(owner, "seed", seed, 0)


def size_of(owner: str, data: Any) -> int:
    """Return the number of samples of `data`, which has a length."""
    if not isinstance(data, Sized):
        raise ArgumentTypeError(
            f"{owner} got {shown(data)}, which has no length.",
            expected="a data set with a length, or another sized collection.",
            fix=f"{owner}(dataset), or {owner}(range(number_of_samples)).",
        )
    if len(data) == 0:
        raise MisconfigurationException(
            f"{owner} got a {type(data).__name__} of length 0.",
            expected="at least one sample.",
            fix="check the data set.",
        )
    return len(data)


def check_sampler(owner: str, sampler: Any) -> Any:
    """Return `sampler` if it can be iterated."""
    if not hasattr(sampler, "__iter__") or isinstance(sampler, (str, bytes, type)):
        raise ArgumentTypeError(
            f"{owner} got {shown(sampler)}, which is no sampler.",
            expected="a sampler: an iterable of indices.",
            fix=f"{owner}(torch.utils.data.RandomSampler(dataset), …)",
        )
    return sampler


def numbers_of(owner: str, name: str, values: Any, least: int | None = None) -> torch.Tensor:
    """Return one whole number for each sample, as a tensor: the length or the class of each.

    Args:
        least: The smallest number that is accepted.
    """
    problem = f"{owner}({name}={shown(values)})"
    fix = f"{owner}({name}=[… for sample in dataset])"
    if not isinstance(values, (Sequence, torch.Tensor)) and not hasattr(values, "__array__"):
        raise ArgumentTypeError(f"{problem}.", expected="a sequence with one whole number for each sample.", fix=fix)
    try:
        numbers = torch.as_tensor(values if isinstance(values, torch.Tensor) else list(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(f"{problem}: {error}.", expected="one whole number for each sample.", fix=fix) from None
    if numbers.ndim != 1 or numbers.is_floating_point() or numbers.is_complex() or not len(numbers):
        raise MisconfigurationException(
            f"{problem}: values of the shape {tuple(numbers.shape)} and the dtype {numbers.dtype}.",
            expected="one whole number for each sample.",
            fix=fix,
        )
    if least is not None and int(numbers.min()) < least:
        raise MisconfigurationException(
            f"{owner}: the smallest of the {name} is {int(numbers.min())}.", expected=f"numbers >= {least}.", fix=fix
        )
    return numbers.to(device="cpu", dtype=torch.int64)
