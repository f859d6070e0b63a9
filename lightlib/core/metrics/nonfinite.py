"""NonfiniteCheck: warns once when logged values or weights become NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from lightlib import report
from lightlib.core.progress.progress import Progress

__all__ = ["NonfiniteCheck"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HOW_TO_FIND = (
    "Training continues. To find where it began, use callbacks.TerminateOnNaN(), or Trainer(detect_anomaly=True)."
)


class NonfiniteCheck:
    """Warns about the first NaN or infinity of a run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._warned = False

    def check_values(self, values: Mapping[str, float]) -> None:
        """Warn about the first value that is not finite; the loss has the name ""."""
        if self._warned:
            return
        for name, value in values.items():
            if not math.isfinite(value):
                self._warned = True
                progress = self._progress
                position = f"epoch {progress.epoch}, batch {progress.epoch_batch - 1}, step {progress.step}"
                subject = f"the logged value {name!r}" if name else "the loss"
                report.warn(f"{subject} is {value} at {position} (seen when logging). {_HOW_TO_FIND}")
                return

    def check_weights(self, module: nn.Module) -> None:
        """Warn if trained weights are not finite and no logged value has shown it."""
        if self._warned or _are_finite(module.parameters()):
            return
        self._warned = True
        report.warn(
            f"The weights of {type(module).__name__} are no longer finite in epoch {self._progress.epoch}, step "
            f"{self._progress.step} (seen at the end of the epoch), as after a loss that is NaN. {_HOW_TO_FIND}"
        )


def _are_finite(parameters: Iterable[Tensor]) -> bool:
    """Whether this process's shards of the trained parameters are free of NaN and infinity."""
    local = [p.to_local() if hasattr(p, "to_local") else p.detach() for p in parameters if p.requires_grad]
    numbers = [p.detach() for p in local if p.dtype in _FLOATS and p.numel()]
    # The maximum: unlike a sum of squares it does not overflow in half precision, and it keeps a NaN.
    return not numbers or math.isfinite(torch.nn.utils.get_total_norm(numbers, math.inf).item())
