"""An older project: `import pytorch_lightning as pl`, and classes imported by deep paths."""

import json
import pickle

import pytorch_lightning as pl
import torch
from packaging.version import Version
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.callbacks.early_stopping import EarlyStopping as DeepEarlyStopping
from pytorch_lightning.core.module import LightningModule
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.trainer.states import RunningStage, TrainerFn
from pytorch_lightning.utilities import rank_zero_info
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.rank_zero import rank_zero_only
from pytorch_lightning.utilities.types import STEP_OUTPUT
from torch.utils.data import DataLoader, TensorDataset

if Version(pl.__version__) < Version("2.0"):
    raise ImportError("this project needs Lightning 2")


class Logged(pl.Callback):
    def __init__(self):
        self.losses, self.stages = [], []

    def setup(self, trainer, pl_module, stage):
        self.stages.append([stage, isinstance(stage, TrainerFn), stage == TrainerFn.FITTING])

    def on_train_batch_end(self, trainer, pl_module, outputs: STEP_OUTPUT, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    @rank_zero_only
    def on_validation_epoch_end(self, trainer, pl_module):
        stage = trainer.state.stage
        self.stages.append([stage.value, isinstance(stage, RunningStage), trainer.sanity_checking])
        rank_zero_info("validated")


class Encoder(LightningModule):
    def __init__(self, size=6, **kwargs):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(size, 3), torch.nn.ReLU(), torch.nn.Linear(3, size))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        return {"loss": torch.nn.functional.mse_loss(self(x), x), "note": "kept"}

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self(x), x))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


if __name__ == "__main__":
    pl.seed_everything(1)
    loader = DataLoader(TensorDataset(torch.randn(50, 6)), batch_size=8)
    logged, stopping = Logged(), DeepEarlyStopping("val_loss", patience=1, min_delta=0.005)
    model = Encoder(size=6, dropout=0.5)
    trainer = pl.Trainer(
        max_epochs=6,
        accelerator="cpu",
        callbacks=[logged, stopping],
        logger=CSVLogger("logs", name="old", version=0),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, loader, loader)
    try:
        pl.Trainer(accelerator="cpu", devices=1, strategy="nothing")
        refused = None
    except (MisconfigurationException, ValueError) as error:
        refused = isinstance(error, Exception)
    print(
        json.dumps(
            {
                "losses": logged.losses,
                "stages": logged.stages,
                "stopped": [trainer.current_epoch, stopping.stopped_epoch, stopping.wait_count],
                "one class": [isinstance(stopping, EarlyStopping), EarlyStopping is DeepEarlyStopping],
                "pickled": pickle.loads(pickle.dumps(EarlyStopping)) is EarlyStopping,
                "hparams": dict(model.hparams),
                "lr": trainer.optimizers[0].param_groups[0]["lr"],
                "refused": refused,
            }
        )
    )
