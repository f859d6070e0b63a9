"""Global flags of torch that the Trainer's arguments set: determinism, cuDNN benchmarks, anomaly mode."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lightlib import report
from lightlib.core.setup.settings import Settings

__all__ = ["anomaly_mode", "set_torch_flags"]


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


def anomaly_mode(enabled: bool) -> AbstractContextManager[Any]:
    """Return a context with torch.autograd's anomaly mode, or one that does nothing."""
    return torch.autograd.set_detect_anomaly(True) if enabled else nullcontext()
