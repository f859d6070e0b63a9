"""Global flags of torch that the Trainer's arguments set: determinism and cuDNN benchmarks."""

from __future__ import annotations

import os

import torch

from lightlib import report
from lightlib.core.setup.settings import Settings

__all__ = ["set_torch_flags"]


def set_torch_flags(settings: Settings) -> None:
    """Set the flags for which the user gave a value."""
    if settings.deterministic is not None:
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(bool(settings.deterministic), warn_only=settings.deterministic == "warn")
        if settings.deterministic and settings.benchmark:
            report.warn(
                "benchmark=True may choose different kernels in every run; deterministic=True requires the same ones."
            )
    if settings.benchmark is not None or settings.deterministic:
        torch.backends.cudnn.benchmark = bool(settings.benchmark)
