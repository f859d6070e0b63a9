"""An own DDP strategy: overrides the reduction, the gathering and the step, on two processes."""

import json
import sys

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Mine(DDPStrategy):
    """DDP that notes its calls and halves each gradient after DDP has averaged it."""

    def __init__(self, **arguments):
        super().__init__(process_group_backend="gloo", **arguments)
        self.calls = {}

    def note(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1

    def training_step(self, *args, **kwargs):
        self.note("training_step")
        return super().training_step(*args, **kwargs)

    def optimizer_step(self, optimizer, closure, model=None, **kwargs):
        self.note("optimizer_step")

        def halved():
            loss = closure()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)
            return loss

        return super().optimizer_step(optimizer, halved, model, **kwargs)

    def reduce(self, tensor, group=None, reduce_op="mean"):
        self.note("reduce")
        return super().reduce(tensor, group, reduce_op)

    def all_gather(self, tensor, group=None, sync_grads=False):
        self.note("all_gather")
        return super().all_gather(tensor, group, sync_grads)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.steps = []

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        loss = (self(batch[0]) - batch[1]).square().mean()
        self.steps.append(self.all_gather(loss.detach()).tolist())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self(batch[0]) - batch[1]).square().mean(), sync_dist=True, on_epoch=True)

    def train_dataloader(self):
        x = torch.randn(32, 3, generator=torch.Generator().manual_seed(5))
        data = TensorDataset(x, x.sum(1, keepdim=True))
        sampler = DistributedSampler(data, self.trainer.world_size, self.trainer.global_rank, shuffle=False)
        return DataLoader(data, 4, sampler=sampler)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    seed_everything(71)
    x = torch.randn(32, 3)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    strategy, model = Mine(find_unused_parameters=False), Model()
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, val_dataloaders=DataLoader(data, 8))
    if not trainer.is_global_zero:
        sys.exit()
    print(
        json.dumps(
            {
                "steps": model.steps,
                "val_loss": trainer.callback_metrics["val_loss"].item(),
                "calls": {name: count for name, count in strategy.calls.items() if name != "reduce"},
                "reduced": strategy.calls["reduce"] > 0,
                "ranks": [trainer.world_size, trainer.num_devices],
                "weights": model.layer.weight.flatten().tolist(),
            }
        )
    )
