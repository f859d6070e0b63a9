"""A run that is stopped and resumed, with state of the module, data and callbacks."""

import json

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

steps = []


class Counter(Callback):
    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, *_):
        self.batches += 1

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state_dict):
        self.batches = state_dict["batches"]


class Data(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.fits = 0
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
        self.data = TensorDataset(x, x.prod(1, keepdim=True))

    def setup(self, stage):
        self.fits += stage == "fit"

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=8)

    def state_dict(self):
        return {"fits": self.fits}

    def load_state_dict(self, state_dict):
        self.fits += state_dict["fits"] * 10


class Model(LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
        self.seen = 0

    def training_step(self, batch, batch_idx):
        self.seen += len(batch[0])
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        steps.append([self.current_epoch, self.global_step, self.seen, loss.item()])
        return loss

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["seen"]

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step", "name": "steps"}}


def fit(epochs, ckpt_path=None):
    seed_everything(17)
    steps.clear()
    model, data, counter = Model(), Data(), Counter()
    keep = ModelCheckpoint("kept", save_last=True, save_top_k=-1, filename="{epoch}-{step}")
    trainer = Trainer(
        max_epochs=epochs, callbacks=[counter, keep], accelerator="cpu", logger=False, enable_progress_bar=False
    )
    trainer.fit(model, datamodule=data, ckpt_path=ckpt_path)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    return {"steps": list(steps), "counter": counter.batches, "fits": data.fits, "lr": rate}


if __name__ == "__main__":
    first = fit(2)
    second = fit(4, "kept/last.ckpt")
    complete = fit(4)
    checkpoint = torch.load("kept/epoch=1-step=10.ckpt", weights_only=False)
    loaded = Model.load_from_checkpoint("kept/epoch=3-step=20.ckpt")
    lightnings = (
        "epoch global_step state_dict optimizer_states lr_schedulers callbacks hyper_parameters Data seen".split()
    )
    print(
        json.dumps(
            {
                "first": first,
                "second": second,
                "the same": second["steps"] == complete["steps"][10:],
                "keys": [key for key in lightnings if key in checkpoint],
                "callbacks": sorted(key for key in checkpoint["callbacks"] if "Counter" in key),
                "epoch, step": [checkpoint["epoch"], checkpoint["global_step"]],
                "hparams": dict(loaded.hparams),
                "weights": {name: value.sum().item() for name, value in checkpoint["state_dict"].items()},
            }
        )
    )
