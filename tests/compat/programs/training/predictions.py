"""Inference: predictions of two loaders, returned and written batch by batch by a callback."""

import json
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Writer(Callback):
    """Write the predictions of each batch to a file of its own, and count them at the end."""

    def __init__(self, folder):
        self.folder, self.written, self.at_end = Path(folder), 0, None

    def setup(self, trainer, pl_module, stage):
        self.folder.mkdir(exist_ok=True)
        self.stage = str(stage.value)

    def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        torch.save(outputs, self.folder / f"{dataloader_idx}-{batch_idx}.pt")
        self.written += len(outputs["class"])

    def on_predict_epoch_end(self, trainer, pl_module):
        self.at_end = [len(part) for part in trainer.predict_loop.predictions]

    def on_predict_end(self, trainer, pl_module):
        (self.folder / "done").write_text(str(self.written))


class Data(LightningDataModule):
    def setup(self, stage):
        self.stage = stage.value
        generator = torch.Generator().manual_seed(13)
        self.parts = [TensorDataset(torch.randn(n, 5, generator=generator)) for n in (10, 7)]

    def predict_dataloader(self):
        return [DataLoader(part, batch_size=4) for part in self.parts]

    def teardown(self, stage):
        self.torn_down = stage.value


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))

    def forward(self, x):
        return self.net(x).softmax(1)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        assert not torch.is_grad_enabled()
        assert not self.training
        guess = self(batch[0])
        return {"class": guess.argmax(1), "sure": guess.max(1).values, "loader": dataloader_idx}


if __name__ == "__main__":
    seed_everything(6)
    writer, data = Writer("guesses"), Data()
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(callbacks=[writer], **quiet)
    guesses = trainer.predict(Model(), datamodule=data)
    nothing = Trainer(**quiet, inference_mode=False).predict(
        Model(), DataLoader(data.parts[0], 5), return_predictions=False
    )
    print(
        json.dumps(
            {
                "sure": [[batch["sure"].tolist() for batch in part] for part in guesses],
                "loaders": [[batch["loader"] for batch in part] for part in guesses],
                "kept": writer.at_end,
                "files": sorted(path.name for path in Path("guesses").iterdir()),
                "written": Path("guesses/done").read_text(),
                "stages": [writer.stage, data.stage, data.torn_down],
                "batches": trainer.num_predict_batches,
                "nothing": nothing,
            }
        )
    )
