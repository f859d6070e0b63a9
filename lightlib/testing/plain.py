"""PlainLoop: training in plain PyTorch on one device, the reference of the conformance checks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightlib.core.module.module import Module
from lightlib.errors import MisconfigurationException


class PlainLoop:
    """The reference loop: every plugin must reach its result.

    Args:
        module: Is trained in place. Its `configure_optimizers` returns one optimizer, with or without one schedule for
            every step.
        batches: The batches of each epoch, on the module's device.
        epochs: How many.
        accumulate: Batches of one optimizer step.
        clip: Clips the gradients of the parameters that it gets.

    Attributes:
        weights: The `state_dict` after the last step.
        losses: The loss of each batch.
        norms: The norm of the gradients of each step, before clipping.
    """

    def __init__(
        self,
        module: Module,
        batches: Sequence[Any],
        epochs: int = 2,
        accumulate: int = 1,
        clip: Callable[[Iterable[nn.Parameter]], Any] | None = None,
    ) -> None:
        optimizer, schedules = _configured(module)
        self.losses: list[float] = []
        self.norms: list[float] = []
        for first in list(range(0, len(batches), accumulate)) * epochs:
            window = batches[first : first + accumulate]
            optimizer.zero_grad()
            for index, batch in enumerate(window, first):
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "self.log")  # there is no run to log to
                    output: Any = module.training_step(batch, index)
                loss = output["loss"] if isinstance(output, Mapping) else output
                self.losses.append(loss.item())
                (loss / len(window)).backward()
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            self.norms.append(float(nn.utils.get_total_norm(gradients)))
            if clip is not None:
                clip(module.parameters())
            for each in (optimizer, *schedules):
                each.step()
        state = copy.deepcopy(module.state_dict())
        self.weights: dict[str, Tensor] = {name: value.cpu() for name, value in state.items()}


def _configured(module: Module) -> tuple[Optimizer, list[Any]]:
    """Return the optimizer and its schedules."""
    match made := module.configure_optimizers():
        case Optimizer():
            return made, []
        case {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}:
            return optimizer, [schedule]
    raise MisconfigurationException(
        f"{type(module).__name__}.configure_optimizers returned {made!r}, which the reference loop cannot run.",
        expected="one optimizer, or one with a schedule for every step.",
        fix="return torch.optim.SGD(self.parameters(), 0.1) in the module of the test.",
    )
