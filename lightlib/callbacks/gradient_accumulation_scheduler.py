"""GradientAccumulationScheduler: another number of batches per optimizer step from certain epochs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightlib.callbacks.callback import Callback
from lightlib.errors import MisconfigurationException, wrong_type, wrong_value

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class GradientAccumulationScheduler(Callback):
    """Accumulates gradients over more or fewer batches from certain epochs on.

    Args:
        scheduling: From this epoch (counted from 0) on, so many batches per optimizer step. Before the first epoch that
            is named, it is one.

    Raises:
        ArgumentTypeError: `scheduling` is no dict of ints.
        MisconfigurationException: It is empty, an epoch is negative, or a number of batches is less than 1; when `fit`
            begins: the Trainer accumulates too; when training begins: the module optimizes manually.

    Example:
        >>> schedule = GradientAccumulationScheduler({0: 8, 4: 4, 8: 1})
        >>> [schedule.get_accumulate_grad_batches(epoch) for epoch in (0, 5, 20)]
        [8, 4, 1]
    """

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        super().__init__()
        _check(scheduling)
        self.scheduling = {0: 1, **dict(sorted(scheduling.items()))}
        self._in_use = 1

    def going_to_accumulate_grad_batches(self) -> bool:
        """Whether any epoch accumulates."""
        return any(number > 1 for number in self.scheduling.values())

    def get_accumulate_grad_batches(self, epoch: int) -> int:
        """Return how many batches an optimizer step has in `epoch`."""
        return self.scheduling[max(start for start in self.scheduling if start <= epoch)]

    @property
    def changes(self) -> tuple[tuple[int, int], ...]:
        """The epochs from which the number of batches may be another one, each with that number."""
        return tuple((epoch, self.get_accumulate_grad_batches(epoch)) for epoch in self.scheduling)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Check that nothing else sets the accumulation: a resumed run then restores the numbers of this callback."""
        if stage == "fit" and trainer.accumulate_grad_batches not in (1, self._in_use):
            raise MisconfigurationException(
                f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}) together with "
                "GradientAccumulationScheduler.",
                expected="one of them.",
                fix=f"leave accumulate_grad_batches away; GradientAccumulationScheduler({{0: "
                f"{trainer.accumulate_grad_batches}}}) does the same.",
            )

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Check that the module is optimized automatically, and apply the schedule if a run resumes within an epoch."""
        if not pl_module.automatic_optimization:
            raise MisconfigurationException(
                f"GradientAccumulationScheduler with {type(pl_module).__name__}.automatic_optimization = False.",
                expected="automatic optimization: in manual optimization, training_step decides when to step.",
                fix="accumulate in training_step, or leave the callback out.",
            )
        self._apply(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._apply(trainer)

    def _apply(self, trainer: Trainer) -> None:
        self._in_use = self.get_accumulate_grad_batches(trainer.current_epoch)
        trainer.accumulate_grad_batches = self._in_use


def _check(scheduling: object) -> None:
    owner = "GradientAccumulationScheduler"
    fix = f"{owner}({{0: 8, 4: 4}}): 8 batches per step, 4 from epoch 4 on."
    numbers = [*scheduling, *scheduling.values()] if isinstance(scheduling, Mapping) else [None]
    if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        expected = "a dict from epochs to numbers of batches, all of them ints"
        raise wrong_type(owner, "scheduling", scheduling, expected, fix=fix)
    assert isinstance(scheduling, Mapping)
    if not scheduling or min(scheduling) < 0 or min(scheduling.values()) < 1:
        expected = "at least one entry, epochs >= 0 and numbers of batches >= 1"
        raise wrong_value(owner, "scheduling", scheduling, expected, fix=fix)
