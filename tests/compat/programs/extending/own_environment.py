"""A custom ClusterEnvironment: two processes find each other by the variables of a scheduler."""

import json
import os
import socket
import subprocess
import sys

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class MyCluster(ClusterEnvironment):
    """Reads the variables of a scheduler."""

    @property
    def creates_processes_externally(self):
        return True

    @staticmethod
    def detect():
        return "MY_RANK" in os.environ

    @property
    def main_address(self):
        return os.environ["MY_HOST"]

    @property
    def main_port(self):
        return int(os.environ["MY_PORT"])

    def world_size(self):
        return int(os.environ["MY_SIZE"])

    def set_world_size(self, size):
        pass

    def global_rank(self):
        return int(os.environ["MY_RANK"])

    def set_global_rank(self, rank):
        pass

    def local_rank(self):
        return int(os.environ["MY_RANK"])

    def node_rank(self):
        return 0


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.steps = []

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        self.steps.append(self.all_gather(loss.detach()).tolist())
        return loss

    def train_dataloader(self):
        x = torch.randn(24, 3, generator=torch.Generator().manual_seed(5))
        data = TensorDataset(x, x.sum(1, keepdim=True))
        sampler = DistributedSampler(data, self.trainer.world_size, self.trainer.global_rank, shuffle=False)
        return DataLoader(data, 4, sampler=sampler)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train():
    seed_everything(61)
    model = Model()
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        use_distributed_sampler=False,
        plugins=[MyCluster()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    return {
        "steps": model.steps,
        "loss": trainer.callback_metrics["loss"].item(),
        "ranks": [trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.world_size],
        "detected": [one.detect() for one in (MyCluster, SLURMEnvironment, TorchElasticEnvironment)],
    }


if __name__ == "__main__":
    if "MY_RANK" in os.environ:
        print(json.dumps(train()))
        sys.exit()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MY_SIZE": "2", "MY_HOST": "127.0.0.1", "MY_PORT": str(free.getsockname()[1])}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__], env={**os.environ, **shared, "MY_RANK": rank}, stdout=subprocess.PIPE
        )
        for rank in "01"
    ]
    found = [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]
    own = LightningEnvironment()
    print(json.dumps({"ranks": found, "own": [own.world_size(), own.global_rank(), own.creates_processes_externally]}))
