"""RestoreBest: gives the module the weights of the best checkpoint at the end of fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.saved import read_on_all_ranks, saver_for
from lightlib.callbacks.monitored import check_monitor
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.frozen import complete

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class RestoreBest(Callback):
    """Gives the module the weights of the best checkpoint when `fit` ends, instead of the last ones.

    The best one is that of a `ModelCheckpoint` with a metric. Parameters and buffers are then equal to those of its
    file, under every strategy. It happens once, after the last save, so the checkpoints are not changed by it;
    optimizers and schedules keep their last state. A run that ends by an exception or a signal keeps its weights.

    Args:
        monitor: The metric of the `ModelCheckpoint`, if there are several. Default: the first one with a metric.

    Attributes:
        restored_path: The checkpoint that was restored; empty before.

    Raises:
        ArgumentTypeError: `monitor` is no string.
        MisconfigurationException: When `fit` begins: there is no such `ModelCheckpoint`.
        CheckpointError: When `fit` ends: the checkpoint cannot be read.

    Example:
        >>> from lightlib.callbacks import ModelCheckpoint
        >>> callbacks = [ModelCheckpoint(monitor="val_loss"), RestoreBest()]
    """

    priority = "lowest"
    after_module = True

    def __init__(self, monitor: str | None = None) -> None:
        super().__init__()
        if monitor is not None:
            check_monitor("RestoreBest", monitor)
        self.monitor = monitor
        self.restored_path = ""

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit" and not trainer.fast_dev_run:
            saver_for(trainer, "RestoreBest", self.monitor, compares=True)

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.fast_dev_run:
            return
        saver = saver_for(trainer, "RestoreBest", self.monitor, compares=True)
        path: str = trainer.strategy.broadcast(saver.best_model_path)
        if not path:
            report.warn(
                f"RestoreBest: ModelCheckpoint(monitor={saver.monitor!r}) has saved no checkpoint, so the module keeps "
                "its last weights."
            )
            return
        content, strategy = read_on_all_ranks(trainer, path), trainer.strategy
        complete(content, strategy.sharded_module_state, strategy.collectives.all_gather_object)
        pl_module.on_load_checkpoint(content)
        state = content["state_dict"]
        weights = state if strategy.reads_parts else read_tensors(state)
        strategy.load_module_state(weights, strict=bool(pl_module.strict_loading))
        self.restored_path = path
        report.info(f"The weights of the best checkpoint are restored: {path!r}.")
