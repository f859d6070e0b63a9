"""Subclasses of ModelCheckpoint, EarlyStopping and TQDMProgressBar with extra files."""

import json
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from torch.utils.data import DataLoader, TensorDataset


class WithNotes(ModelCheckpoint):
    """Writes a note next to each checkpoint, and removes it with the checkpoint."""

    def _save_checkpoint(self, trainer, filepath):
        super()._save_checkpoint(trainer, filepath)
        Path(filepath).with_suffix(".txt").write_text(f"step {trainer.global_step}")

    def _remove_checkpoint(self, trainer, filepath):
        super()._remove_checkpoint(trainer, filepath)
        Path(filepath).with_suffix(".txt").unlink(missing_ok=True)

    def on_train_end(self, trainer, pl_module):
        super().on_train_end(trainer, pl_module)
        self.ended = [trainer.global_step, round(self.best_model_score.item(), 5)]


class AfterWarmup(EarlyStopping):
    def __init__(self, warmup, **arguments):
        super().__init__(**arguments)
        self.warmup, self.looked = warmup, []

    def on_validation_end(self, trainer, pl_module):
        if trainer.current_epoch >= self.warmup:
            self.looked.append(trainer.current_epoch)
            super().on_validation_end(trainer, pl_module)


class Bar(TQDMProgressBar):
    def __init__(self):
        super().__init__(refresh_rate=2, leave=True)
        self.metrics = []

    def get_metrics(self, trainer, pl_module):
        items = super().get_metrics(trainer, pl_module)
        items.pop("v_num", None)
        self.metrics.append(sorted(items))
        return items

    def init_train_tqdm(self):
        bar = super().init_train_tqdm()
        bar.set_description("learning")
        bar.disable = True
        return bar

    def init_validation_tqdm(self):
        bar = super().init_validation_tqdm()
        bar.disable = True
        return bar

    def init_sanity_tqdm(self):
        bar = super().init_sanity_tqdm()
        bar.disable = True
        return bar


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.steps = []

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, prog_bar=True)
        self.steps.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("val_loss", loss + (self.current_epoch > 3) * 10.0, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


if __name__ == "__main__":
    seed_everything(43)
    x = torch.randn(32, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    keep = WithNotes(dirpath="kept", monitor="val_loss", save_top_k=2, save_last=True, filename="{epoch:02d}")
    steps = ModelCheckpoint(dirpath="steps", every_n_train_steps=6, save_top_k=-1, filename="{step}")
    stopping = AfterWarmup(2, monitor="val_loss", patience=2, mode="min", check_on_train_epoch_end=False)
    bar = Bar()
    trainer = Trainer(max_epochs=12, accelerator="cpu", callbacks=[keep, steps, stopping, bar], logger=False)
    model = Model()
    trainer.fit(model, loader, loader)
    print(
        "\n"
        + json.dumps(
            {
                "steps": model.steps,
                "end": [trainer.current_epoch, trainer.global_step],
                "ended": keep.ended,
                "files": sorted(path.as_posix() for path in [*Path("kept").iterdir(), *Path("steps").iterdir()]),
                "best": Path(keep.best_model_path).name,
                "best k": {Path(path).name: score.item() for path, score in keep.best_k_models.items()},
                "notes": sorted(path.read_text() for path in Path("kept").glob("epoch*.txt")),
                "looked": [stopping.looked, stopping.wait_count, stopping.stopped_epoch, stopping.best_score.item()],
                "bar": [bar.metrics[-1], bar.total_train_batches, bar.refresh_rate],
                "state": stopping.state_dict()["patience"],
            }
        )
    )
