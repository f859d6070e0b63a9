"""An own CheckpointIO that splits each checkpoint into two files, and a wrapper that counts."""

import json
import shutil
from pathlib import Path

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader, TensorDataset

steps = []


class TwoFiles(CheckpointIO):
    """A folder with the weights and the rest; unpacked again when it is read."""

    def __init__(self):
        self.calls = []

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.calls.append(["save", Path(path).name, storage_options])
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        rest = dict(checkpoint)
        torch.save(rest.pop("state_dict"), folder / "weights.pt")
        torch.save(rest, folder / "rest.pt")

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        self.calls.append(["load", Path(path).name])
        rest = torch.load(Path(path, "rest.pt"), map_location=map_location, weights_only=False)
        return {**rest, "state_dict": torch.load(Path(path, "weights.pt"), map_location=map_location)}

    def remove_checkpoint(self, path):
        self.calls.append(["remove", Path(path).name])
        shutil.rmtree(path, ignore_errors=True)


class Counting(TorchCheckpointIO):
    def __init__(self):
        self.saved = 0

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.saved += 1
        super().save_checkpoint({**checkpoint, "number": self.saved}, path, storage_options)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch[0]) - 1).square().mean()
        steps.append(loss.item())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def trainer(io, epochs, folder):
    keep = ModelCheckpoint(folder, filename="{epoch}", save_top_k=1, monitor="loss")
    return Trainer(
        max_epochs=epochs,
        plugins=[io],
        callbacks=[keep],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


if __name__ == "__main__":
    seed_everything(59)
    loader = DataLoader(TensorDataset(torch.randn(24, 3)), batch_size=6)
    io, model = TwoFiles(), Model()
    first = trainer(io, 2, "two")
    first.fit(model, loader)
    again = Model()
    second = trainer(io, 4, "two")
    second.fit(again, loader, ckpt_path=first.checkpoint_callback.best_model_path)
    second.save_checkpoint("two/by_hand.ckpt", storage_options={"fast": True})
    is_it = second.strategy.checkpoint_io is io

    seed_everything(60)
    counting = Counting()
    third = trainer(counting, 3, "counted")
    third.fit(Model(), loader)
    number = torch.load(third.checkpoint_callback.best_model_path, weights_only=False)["number"]
    print(
        json.dumps(
            {
                "steps": steps,
                "calls": io.calls,
                "files": sorted(path.as_posix() for path in Path("two").rglob("*.pt")),
                "counted": [counting.saved, number],
                "is it": is_it,
            }
        )
    )
