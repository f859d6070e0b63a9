"""The curve of a learning-rate search: losses by learning rate, the suggestion, and its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightlib import optional, report
from lightlib.callbacks.callback import Callback
from lightlib.errors import MisconfigurationException
from lightlib.tuner.attribute import set_rate

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_BETA = 0.98  # of the running mean of the loss


class LRFinder:
    """The result of a learning-rate search.

    Args:
        mode: ``"exponential"`` or ``"linear"``: how the learning rate grows.
        lr_min: The first learning rate.
        lr_max: The last one.
        num_training: Optimizer steps.
        results: Those of a finished search. Default: none yet.

    Attributes:
        results: ``"lr"``: the learning rates; ``"loss"``: the smoothed loss at each.

    Example:
        >>> curve = LRFinder("exponential", 0.01, 1.0, 4)
        >>> [round(curve.lr_at(step), 4) for step in range(4)]
        [0.01, 0.1, 0.3162, 1.0]
        >>> curve.results = {"lr": [0.01, 0.1, 0.3, 1.0], "loss": [2.0, 1.9, 1.0, 4.0]}
        >>> curve.suggestion(skip_begin=0)
        0.3
    """

    def __init__(
        self,
        mode: str,
        lr_min: float,
        lr_max: float,
        num_training: int,
        results: dict[str, list[float]] | None = None,
    ) -> None:
        self.mode, self.lr_min, self.lr_max, self.num_training = mode, lr_min, lr_max, num_training
        self.results = {"lr": [], "loss": []} if results is None else results
        self._optimal_idx: int | None = None

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step, from 0. As in Lightning the second one is already two steps up."""
        if step == 0:
            return self.lr_min
        share = (step + 1) / self.num_training
        if self.mode == "linear":
            return self.lr_min + share * (self.lr_max - self.lr_min)
        return float(self.lr_min * (self.lr_max / self.lr_min) ** share)

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """Return the learning rate at which the loss falls fastest.

        Args:
            skip_begin: Points to ignore at the beginning. Default 10.
            skip_end: Points to ignore at the end. Default 1.

        Returns:
            None, with a warning, if fewer than two finite points are left.
        """
        losses, lrs = self.results["loss"], self.results["lr"]
        points = [
            i for i in range(skip_begin, len(losses) - skip_end) if torch.isfinite(torch.tensor(losses[i])).item()
        ]
        if len(points) < 2:
            self._optimal_idx = None
            report.warn(
                f"No learning rate can be suggested: {len(points)} finite losses are left of {len(losses)}, without "
                f"the first {skip_begin} and the last {skip_end}. Search over more steps, or skip fewer points."
            )
            return None
        spacing = torch.tensor([lrs[i] for i in points])
        slopes = torch.gradient(torch.tensor([losses[i] for i in points]), spacing=[spacing])[0]
        self._optimal_idx = points[int(torch.argmin(slopes))]
        return lrs[self._optimal_idx]

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """Draw the loss by learning rate.

        Args:
            suggest: Mark the suggestion with a red point.
            show: Show the figure in a window.
            ax: The matplotlib axes to draw on. Default: those of a new figure.

        Returns:
            The figure.

        Raises:
            MisconfigurationException: matplotlib is not installed.
        """
        plt = optional.load("matplotlib.pyplot", "The plot of a learning-rate search")
        if ax is None:
            _, ax = plt.subplots()
        lrs, losses = self.results["lr"], self.results["loss"]
        ax.plot(lrs, losses)
        if self.mode == "exponential":
            ax.set_xscale("log")
        ax.set_xlabel("Learning rate")
        ax.set_ylabel("Loss")
        if suggest and self.suggestion() is not None and self._optimal_idx is not None:
            ax.plot(lrs[self._optimal_idx], losses[self._optimal_idx], markersize=10, marker="o", color="red")
        if show:
            plt.show()
        return ax.figure


class Recorder(Callback):
    """Sets the learning rate of each step of the probe and notes the smoothed loss.

    The loss is the mean over all processes, so that all see one curve and stop at one step.
    """

    def __init__(self, curve: LRFinder, early_stop_threshold: float | None) -> None:
        self.curve, self._threshold = curve, early_stop_threshold
        self._mean = self._best = 0.0
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not pl_module.automatic_optimization:
            raise MisconfigurationException(
                f"A learning-rate search with {type(pl_module).__name__}, which steps its optimizers itself.",
                expected="automatic optimization.",
                fix="search with automatic_optimization = True, or choose the learning rate by hand.",
            )
        if len(trainer.optimizers) != 1:
            raise MisconfigurationException(
                f"A learning-rate search with {len(trainer.optimizers)} optimizers.",
                expected="one optimizer: the search changes one learning rate.",
                fix="return one optimizer from configure_optimizers while you search.",
            )
        self._set(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> int | None:
        self._set(trainer)
        return None

    def _set(self, trainer: Trainer) -> None:
        lr = self.curve.lr_at(trainer.global_step)
        for group in trainer.optimizers[0].param_groups:
            set_rate(group, lr)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step == self._step:
            return  # within an accumulation window
        lr, self._step = self.curve.lr_at(self._step), step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        value = torch.tensor(float("nan")) if loss is None else loss.detach().clone()
        value = trainer.strategy.reduce(value.to(trainer.strategy.root_device), reduce_op="mean")
        self.curve.results["lr"].append(lr)
        if loss is None:
            self.curve.results["loss"].append(float("nan"))
            return
        self._mean = _BETA * self._mean + (1 - _BETA) * float(value)
        smooth = self._mean / (1 - _BETA ** (step + 1))
        if self._threshold is not None and step > 1 and smooth > self._threshold * self._best:
            trainer.should_stop = True
        if smooth < self._best or step == 1:
            self._best = smooth
        self.curve.results["loss"].append(smooth)
