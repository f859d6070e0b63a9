"""Fabric: a hand-written loop with accumulation, clipping, callbacks, a log and a checkpoint."""

import json
from pathlib import Path

import torch
from lightning.fabric import Fabric, seed_everything
from lightning.fabric.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


class Notes:
    def __init__(self):
        self.calls = []

    def on_epoch_end(self, epoch, loss):
        self.calls.append([epoch, round(loss, 6)])

    def on_train_end(self):
        self.calls.append("end")


def parts(fabric):
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    return *fabric.setup(model, optimizer), scheduler


def train(fabric, model, optimizer, scheduler, loader, epochs, first=0):
    losses, norms = [], []
    for epoch in range(first, epochs):
        model.train()
        for index, (x, y) in enumerate(loader):
            accumulating = index % 2 == 0
            with fabric.no_backward_sync(model, enabled=accumulating), fabric.autocast():
                loss = torch.nn.functional.cross_entropy(model(x), y)
                fabric.backward(loss / 2)
            losses.append(loss.item())
            if not accumulating:
                norms.append(fabric.clip_gradients(model, optimizer, max_norm=0.5).item())
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        fabric.log_dict({"loss": losses[-1], "epoch": epoch}, step=epoch)
        fabric.call("on_epoch_end", epoch=epoch, loss=losses[-1])
        if epoch == 0:
            state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": epoch, "note": "first"}
            fabric.save("first.ckpt", state, filter={"model": lambda name, value: True})
    fabric.call("on_train_end")
    return losses, norms


if __name__ == "__main__":
    figures = {}
    for precision in ("32-true", "bf16-mixed"):
        notes = Notes()
        logger = CSVLogger("logs", name=precision, flush_logs_every_n_steps=1)
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision, callbacks=[notes], loggers=logger)
        fabric.launch()
        seed_everything(79)
        x = torch.randn(48, 5)
        data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
        loader = fabric.setup_dataloaders(DataLoader(data, batch_size=8))
        model, optimizer, scheduler = parts(fabric)
        losses, norms = train(fabric, model, optimizer, scheduler, loader, 2)

        fresh = parts(fabric)
        state = {"model": fresh[0], "optimizer": fresh[1], "scheduler": fresh[2], "epoch": 0}
        rest = fabric.load("first.ckpt", state)
        seed_everything(83)
        resumed, _ = train(fabric, *fresh, loader, 2, first=state["epoch"] + 1)
        figures[precision] = {
            "losses": losses,
            "norms": norms,
            "resumed": resumed,
            "rest": rest,
            "calls": notes.calls,
            "gathered": fabric.all_gather(torch.ones(2)).tolist(),
            "reduced": fabric.all_reduce(torch.ones(2)).tolist(),
            "fabric": [fabric.world_size, fabric.global_rank, str(fabric.device), fabric.is_global_zero],
            "rows": len(Path(logger.log_dir, "metrics.csv").read_text().splitlines()),
            "lr": optimizer.param_groups[0]["lr"],
        }
    print(json.dumps(figures))
