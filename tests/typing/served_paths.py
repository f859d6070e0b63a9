"""A program of Lightning's with its imports replaced, in which strict type checkers find no error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

import lightlib as L
import lightlib.pytorch as pl
from lightlib.callbacks.model_checkpoint import ModelCheckpoint
from lightlib.callbacks.progress import TQDMProgressBar
from lightlib.callbacks.progress.rich_progress import RichProgressBar
from lightlib.demos.boring_classes import BoringModel, RandomDataset
from lightlib.fabric.plugins.environments import SLURMEnvironment
from lightlib.fabric.utilities.seed import seed_everything
from lightlib.loggers.csv_logs import CSVLogger
from lightlib.plugins.environments import LightningEnvironment
from lightlib.plugins.io import CheckpointIO, TorchCheckpointIO
from lightlib.pytorch.callbacks import EarlyStopping
from lightlib.strategies.ddp import DDPStrategy
from lightlib.trainer.states import RunningStage, TrainerFn
from lightlib.utilities import grad_norm, rank_zero_info, rank_zero_only
from lightlib.utilities.combined_loader import CombinedLoader
from lightlib.utilities.exceptions import MisconfigurationException
from lightlib.utilities.imports import _TORCH_GREATER_EQUAL_2_6
from lightlib.utilities.model_summary import ModelSummary
from lightlib.utilities.types import EVAL_DATALOADERS, STEP_OUTPUT, OptimizerLRScheduler


@rank_zero_only
def show(text: str) -> None:
    """Print a line on rank zero."""
    print(text)


class Net(pl.LightningModule):
    """A module with Lightning's annotations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> STEP_OUTPUT:
        """Return the loss."""
        output: Tensor = self.layer(batch)
        return {"loss": output.square().mean()}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Log norms of gradients."""
        self.log_dict(grad_norm(self, norm_type=2))

    def val_dataloader(self) -> EVAL_DATALOADERS:
        """Return no loader."""
        return []

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return an optimizer and its schedule."""
        optimizer = SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    """Build objects by served names and print them."""
    seed_everything(7, verbose=False)
    files: CheckpointIO = TorchCheckpointIO()
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy=DDPStrategy() if SLURMEnvironment.detect() else "auto",
        callbacks=[ModelCheckpoint("files"), EarlyStopping("loss", strict=False), TQDMProgressBar()],
        logger=CSVLogger("."),
        plugins=[files, LightningEnvironment()],
        max_epochs=1,
    )
    loader = CombinedLoader({"a": DataLoader(RandomDataset(4, 8), 4)}, "max_size")
    try:
        trainer.predict(BoringModel(), [])
    except MisconfigurationException as error:
        show(str(error))
    number: int = ModelSummary(Net(), max_depth=1).total_parameters
    stage: RunningStage | None = trainer.state.stage
    words: list[str] = [TrainerFn.FITTING.value, L.utilities.rank_zero.rank_prefixed_message("ready", 0)]
    show(f"{number} parameters, {loader.mode}, {stage}, {_TORCH_GREATER_EQUAL_2_6}, {RichProgressBar.__name__}")
    show(f"words: {words}")
    rank_zero_info("done")


if __name__ == "__main__":
    main()
