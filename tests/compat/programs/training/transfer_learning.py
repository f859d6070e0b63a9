"""Transfer learning: a frozen backbone, unfrozen after two epochs into a group of its own."""

import json

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def backbone():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))


class Unfreeze(Callback):
    def __init__(self, at_epoch):
        self.at_epoch = at_epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.at_epoch:
            for parameter in pl_module.backbone.parameters():
                parameter.requires_grad = True
            pl_module.backbone.train()
            optimizer = trainer.optimizers[0]
            lr = optimizer.param_groups[0]["lr"] / 10
            optimizer.add_param_group({"params": pl_module.backbone.parameters(), "lr": lr})


class Classifier(LightningModule):
    def __init__(self, pretrained):
        super().__init__()
        self.backbone, self.head = pretrained, nn.Linear(16, 3)
        for parameter in self.backbone.parameters():
            parameter.requires_grad = False
        self.backbone.eval()
        self.steps, self.modes = [], []

    def on_train_epoch_start(self):
        self.modes.append([self.backbone.training, self.head.training])

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])
        self.steps.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        assert not self.head.training
        hits = self.head(self.backbone(batch[0])).argmax(1) == batch[1]
        self.log("val_acc", hits.float().mean())

    def configure_optimizers(self):
        trained = filter(lambda parameter: parameter.requires_grad, self.parameters())
        optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3], gamma=0.1)]


if __name__ == "__main__":
    seed_everything(8)
    x = torch.randn(90, 8)
    data = TensorDataset(x, x[:, :3].argmax(1))
    pretrained = backbone()
    before = pretrained[0].weight.clone()
    model = Classifier(pretrained)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        callbacks=[Unfreeze(2)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, DataLoader(data, 15, shuffle=True), DataLoader(data, 45))
    model.freeze()
    frozen = not any(parameter.requires_grad for parameter in model.parameters())
    model.unfreeze()
    print(
        json.dumps(
            {
                "steps": model.steps,
                "modes": model.modes,
                "val_acc": trainer.callback_metrics["val_acc"].item(),
                "running mean": model.backbone[1].running_mean.tolist(),
                "moved": (model.backbone[0].weight - before).abs().sum().item(),
                "groups": [group["lr"] for group in trainer.optimizers[0].param_groups],
                "frozen, training": [frozen, model.training],
            }
        )
    )
