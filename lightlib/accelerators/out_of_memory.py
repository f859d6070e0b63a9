"""Out of memory: the errors by which torch reports it, and freeing the memory of a failed probe."""

from __future__ import annotations

import gc

import torch

_TEXTS = (
    ("CUDA", "out of memory"),
    ("HIP", "out of memory"),
    ("MPS", "out of memory"),
    ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",),
    ("CUBLAS_STATUS_ALLOC_FAILED",),
    ("DefaultCPUAllocator: can't allocate memory",),
    ("DefaultCPUAllocator: not enough memory",),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that a device or the host has no memory left.

    Example:
        >>> is_out_of_memory(RuntimeError("CUDA error: out of memory"))
        True
        >>> is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
        False
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(all(part in str(error) for part in text) for text in _TEXTS)


def free_memory() -> None:
    """Drop unreachable objects and return the cached memory of CUDA devices."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
