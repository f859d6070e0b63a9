"""lightly: SimCLR on digits in two processes, with its probes of the features after that."""

import csv
import json
import logging
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from lightly.utils.benchmarking import KNNClassifier, LinearClassifier, MetricCallback, OnlineLinearClassifier
from lightly.utils.scheduler import CosineWarmupScheduler
from PIL import Image
from pytorch_lightning.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Images of eight by eight pixels, in the views of `transform`."""

    def __init__(self, first, last, transform=None):
        images, classes = load_digits(return_X_y=True)
        self.images, self.classes = images[first:last].reshape(-1, 8, 8), classes[first:last]
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = Image.fromarray((self.images[index] * 15).astype("uint8")).convert("RGB")
        if self.transform is None:
            return torch.tensor(self.images[index]).float()[None].expand(3, 8, 8) / 16, int(self.classes[index])
        return self.transform(image), int(self.classes[index])


class SimCLR(pl.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 32)]
        self.backbone = torch.nn.Sequential(*layers)
        self.head = SimCLRProjectionHead(32, 32, 16)
        self.criterion = NTXentLoss(temperature=0.2, gather_distributed=True)
        self.probe = OnlineLinearClassifier(feature_dim=32, num_classes=10, topk=(1, 3))

    def forward(self, images):
        return self.backbone(images)

    def training_step(self, batch, batch_idx):
        views, classes = batch
        features = self(torch.cat(views))
        loss = self.criterion(*self.head(features).chunk(2))
        probe_loss, probed = self.probe.training_step((features, classes.repeat(2)), batch_idx)
        self.log("train_loss", loss, sync_dist=True, batch_size=len(classes))
        self.log_dict(probed, sync_dist=True, batch_size=len(classes))
        return loss + probe_loss

    def validation_step(self, batch, batch_idx):
        images, classes = batch
        _, probed = self.probe.validation_step((self(images), classes), batch_idx)
        self.log_dict(probed, sync_dist=True, batch_size=len(classes))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = CosineWarmupScheduler(optimizer, warmup_epochs=2, max_epochs=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def trainer(name, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    logger = CSVLogger("logs", name=name, version="")
    return pl.Trainer(accelerator="cpu", max_epochs=2, log_every_n_steps=1, logger=logger, **quiet, **options)


def charts(name):
    with Path("logs", name, "metrics.csv").open() as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    pl.seed_everything(29)
    views = SimCLRTransform(input_size=8, gaussian_blur=0.0)
    loader = DataLoader(Digits(0, 110, views), batch_size=16, shuffle=True, drop_last=True)
    plain, val = DataLoader(Digits(0, 110), batch_size=32), DataLoader(Digits(110, 180), batch_size=32)
    model = SimCLR()
    trainer("views", devices=2, strategy="ddp_spawn").fit(model, loader, val)
    nearest = KNNClassifier(model, 10, knn_k=5, knn_t=0.1, train_dataloader_idx=0, val_dataloader_idx=1)
    found = trainer("nearest", devices=1).validate(nearest, [plain, val], verbose=False)
    seen = MetricCallback()
    linear = LinearClassifier(model, batch_size_per_device=32, lr=2.0, feature_dim=32, num_classes=10)
    training = DataLoader(Digits(0, 110), batch_size=32, shuffle=True)
    trainer("linear", devices=1, callbacks=[seen]).fit(linear, training, val)
    rows = charts("views")
    print(
        json.dumps(
            {
                "loss": [row["train_loss"] for row in rows if "train_loss" in row][-1],
                "charts": {"views": rows, "linear": charts("linear")},
                "nearest": found,
                "linear": [seen.train_metrics, seen.val_metrics],
                "weights": [parameter.abs().sum().item() for parameter in model.parameters()],
            }
        )
    )
