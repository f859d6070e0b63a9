"""WeightAveraging: validates, saves and ends with averages of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.swa_utils import get_ema_avg_fn

from lightlib import report
from lightlib.callbacks.averaging.average import Average
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_one_average, need_stepped_parameters
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.storage.content import TRAINED
from lightlib.errors import MisconfigurationException, check_int, check_number, check_type, wrong_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_OPTIONS = ("avg_fn", "multi_avg_fn")


class WeightAveraging(Callback):
    """Averages the weights after each optimizer step; validation, checkpoints and the end of training use the average.

    It works with every strategy but DeepSpeed: each process averages the parameters, or shards of them, that it has.
    A checkpoint holds the average as its ``state_dict``, which `load_from_checkpoint` and ``test(ckpt_path=…)`` read,
    and the weights that are trained as ``current_model_state``: a resumed run continues both, bit for bit.

    Until the first update there is no average, and the weights are left alone.

    Args:
        device: Where the average is kept. Default: where the parameters are; ``"cpu"`` saves memory of the device.
        use_buffers: Average the buffers of floating point as well, such as running statistics. Other buffers, and all
            of them with False, are copied at each update. After a validation and in a checkpoint all processes have
            the buffers of the first one.
        kwargs: `avg_fn` or `multi_avg_fn` of :class:`torch.optim.swa_utils.AveragedModel`. With shards they get
            shards, so they must work element by element. Default: the mean of all states.

    Raises:
        ArgumentTypeError: An argument of another name, or a function that cannot be called.
        MisconfigurationException: Both functions; when a run begins: a second such callback, or a strategy such as
            DeepSpeed, which trains copies of the parameters.

    Example:
        >>> from torch.optim.swa_utils import get_ema_multi_avg_fn
        >>> class FromStep100(WeightAveraging):
        ...     def should_update(self, step_idx=None, epoch_idx=None):
        ...         return step_idx is not None and step_idx >= 100
        >>> FromStep100(multi_avg_fn=get_ema_multi_avg_fn(0.99)).should_update(step_idx=3)
        False
    """

    def __init__(self, device: torch.device | str | int | None = None, use_buffers: bool = True, **kwargs: Any) -> None:
        super().__init__()
        _check(type(self).__name__, kwargs)
        self._device = torch.device(device) if isinstance(device, (str, int)) else device
        self._use_buffers, self._options = use_buffers, kwargs
        self._average: Average | None = None
        self._in_module = False  # the average, and the trained weights are in its place
        self._last_step, self._last_epoch = 0, -1

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return whether to update the average: after a step, or at the end of an epoch. Override it to choose.

        Args:
            step_idx: The number of the last optimizer step, from 0; None at the end of an epoch.
            epoch_idx: The number of the epoch, from 0; None after a step.

        Returns:
            By default, True after each step.
        """
        return step_idx is not None

    # training
    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        need_one_average(self, trainer)
        need_stepped_parameters(self, trainer)
        self._average, self._in_module, self._last_step, self._last_epoch = None, False, 0, -1

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step > self._last_step and self.should_update(step_idx=step - 1):
            self._update(pl_module)
            self._last_step = step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        epoch = trainer.current_epoch
        if epoch > self._last_epoch and self.should_update(epoch_idx=epoch):
            self._update(pl_module)
            self._last_epoch = epoch

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._average is not None:
            self._average.copy_to(pl_module)
            trainer.strategy.share_buffers()

    def _update(self, pl_module: Module) -> None:
        if self._average is None:
            self._average = Average(pl_module, self._device, self._use_buffers, self._options)
        else:
            self._average.update(pl_module)

    # validation
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.state.fn == "fit":
            self._put(True, trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._put(False, trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        self._put(False, trainer, pl_module)

    def _put(self, average: bool, trainer: Trainer, pl_module: Module) -> None:
        """Put the average into the module, or the trained weights, unless they are there."""
        if self._average is None or average is self._in_module:
            return
        self._average.swap(pl_module)
        self._in_module = average
        if average:
            trainer.strategy.share_buffers()

    # checkpoints
    def state_dict(self) -> dict[str, Any]:
        return {"latest_update_step": self._last_step, "latest_update_epoch": self._last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._last_step = state_dict["latest_update_step"]
        self._last_epoch = state_dict.get("latest_update_epoch", -1)  # files of Lightning have none

    def checkpoint_weights(
        self, trainer: Trainer, pl_module: Module
    ) -> Mapping[str, Callable[[], AbstractContextManager[None]]]:
        if self._average is None:
            return {}

        @contextmanager
        def swapped(average: bool) -> Iterator[None]:
            before = self._in_module
            self._put(average, trainer, pl_module)
            yield
            self._put(before, trainer, pl_module)

        return {TRAINED: lambda: swapped(False), "state_dict": lambda: swapped(True)}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        if self._average is not None and TRAINED in checkpoint:
            checkpoint["averaging_state"] = {"n_averaged": torch.tensor(self._average.count)}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":
            return  # the module has the average
        trained = checkpoint.get(TRAINED)
        if trained is None:
            report.info(f"The checkpoint holds no average of weights: {type(self).__name__} begins one.")
            return
        count = int(read_tensors(checkpoint.get("averaging_state") or {}).get("n_averaged", 1))
        self._average = Average(pl_module, self._device, self._use_buffers, self._options, count)
        strategy = trainer.strategy
        strategy.load_module_state(trained if strategy.reads_parts else read_tensors(trained))


class EMAWeightAveraging(WeightAveraging):
    """Keeps an exponential moving average of the weights: ``average = decay · average + (1 - decay) · weights``.

    Everything else is as with :class:`WeightAveraging`.

    Args:
        device, use_buffers: As for :class:`WeightAveraging`.
        decay: The share of the old average, from 0 to 1.
        update_every_n_steps: Update after optimizer steps 0, n, 2n, …
        update_starting_at_step: The first step that may update. Default: 0.
        update_starting_at_epoch: Also update at the end of each epoch from this one on. Default: never.
        kwargs: None: the average is given by `decay`.

    Raises:
        ArgumentTypeError: A decay that is no number, steps or epochs that are no ints.
        MisconfigurationException: A decay outside of 0 to 1, or negative steps or epochs.

    Example:
        >>> EMAWeightAveraging(decay=0.99, update_every_n_steps=10).should_update(step_idx=20)
        True
    """

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        if taken := [option for option in _OPTIONS if option in kwargs]:
            function, fix = kwargs[taken[0]], f"WeightAveraging({taken[0]}=…)"
            raise wrong_type(name, taken[0], function, "decay, which makes the averaging function", fix=fix)
        check_number(name, "decay", decay, least=0, most=1, example=0.999)
        check_int(name, "update_every_n_steps", update_every_n_steps, 1)
        for argument, value in (
            ("update_starting_at_step", update_starting_at_step),
            ("update_starting_at_epoch", update_starting_at_epoch),
        ):
            if value is not None:
                check_int(name, argument, value, 0)
        super().__init__(device, use_buffers, avg_fn=get_ema_avg_fn(decay), **kwargs)  # type: ignore[no-untyped-call]
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        self.update_starting_at_epoch = update_starting_at_epoch

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        if step_idx is not None:
            return step_idx >= (self.update_starting_at_step or 0) and step_idx % self.update_every_n_steps == 0
        first = self.update_starting_at_epoch
        return first is not None and epoch_idx is not None and epoch_idx >= first


def _check(name: str, options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        if option not in _OPTIONS:
            fix = f"leave {option} out."
            raise wrong_type(name, option, value, f"device, use_buffers, {' or '.join(_OPTIONS)}", fix=fix)
        expected = "a function such as torch.optim.swa_utils.get_ema_avg_fn(0.999)"
        check_type(name, option, value, Callable | None, expected, "get_ema_avg_fn(0.999)")
    if all(options.get(option) is not None for option in _OPTIONS):
        raise MisconfigurationException(
            f"{name} got both avg_fn and multi_avg_fn.",
            expected="one of them.",
            fix="leave one of them out.",
        )
