"""ScheduleFree: switches schedule-free optimizers between the trained weights and their average."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_one_average
from lightlib.callbacks.summary.training_memory import local_part, reshard
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class ScheduleFree(Callback):
    """Calls `train()` and `eval()` of schedule-free optimizers; a run with such an optimizer adds it by itself.

    The average is validated, is the ``state_dict`` of a checkpoint, and remains in the module at the end. The weights
    that are trained are saved as tensors of this callback, so that a resumed run continues them. They are kept in a
    copy while the module has the average, because `eval()` and `train()` round: neither a validation nor a checkpoint
    changes the training by a bit.

    Args:
        optimizers: The optimizers.
    """

    def __init__(self, optimizers: Sequence[Any]) -> None:
        super().__init__()
        self._optimizers = optimizers
        self._trained: list[Tensor] | None = None  # while the module has the average

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        for optimizer in self._optimizers:
            optimizer.train()

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._put(True, pl_module)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._put(True, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._put(False, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        self._put(False, pl_module)

    @torch.no_grad()
    def _put(self, average: bool, pl_module: Module) -> None:
        """Put the average into the module, or the weights that are trained, unless they are there."""
        if average is (self._trained is not None):
            return
        reshard(pl_module)
        parameters = [p for each in self._optimizers for group in each.param_groups for p in group["params"]]
        tensors = [local_part(parameter.detach()) for parameter in parameters]
        if self._trained is None:
            self._trained = [tensor.clone() for tensor in tensors]
            for optimizer in self._optimizers:
                optimizer.eval()
            return
        for optimizer in self._optimizers:
            optimizer.train()
        for tensor, trained in zip(tensors, self._trained, strict=True):
            tensor.copy_(trained)
        self._trained = None

    @contextmanager
    def _swapped(self, average: bool, pl_module: Module) -> Iterator[None]:
        before = self._trained is not None
        self._put(average, pl_module)
        yield
        self._put(before, pl_module)

    # checkpoints
    def checkpoint_weights(
        self, trainer: Trainer, pl_module: Module
    ) -> Mapping[str, Callable[[], AbstractContextManager[None]]]:
        return {"state_dict": lambda: self._swapped(True, pl_module)}

    def sharded_state(self, trainer: Trainer, pl_module: Module) -> dict[str, dict[str, Tensor]]:
        stepped = {id(p) for each in self._optimizers for group in each.param_groups for p in group["params"]}
        with self._swapped(False, pl_module):
            named = pl_module.named_parameters()
            return {"trained": {name: p.detach().clone() for name, p in named if id(p) in stepped}}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        for state in checkpoint.get("optimizer_states", ()):
            for group in state.get("param_groups", ()):
                if "train_mode" in group:
                    group["train_mode"] = True  # as the weights of this callback are, also within a validation

    @torch.no_grad()
    def load_sharded_state(self, trainer: Trainer, pl_module: Module, state: dict[str, dict[str, Tensor]]) -> None:
        parameters = dict(pl_module.named_parameters())
        for name, trained in state["trained"].items():
            parameters[name].copy_(trained)


def schedule_free(
    trainer: Trainer, given: Sequence[Any], stepped: Sequence[Any], schedules: Sequence[Any]
) -> ScheduleFree | None:
    """Return the callback for the optimizers that have `train()` and `eval()`; None if none has.

    Args:
        trainer: The Trainer.
        given: The optimizers that `configure_optimizers` returned.
        stepped: For each the one that the strategy steps.
        schedules: The schedulers of the run.

    Raises:
        MisconfigurationException: The strategy replaces such an optimizer, or there is a callback with an average.
    """
    pairs = [(user, ours) for user, ours in zip(given, stepped, strict=True) if _has_modes(user)]
    if not pairs:
        return None
    name = type(pairs[0][0]).__name__
    if any(user is not ours for user, ours in pairs):
        raise MisconfigurationException(
            f"{name} is a schedule-free optimizer, and {type(trainer.strategy).__name__} steps it in shards or by an "
            "optimizer of its own, which cannot give the weights their average.",
            expected="a strategy that steps the optimizer as it is.",
            fix="Trainer(strategy='ddp') or 'fsdp', or torch.optim.AdamW.",
        )
    if schedules:
        report.warn(
            f"{name} is a schedule-free optimizer, and the run has a schedule ({type(schedules[0]).__name__}): a rate "
            "that falls gives the later weights less weight in the average.\n"
            "  Expected: a constant rate, with the warmup of the optimizer.\n"
            f"  Fix: {name}(…, warmup_steps=…), without a scheduler.",
            report.PossibleUserWarning,
        )
    callback = ScheduleFree([user for user, _ in pairs])
    need_one_average(callback, trainer)
    return callback


def _has_modes(optimizer: Any) -> bool:
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))
