"""Batch sizes: samples per step and per batch, and batches per step; any two give the third."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightlib import report
from lightlib.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from lightlib.errors import MisconfigurationException


def largest_batch(global_batch_size: int | None, processes: int, accumulate: int = 1) -> int | None:
    """Return the largest number of samples in a batch of one process; None without a global batch size.

    Args:
        global_batch_size: Samples per optimizer step over all processes.
        processes: The number of processes that read different batches.
        accumulate: Batches per optimizer step, if they are given.

    Raises:
        MisconfigurationException: There is not one sample for each batch.

    Example:
        >>> largest_batch(64, processes=2), largest_batch(65, processes=2), largest_batch(64, 2, accumulate=4)
        (32, 32, 8)
    """
    if global_batch_size is None:
        return None
    batches = processes * accumulate
    if global_batch_size < batches:
        of = f" with accumulate_grad_batches={accumulate}" if accumulate > 1 else ""
        raise MisconfigurationException(
            f"global_batch_size={global_batch_size} is less than the {processes} processes that read data{of}."
            if accumulate == 1
            else f"global_batch_size={global_batch_size} is less than the {batches} batches of a step: {processes} "
            f"process{'es' if processes > 1 else ''}{of}.",
            expected="at least one sample for each process."
            if accumulate == 1
            else "at least one sample for each batch.",
            fix=f"Trainer(global_batch_size={batches})",
        )
    return global_batch_size // batches


def accumulation_of(
    global_batch_size: int,
    batch_sizes: Sequence[int | None],
    processes: int,
    callbacks: Sequence[Any],
    given: Sequence[int | None] = (),
    accumulate: int | None = None,
) -> tuple[int, str]:
    """Return the number of batches to accumulate for a global batch size, and a sentence that explains it.

    Args:
        batch_sizes: Samples in a batch of each loader on one process; None where it is not known.
        processes: The number of processes that read different batches.
        given: Samples in a batch of each of the user's loaders, which may be larger.
        accumulate: The number of batches, if the user gave it too; then the loaders' batches have to fit.
    """
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
        raise MisconfigurationException(
            f"global_batch_size={global_batch_size} together with a GradientAccumulationScheduler.",
            expected="one of the two: both set how many batches are accumulated.",
            fix=f"leave out the callback, or Trainer(global_batch_size={global_batch_size}).",
        )
    size = batch_sizes[0]
    if size is None or len(set(batch_sizes)) > 1:
        problem = (
            "has no known batch size" if None in batch_sizes else f"has loaders with the batch sizes {batch_sizes}"
        )
        raise MisconfigurationException(
            f"global_batch_size={global_batch_size}, but the training data {problem}.",
            expected="a DataLoader with batch_size, or several with the same one.",
            fix="DataLoader(dataset, batch_size=32), or Trainer(accumulate_grad_batches=…) instead.",
        )
    if accumulate is None:
        accumulate = max(1, round(global_batch_size / (size * processes)))
    elif size < (needed := global_batch_size // (processes * accumulate)):
        raise MisconfigurationException(
            f"global_batch_size={global_batch_size} and accumulate_grad_batches={accumulate} make batches of {needed} "
            f"on {processes} process{'es' if processes > 1 else ''}, but the training loader has batches of {size}.",
            expected=f"a loader with batches of {needed} or more, which are made smaller; or two of the three numbers.",
            fix=f"DataLoader(dataset, batch_size={needed}), or leave out accumulate_grad_batches.",
        )
    reached = size * processes * accumulate
    parts = f"{processes} process{'es' if processes > 1 else ''} × {size} × {accumulate} accumulated"  # noqa: RUF001  a multiplication sign is meant
    requested = "" if reached == global_batch_size else f"; {global_batch_size} was requested"
    larger = max((number for number in given if number is not None), default=size)
    cut = f"; the loader's batches of {larger} are made smaller" if larger > size else ""
    return accumulate, f"Global batch {reached} = {parts}{requested}{cut}."


def explain(sentence: str) -> None:
    """Print the sentence of `accumulation_of`; warn if the global batch is not the requested one."""
    if "was requested" in sentence:
        report.warn_once(sentence, sentence, report.PossibleUserWarning)
    else:
        report.info_once(sentence)
