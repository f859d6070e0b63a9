"""The accumulation window: combines the losses of several batches into one gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightlib.core.optimization.loss_terms import LossTerms
from lightlib.core.optimization.optimizers import scale_gradients
from lightlib.errors import MisconfigurationException
from lightlib.strategies.group.collectives import Collectives
from lightlib.tree import map_tensors

if TYPE_CHECKING:
    from lightlib.core.module.module import Module

_STATE = ("planned", "taken", "losses", "weight", "unit", "unit_of_all", "fresh", "used", "sums")
_detach = methodcaller("detach")  # in C: no Python call for each tensor


class Window:
    """The batches between two optimizer steps.

    A plain loss is divided by the window's true size, which is known when it opens. A weighted loss is divided by the
    window's first weight at once. Before the step, the gradients are corrected for the total weight of all batches of
    the window, on all processes whose gradients are averaged.

    Args:
        processes: The processes whose gradients are averaged; None with one process.
        counts_none: Whether the window is closed by an optimizer step even if its batches had no loss.
        terms: Sums the losses of a dict without a key "loss". Default: such a dict is refused.

    Attributes:
        planned: The number of batches that the window will have; 0 before the first window, because a run interrupted
            between two steps resumes within a window.
        taken: The number of losses so far; a step that returned None counts only with `counts_none`.
        used: Whether an earlier window of this epoch had a loss.
        stepped: Whether an optimizer stepped during the last batch.
        steppers: The `id` of each optimizer that did, where the steps are the user's; else empty.
        loss: The loss as the user returned it, while its batch runs.
        fresh: Whether the window has just been opened.
        sums: Whether the steps return dicts of losses that are summed.
    """

    __slots__ = (
        "_resumed", "counts_none", "fresh", "loss", "losses", "planned", "processes", "stepped", "steppers", "sums",
        "taken", "terms", "unit", "unit_of_all", "used", "weight",
    )  # fmt: skip

    def __init__(
        self, processes: Collectives | None = None, counts_none: bool = False, terms: LossTerms | None = None
    ) -> None:
        self.processes, self.counts_none, self.terms = processes, counts_none, terms
        self.sums = False
        self.unit_of_all: float | None = None  # the same on all processes, whose gradients are added before `close`
        self.stepped, self.steppers = False, set[int]()
        self._resumed: Mapping[str, Any] | None = None
        self.loss: Tensor | None = None
        self.losses, self.used = 0, False
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Forget the losses of the previous epoch; continue a window that a checkpoint holds."""
        self.open(0)
        self.used = False
        resumed, self._resumed = self._resumed, None
        for name, value in (resumed or {}).items():
            setattr(self, name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of an open window, as numbers and tensors."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a window when the epoch begins."""
        self._resumed = {name: state[name] for name in _STATE}

    @property
    def has_no_loss(self) -> bool:
        """Whether no batch of this epoch had a loss."""
        return not (self.used or self.losses)

    def open(self, planned: int) -> None:
        self.used |= self.losses > 0
        self.planned, self.fresh = planned, True
        self.taken = self.losses = 0
        self.weight: Any = None
        self.unit: Any = None

    def take_fresh(self) -> bool:
        """Return whether the window has just been opened; False from the second call on."""
        fresh, self.fresh = self.fresh, False
        return fresh

    def note_batch(self, stepped: bool) -> None:
        """Note whether an optimizer stepped in the last batch, which ran before a resume."""
        self.stepped = stepped

    def note_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note that an optimizer stepped; registered as a hook of optimizers."""
        if not self.stepped:
            self.steppers.clear()
        self.stepped = True
        self.steppers.add(id(optimizer))

    @property
    def value(self) -> Tensor | None:
        """The loss of this batch as the user returned it, without its graph; None if there was none."""
        return None if self.loss is None else self.loss.detach()

    def loss_of(self, output: Any, parts: int = 1) -> Tensor | None:
        """Return the loss to differentiate, or None if the batch is skipped.

        Args:
            output: The return value of the step.
            parts: The number of micro-batches that the batch was split into; this is one of them.
        """
        if type(output) is Tensor:
            loss = output
        elif output is None:
            if self.processes is not None:
                raise _skipped_on_one()
            self.taken += self.counts_none
            return None
        elif isinstance(output, Mapping):
            if "weight" in output:
                return self._weighted(output, parts)
            loss = _loss_in(output) if "loss" in output else self._sum_of(output, parts)
        elif isinstance(output, Tensor):
            loss = output
        else:
            raise _no_loss(output)
        if not loss.requires_grad or loss.numel() != 1 or loss.is_complex():
            raise unusable(loss)
        if self.unit is not None:
            raise _mixed("a plain loss after a weighted one")
        self.losses += 1
        self.taken += self.losses % parts == 0  # one of any `parts` consecutive numbers is divisible by it
        self.loss = loss
        divisor = self.planned * parts
        return loss if divisor == 1 else loss / divisor

    def _sum_of(self, output: Mapping[str, Any], parts: int) -> Tensor:
        loss = None if self.terms is None else self.terms.sum(output, logs=parts == 1)
        if loss is None:
            raise _no_loss(output)
        self.sums = True
        return loss

    def _weighted(self, output: Mapping[str, Any], parts: int) -> Tensor | None:
        loss, weight = _loss_in(output), output["weight"]
        if not loss.requires_grad or loss.numel() != 1 or loss.is_complex():
            raise unusable(loss)
        if self.taken and self.unit is None:
            raise _mixed("a weighted loss after a plain one")
        _check_weight(weight)
        if isinstance(weight, Tensor):
            weight = weight.detach()
        elif weight == 0 and self.processes is None and parts == 1:
            return None
        divisor = _not_zero(weight, 1)
        if self.unit is None:
            self.unit, self.weight = self._unit(divisor), weight
        else:
            self.weight = self.weight + weight
        self.losses += 1
        self.taken += self.losses % parts == 0
        self.loss = loss.detach() / divisor
        scaled: Tensor = loss / self.unit
        return scaled

    def _unit(self, divisor: Any) -> Any:
        if self.processes is None:
            return divisor
        if self.unit_of_all is None:
            self.unit_of_all = self.processes.broadcast(float(divisor))
        return self.unit_of_all

    def close(self, optimizers: Sequence[Optimizer]) -> bool:
        """Correct the gradients for sizes unknown when the window opened. Return whether there are any."""
        if self.taken == 0:
            return False
        factor: Any = None
        if self.unit is not None and self.processes is not None:
            weight = torch.as_tensor(self.weight, dtype=torch.float32)
            mean = self.processes.reduce(weight, reduce_op="mean")  # gradients are means over processes as well
            factor = self.unit / _not_zero(mean, self.unit)
        elif self.unit is not None:
            factor = None if self.losses == 1 else self.unit / _not_zero(self.weight, self.unit)
        elif self.taken != self.planned:
            factor = self.planned / self.taken
        if factor is not None:
            scale_gradients(optimizers, factor)
        return True


def detached(output: Any, total: Tensor | None = None) -> dict[str, Any]:
    """Return the output of a training step as a dictionary without gradients.

    Args:
        output: The return value of the step.
        total: The sum of its losses, which becomes its "loss".
    """
    if total is not None:
        output = {"loss": total, **output}
    if isinstance(output, Tensor):
        return {"loss": output.detach()}
    if isinstance(output, Mapping):
        return {
            name: value.detach() if isinstance(value, Tensor) else map_tensors(_detach, value)
            for name, value in output.items()
        }
    return {}


def _not_zero(weight: Any, otherwise: Any) -> Any:
    """Return `weight`, or `otherwise` if it is 0; a tensor is not read, which would wait for its device."""
    return torch.where(weight != 0, weight, otherwise) if isinstance(weight, Tensor) else weight


def _loss_in(output: Mapping[str, Any]) -> Tensor:
    loss = output.get("loss")
    if not isinstance(loss, Tensor):
        raise _no_loss(output)
    return loss


def _no_loss(output: Any) -> MisconfigurationException:
    if isinstance(output, Mapping):
        description = f"a dict with the keys {sorted(map(str, output))}" + (
            f" whose 'loss' is {output['loss']!r:.60}" if "loss" in output else ""
        )
    else:
        description = f"{output!r:.80} ({type(output).__name__})"
    return MisconfigurationException(
        f"training_step returned {description}.",
        expected="the loss (a tensor with one element and a gradient), a dict with 'loss' or with several losses whose "
        "names contain 'loss', or None to skip the batch.",
        fix="return loss, or return {'loss': loss, …}.",
    )


def _skipped_on_one() -> MisconfigurationException:
    return MisconfigurationException(
        "training_step returned None, which skips the batch, on one of several processes.",
        expected="a loss from every process: the other ranks wait for its gradients.",
        fix="return a loss that is 0 (for instance `0 * loss`), or {'loss': loss, 'weight': 0}.",
    )


def _mixed(outputs: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"training_step returned {outputs} within one accumulation window.",
        expected="every batch of a window with a weight, or none.",
        fix="return {'loss': sum, 'weight': n} from every step.",
    )


def _check_weight(weight: Any) -> None:
    if isinstance(weight, Tensor):
        fits = weight.numel() == 1 and not weight.is_complex()
        description = f"a tensor of shape {tuple(weight.shape)}" if fits or weight.numel() != 1 else "a complex number"
    else:
        fits = isinstance(weight, Real) and 0 <= float(weight) < math.inf
        description = f"{weight!r:.60} ({type(weight).__name__})"
    if not fits:
        raise MisconfigurationException(
            f"training_step returned a dict whose 'weight' is {description}.",
            expected="a finite number >= 0 or a tensor with one element: how many items the loss is the sum of.",
            fix="return {'loss': loss_sum, 'weight': number_of_tokens}",
        )


def closure_not_called(module: Module, batch_idx: int) -> MisconfigurationException:
    """Return the error for a batch that was never run, because no optimizer step called its closure."""
    return MisconfigurationException(
        f"The closure of batch {batch_idx} was never called, so training_step and backward did not run.",
        expected="`optimizer_step` to pass the closure to optimizer.step, and optimizer.step to call it.",
        fix=f"optimizer.step(closure=optimizer_closure) in {type(module).__name__}.optimizer_step, or "
        "optimizer_closure() alone to skip the update.",
    )


def closure_called_again(accumulate: int) -> MisconfigurationException:
    """Return the error for evaluating the last batch of a longer window a second time."""
    return MisconfigurationException(
        f"The optimizer called its closure a second time, with accumulate_grad_batches={accumulate}.",
        expected="one call per step: the earlier batches of the window are gone, and cannot be evaluated again.",
        fix="Trainer(accumulate_grad_batches=1) with a larger batch, or manual optimization.",
    )


def unusable(loss: Any, source: str = "training_step returned") -> MisconfigurationException:
    """Return the error for a loss that cannot be differentiated."""
    if not isinstance(loss, Tensor):
        return MisconfigurationException(
            f"{source} {loss!r:.80} ({type(loss).__name__}).",
            expected="a tensor with one element and a gradient.",
            fix="pass the loss itself, without .item() or float().",
        )
    if loss.numel() != 1:
        return MisconfigurationException(
            f"{source} a loss of shape {tuple(loss.shape)}.",
            expected="a tensor with exactly one element.",
            fix="loss.mean()" if source != "training_step returned" else "return loss.mean()",
        )
    if loss.is_complex():
        return MisconfigurationException(
            f"{source} a complex loss ({loss.dtype}).", expected="a real number.", fix="return loss.abs()"
        )
    return MisconfigurationException(
        f"{source} a loss without a gradient (requires_grad is False).",
        expected="a loss that depends on parameters with requires_grad=True.",
        fix="look for .detach(), .item(), torch.no_grad() or only frozen parameters in the computation of the loss.",
    )
