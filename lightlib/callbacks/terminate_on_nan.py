"""TerminateOnNaN: end the run at a loss that is NaN or infinite, before it reaches the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from lightlib.callbacks.callback import Callback
from lightlib.errors import LightlibError, check_int

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class NonFiniteLossError(LightlibError, ArithmeticError):
    """A loss is NaN or infinite."""


class TerminateOnNaN(Callback):
    """Ends the run with an error at the first loss that is NaN or infinite.

    The loss is looked at before `backward`, so the weights are still those before the bad batch, and no checkpoint
    holds spoilt ones. The message gives the batch, the values that `training_step` has logged, such as each term of the
    loss, and the parameters that were not finite already. An infinite loss in float16 does not end the run: there the
    loss scaler makes it, and skips the step.

    Args:
        check_every_n_steps: Look at the losses of every n-th optimizer step. Each look waits for the device (and, with
            several processes, for all of them), which costs most where steps are short: 10 or 100 make it negligible.

    Raises:
        ArgumentTypeError: `check_every_n_steps` is no int.
        MisconfigurationException: It is less than 1.
        NonFiniteLossError: While training: the loss of a batch is NaN or infinite.

    Example:
        >>> TerminateOnNaN(check_every_n_steps=10).check_every_n_steps
        10
    """

    def __init__(self, check_every_n_steps: int = 1) -> None:
        super().__init__()
        check_int("TerminateOnNaN", "check_every_n_steps", check_every_n_steps, 1, example=10)
        self.check_every_n_steps = check_every_n_steps

    def on_before_backward(self, trainer: Trainer, pl_module: Module, loss: torch.Tensor) -> None:
        if trainer.global_step % self.check_every_n_steps:
            return
        values = loss.detach()
        bad = values.isnan() if values.dtype is torch.float16 else ~values.isfinite()
        here = bool(bad.any())
        processes = trainer.strategy.data  # those that have a loss at this moment: not all stages of a pipeline
        if not processes.reduce_boolean_decision(here, all=False):
            return
        terms = trainer.run.results.last_of_training_step() if here and trainer.run is not None else {}
        local = (trainer.global_rank, values[bad].flatten()[0].item(), _spoilt(pl_module), terms) if here else None
        rank, value, spoilt, terms = next(answer for answer in processes.all_gather_object(local) if answer is not None)
        whose = f"The loss of rank {rank}" if trainer.world_size > 1 else "The loss"
        raise NonFiniteLossError(
            f"{whose} is {value} at epoch {trainer.current_epoch}, batch {trainer.progress.epoch_batch}, global step "
            f"{trainer.global_step}. {_listed(terms)}{_about(spoilt)}",
            expected="a finite loss.",
            fix="look at this batch; try a smaller learning rate, gradient_clip_val, another precision than 16-mixed; "
            "Trainer(detect_anomaly=True) names the operation.",
        )


def _spoilt(module: Module) -> list[str]:
    """Return the names of parameters that hold something not finite; of one that is shared out, in this part."""
    parameters = ((name, p.to_local() if hasattr(p, "to_local") else p) for name, p in module.named_parameters())
    return [name for name, parameter in parameters if not parameter.detach().isfinite().all()]


def _listed(terms: dict[str, float]) -> str:
    """Return a sentence with the logged values, those that are not finite first."""
    if not terms:
        return ""
    names = sorted(terms, key=lambda name: math.isfinite(terms[name]))  # the sort keeps the order of equal ones
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"training_step logged {', '.join(f'{name} = {terms[name]:.6g}' for name in names[:8])}{more}. "


def _about(spoilt: list[str]) -> str:
    if not spoilt:
        return "All parameters are finite: the cause is this batch or the forward pass."
    more = f" and {len(spoilt) - 3} more" if len(spoilt) > 3 else ""
    return f"Parameters that were not finite before: {', '.join(spoilt[:3])}{more}."
