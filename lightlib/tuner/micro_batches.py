"""MicroBatches: trains each batch in parts that fit into memory, and halves them when it runs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib import report
from lightlib.accelerators.out_of_memory import free_memory, is_out_of_memory
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from lightlib.core.metrics.torchmetric import is_metric, load_metric_state, metric_state
from lightlib.core.optimization.window import Window
from lightlib.data.seed import rng_state, set_rng_state
from lightlib.errors import MisconfigurationException, check_int
from lightlib.strategies.pipeline.micro_batches import merged, parts_of, size_of
from lightlib.tree import map_tensors

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class MicroBatches(Callback):
    """Trains each batch in micro-batches, and halves them when memory runs out. The step stays that of the batch.

    ``Trainer(accumulate_grad_batches="auto")`` adds one. `training_step` and the hooks of a backward get the
    micro-batches, other hooks the batch. Losses are means, so each counts by its share of the samples; a loss whose
    mean is over something else, such as tokens, is exact as ``{"loss": sum, "weight": tokens}``. Batch norms take their
    statistics from a micro-batch.

    When memory runs out, random numbers, gradients, buffers, metrics and logged values go back to the start of the
    batch, and all ranks repeat it. The size is kept in checkpoints. Ranks reduce gradients after the last micro-batch,
    and not during its backward. If `training_step` returns None for a micro-batch, the batch is skipped.

    A batch is cut along the first dimension of its tensors, or by the module's ``split_batch(batch, n)``.

    Args:
        size: The samples of a micro-batch at the start. Default: those of the batch.

    Attributes:
        size: The samples of a micro-batch now; None for all of a batch.

    Raises:
        ArgumentTypeError: `size` is no int.
        MisconfigurationException: It is below 1; or when `fit` begins: a batch cannot be repeated.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[MicroBatches(size=8)])
    """

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        if size is not None:
            check_int("MicroBatches", "size", size, 1)
        self.size = size
        self._metrics: list[Any] = []

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        if reason := _reason(trainer, pl_module):
            raise MisconfigurationException(
                f"Batches are to be trained in micro-batches that fit into memory, but {reason}.",
                expected="automatic optimization with one batch per step, on one device or under ddp.",
                fix="give accumulate_grad_batches a number, and the loader a smaller batch_size; "
                "BatchSizeFinder on one device finds the largest.",
            )
        trainer.strategy.train_in_parts(partial(self._around, trainer))

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._metrics = [part for part in pl_module.modules() if is_metric(part)]

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.size = state_dict["size"]

    def _around(self, trainer: Trainer, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that runs a batch by several calls of `step`."""

        def in_parts(batch: Any, batch_idx: int, backward: Callable[..., None], _: bool) -> Any:
            output, first = None, self.size
            while output is None:
                before = _Before.of(trainer, self._metrics)
                output = self._attempt(trainer, step, (batch, batch_idx), backward)
                if output is None:
                    before.restore(trainer)
                    free_memory()
                    self._halve(trainer, batch)
            if self.size != first:
                report.info(
                    f"A batch ran out of memory: from step {trainer.global_step + 1} on it is trained in micro-batches "
                    f"of {self.size} samples, with the same samples per step."
                )
            if trainer.world_size > 1:
                for optimizer in trainer.optimizers:
                    trainer.strategy.sync_gradients(getattr(optimizer, "optimizer", optimizer))
            return output[0]

        return in_parts

    def _attempt(
        self,
        trainer: Trainer,
        step: Callable[..., Any],
        batch_and_index: tuple[Any, int],
        backward: Callable[..., None],
    ) -> list[Any] | None:
        """Return the output of a batch, in a list; None if memory ran out on any process."""
        batch, batch_idx = batch_and_index
        size, failed = size_of(batch), False
        number = 1 if size is None or self.size is None else math.ceil(size / self.size)
        outputs: list[Any] = []
        alone = trainer.world_size == 1
        parts = [batch] if number == 1 else parts_of(batch, number, trainer.lightning_module)
        sizes = [size_of(part) or 1 for part in parts]
        shares = [each / sum(sizes) for each in sizes]
        try:
            for part, share in zip(parts, shares, strict=True):
                weighted = partial(_backward, backward, number, share)
                outputs.append(step(part, batch_idx, weighted, alone))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or max(sizes) <= 1:
                raise
            failed = True
        if failed if alone else trainer.strategy.reduce_boolean_decision(failed, all=False):
            return None
        if any(output is None for output in outputs):
            return [None]
        assert trainer.run is not None
        return outputs if number == 1 else [_of_the_batch(trainer.run.optimization.window, outputs, shares)]

    def _halve(self, trainer: Trainer, batch: Any) -> None:
        """Halve the micro-batch, to the same size on all processes."""
        size = size_of(batch) or 1
        if trainer.world_size > 1:
            size = int(trainer.strategy.reduce(torch.tensor(size), reduce_op="max"))
        self.size = max(1, (min(size, self.size or size) + 1) // 2)


@dataclass
class _Before:
    """The state before a batch that a repetition needs."""

    rng: dict[str, Any]
    buffers: list[tuple[Tensor, Tensor]]
    metrics: list[tuple[Any, dict[str, Any]]]
    slots: dict[Any, Any]

    @classmethod
    def of(cls, trainer: Trainer, metrics: Sequence[Any]) -> _Before:
        """Copy the present state."""
        assert trainer.run is not None
        table, module = trainer.run.results.train, trainer.lightning_module
        return cls(
            {**rng_state(), **trainer.accelerator.rng_state()},
            [(buffer, buffer.clone()) for buffer in module.buffers()],
            [(metric, map_tensors(Tensor.clone, metric_state(metric))) for metric in metrics],
            {key: replace(slot, pending=list(slot.pending)) for key, slot in table.slots.items()},
        )

    def restore(self, trainer: Trainer) -> None:
        """Go back to it, without gradients."""
        assert trainer.run is not None
        run = trainer.run
        set_rng_state(self.rng)
        trainer.accelerator.set_rng_state(self.rng)
        for buffer, value in self.buffers:
            buffer.copy_(value)
        for metric, state in self.metrics:
            load_metric_state(metric, state)
        run.results.train.slots.clear()
        run.results.train.slots.update(self.slots)
        for parameter in run.module.parameters():
            parameter.grad = None
        run.optimization.window.open(run.optimization.window.planned)


def _backward(backward: Callable[..., None], number: int, share: float, output: Any, by: Any = None) -> None:
    """Differentiate the loss of a micro-batch, which is a mean, by its share of the batch."""
    factor = share * number
    if factor != 1 and isinstance(output, Mapping) and "weight" not in output:
        losses = {name: value for name, value in output.items() if name == "loss" or _is_term(output, name)}
        output = map_tensors(partial(torch.mul, factor), losses)
    elif factor != 1 and isinstance(output, Tensor):
        output = output * factor
    backward(output, by, parts=number)


def _is_term(output: Mapping[str, Any], name: str) -> bool:
    """Whether an entry is one of several losses that are summed."""
    return "loss" not in output and "loss" in str(name)


def _of_the_batch(window: Window, outputs: list[Any], shares: list[float]) -> Any:
    """Return the output of a batch for those of its micro-batches; log several losses, as of a batch in one piece."""
    weighted, terms = isinstance(outputs[0], Mapping) and "weight" in outputs[0], window.terms
    names = {name for output in outputs if isinstance(output, Mapping) for name in output if _is_term(output, name)}
    if not names or weighted or terms is None:
        return merged(outputs, weighted, shares)
    means = dict.fromkeys(names, torch.zeros(()))
    for output, share in zip(outputs, shares, strict=True):
        for name in names & output.keys():
            mean: Any = terms.sum({name: output[name]}, logs=False)
            means[name] = means[name] + share * mean.detach()
    losses = {**means, "loss": terms.sum(means, logs=True)}
    joined = merged([{**output, "loss": losses["loss"]} for output in outputs], False, shares)
    return {**joined, **{name: mean for name, mean in losses.items() if not getattr(outputs[0].get(name), "ndim", 0)}}


def _reason(trainer: Trainer, module: Module) -> str:
    """Return why a batch cannot be repeated in parts; empty if it can."""
    strategy = trainer.strategy
    if not module.automatic_optimization:
        return "automatic_optimization=False: training_step steps the optimizer"
    if trainer.accumulate_grad_batches != 1 or trainer.global_batch_size is not None:
        return "several batches make a step, and the gradients of the earlier ones cannot be kept apart"
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks):
        return "a GradientAccumulationScheduler accumulates gradients"
    if strategy.world_size == 1:
        return "" if strategy.steps_parameters else f"{type(strategy).__name__} has gradients of its own"
    if not strategy.keeps_layers:
        return f"{strategy.describe()} exchanges tensors within a batch, where no rank can stop alone"
    if strategy.sync_batchnorm:
        return "sync_batchnorm exchanges statistics within a batch, where no rank can stop alone"
    return ""
