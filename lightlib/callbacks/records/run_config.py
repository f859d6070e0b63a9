"""RunConfigRecord: logs the resolved numbers of a run once, as hyperparameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib.callbacks.callback import Callback

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class RunConfigRecord(Callback):
    """Logs `trainer.run_config` as the hyperparameter ``run_config``, once when `fit` begins.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[RunConfigRecord()])
    """

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.run is not None and trainer.loggers:
            trainer.run.loggers.log_hyperparams({"run_config": trainer.run_config.to_dict()})
