"""Hyperparameter search: a pruning callback that reads private attributes of the Trainer."""

import json

import lightning.pytorch as pl
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Pruned(Exception):
    """The trial is hopeless."""


class PruningCallback(Callback):
    def __init__(self, monitor, worst):
        self.monitor, self.worst, self.seen = monitor, worst, []
        self.is_ddp = None

    def on_fit_start(self, trainer, pl_module):
        self.is_ddp = trainer._accelerator_connector.is_distributed

    def on_validation_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        score = trainer.callback_metrics.get(self.monitor)
        self.seen.append((pl_module.current_epoch, score.item()))
        if pl_module.current_epoch and score > self.worst:
            raise Pruned(f"epoch {trainer.current_epoch}: {score:.3f}")


class Net(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr, self.layer = lr, torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.layer(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def trial(lr):
    pl.seed_everything(3)
    x = torch.randn(40, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=10)
    pruning, checkpoint = PruningCallback("val_loss", 5.0), ModelCheckpoint("trial", save_weights_only=True)
    trainer = pl.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, callbacks=[pruning, checkpoint], enable_progress_bar=False
    )
    ended = "complete"
    try:
        trainer.fit(Net(lr), loader, loader)
    except Pruned as error:
        ended = str(error)
    validated = trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined()
    state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return {
        "ended": ended,
        "seen": pruning.seen,
        "distributed": pruning.is_ddp,
        "validation data": validated,
        "epoch, step": [state["epoch"], state["global_step"]],
        "keys": sorted({"state_dict", "optimizer_states", "lr_schedulers", "callbacks", "loops"} & set(state)),
        "batch progress": trainer.fit_loop.epoch_loop.batch_progress.total.ready,
        "status": str(trainer.state.status.value),
    }


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)  # on all processors the same figures
    print(json.dumps({str(lr): trial(lr) for lr in (0.05, 1.5)}))
