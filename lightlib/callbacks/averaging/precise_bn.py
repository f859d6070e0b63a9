"""PreciseBN: statistics of batch norms that are exact means, before a validation and at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightlib.callbacks.averaging.batch_norm import update_batch_norms
from lightlib.callbacks.callback import Callback
from lightlib.errors import check_int

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class PreciseBN(Callback):
    """Replaces the running statistics of batch norms by their means over training batches, for the present weights.

    Running statistics are moving averages over weights that have changed since. After the last batch of an epoch,
    before its validation and its checkpoints, `training_step` runs on further training batches without gradients, and
    nothing is logged; so too when training ends within an epoch. Each batch counts equally, over all processes. The
    training itself is not changed. Source: Wu and Johnson, https://arxiv.org/abs/2105.07576, section 3.

    Args:
        num_batches: How many batches of each process; None: those of an epoch. Default: 200.
        every_n_epochs: After every n-th epoch, and always when training ends. Default: 1.

    Raises:
        ArgumentTypeError: A number that is no int.
        MisconfigurationException: A number below 1.

    Example:
        >>> PreciseBN(num_batches=50, every_n_epochs=2)
        PreciseBN(num_batches=50, every_n_epochs=2)
    """

    def __init__(self, num_batches: int | None = 200, every_n_epochs: int = 1) -> None:
        super().__init__()
        if num_batches is not None:
            check_int("PreciseBN", "num_batches", num_batches, 1)
        check_int("PreciseBN", "every_n_epochs", every_n_epochs, 1)
        self.num_batches, self.every_n_epochs = num_batches, every_n_epochs
        self._last_step = -1  # at which they were computed

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        run = trainer.run
        if run is not None and run.exhausted and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._update(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.global_step != self._last_step:
            self._update(trainer, pl_module)
            trainer.strategy.share_buffers()

    def _update(self, trainer: Trainer, pl_module: Module) -> None:
        update_batch_norms(trainer, pl_module, self.num_batches)
        self._last_step = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        return {"last_step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._last_step = state_dict["last_step"]
