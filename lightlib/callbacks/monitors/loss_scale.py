"""LossScaleMonitor: logs the scale of the loss in float16, with the steps that use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_receiver
from lightlib.errors import MisconfigurationException, check_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class LossScaleMonitor(Callback):
    """Logs the scale of the loss under ``precision="16-mixed"``, every ``log_every_n_steps`` steps.

    The value is the scale with which the step is computed. After an overflow the step is tried again with a smaller
    scale, and the first one stays in the log. Reading it makes the program wait for a GPU, at the logged steps only. It
    is in `trainer.callback_metrics`, too.

    Args:
        name: The name of the metric. Default: ``"loss_scale"``.

    Raises:
        ArgumentTypeError: `name` is no string.
        MisconfigurationException: When training begins: the precision scales no loss, DeepSpeed scales it, or no
            logger or callback receives numbers.

    Example:
        >>> LossScaleMonitor().name
        'loss_scale'
    """

    def __init__(self, name: str = "loss_scale") -> None:
        super().__init__()
        check_type("LossScaleMonitor", "name", name, str, "a string", "'loss_scale'")
        self.name = name
        self._logged_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.scaler is None:
            raise MisconfigurationException(
                f"LossScaleMonitor in a Trainer with precision={trainer.precision!r}, and lightlib scales no loss.",
                expected="'16-mixed', and another strategy than DeepSpeed, which scales the loss itself.",
                fix="Trainer(precision='16-mixed'), or leave the callback out.",
            )
        need_receiver(self, trainer)
        if not trainer.progress.batch:
            self._logged_step = 0

    def state_dict(self) -> dict[str, Any]:
        """Return which step was logged last: after an overflow a resumed run has it before itself once more."""
        return {"logged_step": self._logged_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._logged_step = int(state_dict["logged_step"])

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        step, every = trainer.progress.step + 1, trainer.log_every_n_steps
        if not every or step % every or step == self._logged_step:
            return
        self._logged_step = step
        stats = {self.name: float(trainer.scaler.get_scale())}
        if trainer.run is not None:
            trainer.run.results.note(stats)
        trainer.log_metrics_now(stats, step=step)
