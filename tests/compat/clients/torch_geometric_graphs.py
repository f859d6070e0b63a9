"""torch_geometric: data modules with nodes of one graph, and small graphs in two processes."""

import csv
import json
import logging
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch_geometric.data import Data
from torch_geometric.data.lightning import LightningDataset, LightningNodeData
from torch_geometric.nn import GCNConv, SAGEConv, global_mean_pool


class Nodes(pl.LightningModule):
    """Classifies nodes; graphs, if `pools`."""

    def __init__(self, pools=False):
        super().__init__()
        self.pools = pools
        layer = GCNConv if pools else SAGEConv
        self.first, self.second = layer(4, 8), layer(8, 3)

    def step(self, batch, mask):
        hidden = self.second(self.first(batch.x, batch.edge_index).relu(), batch.edge_index)
        if self.pools:
            scores, classes = global_mean_pool(hidden, batch.batch), batch.y
        else:
            scores, classes = hidden[batch[mask]], batch.y[batch[mask]]
        hits = (scores.argmax(1) == classes).float().mean()
        return torch.nn.functional.cross_entropy(scores, classes), hits, len(classes)

    def training_step(self, batch, batch_idx):
        loss, _, size = self.step(batch, "train_mask")
        self.log("train_loss", loss, batch_size=size, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, hits, size = self.step(batch, "val_mask")
        self.log_dict({"val_loss": loss, "val_hits": hits}, batch_size=size, sync_dist=True)

    def test_step(self, batch, batch_idx):
        loss, hits, size = self.step(batch, "test_mask")
        self.log_dict({"test_loss": loss, "test_hits": hits}, batch_size=size, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def one_graph():
    kinds = torch.arange(90) % 3
    edges = torch.randint(0, 90, (2, 500))
    edges = edges[:, (kinds[edges[0]] == kinds[edges[1]]) | (torch.rand(500) < 0.3)]
    x = torch.nn.functional.one_hot(kinds, 4) + torch.randn(90, 4)
    place = torch.arange(90) // 3 % 5
    return Data(x, edges, y=kinds, train_mask=place < 3, val_mask=place == 3, test_mask=place == 4)


def small_graphs(count):
    graphs = []
    for number in range(count):
        nodes = 3 + number % 4
        x = torch.randn(nodes, 4) + torch.nn.functional.one_hot(torch.tensor(number % 3), 4)
        graphs.append(Data(x, torch.randint(0, nodes, (2, 2 * nodes)), y=torch.tensor([number % 3])))
    return graphs


def run(name, model, data, **options):
    keep = ModelCheckpoint(f"files/{name}", "{epoch}-{val_loss:.3f}", "val_loss", save_top_k=2)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        log_every_n_steps=2,
        logger=CSVLogger("logs", name=name, version=""),
        callbacks=[keep],
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(model, datamodule=data)
    epoch_loss = trainer.callback_metrics["train_loss_epoch"].item()
    with Path("logs", name, "metrics.csv").open() as file:
        rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    tested = trainer.test(model, datamodule=data, ckpt_path=keep.best_model_path, verbose=False)
    return {
        "loss": epoch_loss,
        "tested": tested,
        "rows": rows,
        "files": sorted(path.name for path in Path("files", name).iterdir()),
        "weights": [parameter.abs().sum().item() for parameter in model.parameters()],
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    pl.seed_everything(31)
    data = LightningNodeData(one_graph(), loader="full")
    nodes = run("nodes", Nodes(), data, devices=1)
    pl.seed_everything(32)
    data = LightningDataset(small_graphs(45), small_graphs(14), small_graphs(10), batch_size=4)
    graphs = run("graphs", Nodes(pools=True), data, devices=2, strategy="ddp_spawn")
    print(json.dumps({"loss": nodes["loss"], "nodes": nodes, "graphs": graphs}))
