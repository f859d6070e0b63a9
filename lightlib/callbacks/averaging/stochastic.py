"""StochasticWeightAveraging: averages the weights of the last epochs, with their own learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim.swa_utils import SWALR

from lightlib import report
from lightlib.callbacks.averaging.average import Average
from lightlib.callbacks.averaging.batch_norm import update_batch_norms
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_one_average, need_stepped_parameters
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.storage.content import AVERAGED
from lightlib.errors import (
    MisconfigurationException,
    check_int,
    check_number,
    check_type,
    check_word,
    wrong_type,
    wrong_value,
)

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class StochasticWeightAveraging(Callback):
    """Averages the weights at the start of each of the last epochs; training ends with the average (SWA).

    From the first of these epochs on, `SWALR` of torch takes the place of the learning-rate schedule. When training
    ends, the module gets the average, and one more pass over the training data computes the statistics of its batch
    norms, as `torch.optim.swa_utils.update_bn` does: `training_step` runs without gradients, and nothing is logged.

    Validations and the `state_dict` of checkpoints have the weights that are trained, until training ends. Checkpoints
    hold the average as ``average_model_state``, and a resumed run ends with the same bits, under every strategy but
    DeepSpeed. Source: Izmailov et al., https://arxiv.org/abs/1803.05407.

    Args:
        swa_lrs: The learning rate to anneal to, or one for each parameter group.
        swa_epoch_start: The first epoch that is averaged: an int counts from 1; a float from 0 to 1 is a share of
            `max_epochs`.
        annealing_epochs: Over how many epochs the learning rate changes; 0: at once.
        annealing_strategy: ``"cos"`` or ``"linear"``.
        avg_fn: ``avg_fn(average, weights, number of states averaged)`` returns the new average. Default: the mean.
            With shards it gets shards, so it must work element by element.
        device: Where the average is kept. None: where the parameters are.

    Raises:
        ArgumentTypeError: An argument of another type.
        MisconfigurationException: An argument out of range; when a run begins: several optimizers or schedules, manual
            optimization, a share of an unknown number of epochs, another callback that averages, or DeepSpeed.

    Example:
        >>> StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=5).swa_start
        4
    """

    def __init__(
        self,
        swa_lrs: float | list[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: Literal["cos", "linear"] = "cos",
        avg_fn: Callable[[Tensor, Tensor, Any], Tensor] | None = None,
        device: torch.device | str | None = torch.device("cpu"),  # noqa: B008  Lightning's default; it is immutable
    ) -> None:
        super().__init__()
        _check(type(self).__name__, swa_lrs, swa_epoch_start, annealing_strategy, avg_fn, device)
        check_int(type(self).__name__, "annealing_epochs", annealing_epochs, 0)
        self._swa_lrs, self._swa_epoch_start = swa_lrs, swa_epoch_start
        self._annealing_epochs, self._annealing_strategy = annealing_epochs, annealing_strategy
        self._options = {} if avg_fn is None else {"avg_fn": avg_fn}
        self._device = torch.device(device) if isinstance(device, str) else device
        self._max_epochs: int | None = None
        self._reset_average()

    def _reset_average(self) -> None:
        self._average: Average | None = None
        self._schedule: SWALR | None = None
        self._replaced: list[Any] = []  # the schedules whose place it has taken
        self._saved_schedule: dict[str, Any] | None = None  # from a checkpoint, until training begins
        self._latest_update_epoch, self._finished = -1, False

    @property
    def swa_start(self) -> int:
        """The first epoch that is averaged, from 0."""
        start = self._swa_epoch_start
        if isinstance(start, float):
            start = int((self._max_epochs or 0) * start)
        return max(start - 1, 0)

    # training
    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        name = type(self).__name__
        need_one_average(self, trainer)
        need_stepped_parameters(self, trainer)
        if not pl_module.automatic_optimization:
            raise MisconfigurationException(
                f"{name} with {type(pl_module).__name__}.automatic_optimization = False.",
                expected="automatic optimization, which steps the schedule of the averaged epochs.",
                fix="use torch.optim.swa_utils in training_step, or WeightAveraging.",
            )
        self._max_epochs = None if trainer.max_epochs is None else math.ceil(trainer.max_epochs)
        if isinstance(self._swa_epoch_start, float) and (self._max_epochs or -1) < 0:
            raise MisconfigurationException(
                f"{name}(swa_epoch_start={self._swa_epoch_start}) with max_epochs={self._max_epochs}.",
                expected="an epoch, when the number of epochs is unknown.",
                fix=f"{name}(…, swa_epoch_start=5), or Trainer(max_epochs=10).",
            )
        self._reset_average()

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        name = type(self).__name__
        for number, noun in ((len(trainer.optimizers), "optimizer"), (len(trainer.lr_scheduler_configs), "schedule")):
            if number > 1 or (number == 0 and noun == "optimizer"):
                raise MisconfigurationException(
                    f"{name} got {number} {noun}s.",
                    expected=f"one {noun}.",
                    fix="return one from configure_optimizers.",
                )
        groups = len(trainer.optimizers[0].param_groups)
        if isinstance(self._swa_lrs, list) and len(self._swa_lrs) < groups:
            raise MisconfigurationException(
                f"{name}(swa_lrs={self._swa_lrs}) for an optimizer with {groups} parameter groups.",
                expected="a learning rate for each group.",
                fix=f"{name}(swa_lrs={[*self._swa_lrs, *[self._swa_lrs[-1]] * (groups - len(self._swa_lrs))]})",
            )

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        saved, self._saved_schedule = self._saved_schedule, None
        if saved is not None:
            self._replace_schedule(trainer).load_state_dict(saved)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        epoch = trainer.current_epoch
        if epoch < self.swa_start or epoch <= self._latest_update_epoch:
            return
        groups = trainer.optimizers[0].param_groups
        if self._schedule is None:
            self._replace_schedule(trainer)
            report.info(f"{type(self).__name__} begins in epoch {epoch}: the learning rate goes to {self._swa_lrs}.")
        for group, rate in zip(groups, self._rates(len(groups)), strict=True):
            group.setdefault("swa_lr", rate)  # a group that was added since
        if self._average is None:
            self._average = Average(pl_module, self._device, None, self._options)
        else:
            self._average.update(pl_module)
        self._latest_update_epoch, self._finished = epoch, False

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._average is None or self._finished:
            return
        self._average.copy_to(pl_module)
        update_batch_norms(trainer, pl_module)
        trainer.strategy.share_buffers()
        self._finished = True

    def _replace_schedule(self, trainer: Trainer) -> SWALR:
        run, optimizer = trainer.run, trainer.optimizers[0]
        assert run is not None
        rates = self._rates(len(optimizer.param_groups))
        self._schedule = SWALR(optimizer, rates, self._annealing_epochs, self._annealing_strategy)  # type: ignore[arg-type]
        self._replaced = run.optimization.schedules.use(self._schedule)
        for config in self._replaced:
            if (config.interval, config.frequency) != ("epoch", 1):
                report.warn(
                    f"{type(self).__name__} replaces {type(config.scheduler).__name__}, which stepped with "
                    f"interval={config.interval!r} and frequency={config.frequency}: from now on the learning rate "
                    "changes once per epoch.",
                    report.PossibleUserWarning,
                )
        return self._schedule

    def _rates(self, groups: int) -> list[float]:
        rates = self._swa_lrs if isinstance(self._swa_lrs, list) else [self._swa_lrs]
        return [*rates, *rates[-1:] * groups][:groups]

    # checkpoints
    def state_dict(self) -> dict[str, Any]:
        return {
            "n_averaged": 0 if self._average is None else self._average.count,
            "latest_update_epoch": self._latest_update_epoch,
            "scheduler_state": self._saved_schedule if self._schedule is None else self._schedule.state_dict(),
            "finished": self._finished,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._latest_update_epoch = state_dict["latest_update_epoch"]
        self._saved_schedule = state_dict["scheduler_state"]
        self._finished = state_dict.get("finished", False)

    def checkpoint_weights(
        self, trainer: Trainer, pl_module: Module
    ) -> Mapping[str, Callable[[], AbstractContextManager[None]]]:
        average = self._average
        if average is None or self._finished:
            return {}

        @contextmanager
        def averaged() -> Iterator[None]:
            average.swap(pl_module)
            yield
            average.swap(pl_module)

        return {"state_dict": nullcontext, AVERAGED: averaged}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        if self._schedule is not None and "lr_schedulers" in checkpoint:  # those that a resumed run configures
            checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in self._replaced]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        callback_state = checkpoint.get("callbacks", {}).get(self.state_key, {})
        # At the end of a run the average has become the weights.
        averaged = checkpoint.get(AVERAGED, checkpoint["state_dict"] if callback_state.get("finished") else None)
        if trainer.state.fn != "fit" or averaged is None:
            return
        count = int(callback_state.get("n_averaged", 1))
        strategy = trainer.strategy
        strategy.load_module_state(averaged if strategy.reads_parts else read_tensors(averaged))
        self._average = Average(pl_module, self._device, None, self._options, count)
        trained = checkpoint["state_dict"]
        strategy.load_module_state(trained if strategy.reads_parts else read_tensors(trained))


def _check(name: str, swa_lrs: object, start: object, strategy: object, avg_fn: object, device: object) -> None:
    rates: list[Any] = swa_lrs if isinstance(swa_lrs, list) and swa_lrs else [swa_lrs]
    for rate in rates:
        check_number(name, "swa_lrs", rate, above=0, meaning=", or a list of them", example=0.01)
    if isinstance(start, bool) or not isinstance(start, (int, float)):
        raise wrong_type(name, "swa_epoch_start", start, "an epoch, or a share of the epochs", 0.8)
    if start < 1 if isinstance(start, int) else not 0 <= start <= 1:
        raise wrong_value(name, "swa_epoch_start", start, "an int of at least 1, or a float from 0 to 1", 0.8)
    check_word(name, "annealing_strategy", strategy, ("cos", "linear"))
    example = "torch.optim.swa_utils.get_swa_avg_fn()"
    check_type(name, "avg_fn", avg_fn, Callable | None, "a function of an average, weights and a number", example)
    check_type(name, "device", device, torch.device | str | None, "a torch.device or a string", '"cpu"')
