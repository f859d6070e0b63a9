"""A custom strategy for one device that overrides Lightning's documented methods."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from torch.utils.data import DataLoader, TensorDataset

steps = []


class Instrumented(SingleDeviceStrategy):
    """Scales the loss before backward, notes the calls, and adds to the checkpoint."""

    strategy_name = "instrumented"

    def __init__(self, scale=2.0, device="cpu"):
        super().__init__(device=device)
        self.scale, self.calls = scale, {}

    def note(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1

    def setup(self, trainer):
        self.note("setup")
        super().setup(trainer)

    def training_step(self, *args, **kwargs):
        self.note("training_step")
        return super().training_step(*args, **kwargs)

    def validation_step(self, *args, **kwargs):
        self.note("validation_step")
        return super().validation_step(*args, **kwargs)

    def backward(self, closure_loss, optimizer, *args, **kwargs):
        self.note("backward")
        return super().backward(closure_loss * self.scale, optimizer, *args, **kwargs)

    def optimizer_step(self, optimizer, closure, model=None, **kwargs):
        self.note("optimizer_step")
        return super().optimizer_step(optimizer, closure, model, **kwargs)

    def reduce(self, tensor, *args, **kwargs):
        return super().reduce(tensor, *args, **kwargs)

    def lightning_module_state_dict(self):
        self.note("state_dict")
        return {**super().lightning_module_state_dict(), "scale": torch.tensor(self.scale)}

    def load_model_state_dict(self, checkpoint, strict=True):
        self.note("load")
        checkpoint["state_dict"].pop("scale")
        super().load_model_state_dict(checkpoint, strict=strict)

    def teardown(self):
        self.note("teardown")
        super().teardown()


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        steps.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.layer(batch[0]) - batch[1]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


def fit(strategy, epochs=2, ckpt_path=None):
    seed_everything(67)
    x = torch.randn(30, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6)
    model = Model()
    trainer = Trainer(
        max_epochs=epochs,
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, loader, ckpt_path=ckpt_path)
    trainer.save_checkpoint("last.ckpt")
    return trainer


if __name__ == "__main__":
    StrategyRegistry.register("instrumented", Instrumented, description="scales losses", scale=3.0)
    mine = Instrumented()
    trainer = fit(mine)
    saved = sorted(torch.load("last.ckpt", weights_only=False)["state_dict"])
    resumed = Instrumented()
    fit(resumed, 3, "last.ckpt")
    by_name = fit("instrumented")
    print(
        json.dumps(
            {
                "steps": steps,
                "calls": mine.calls,
                "resumed": resumed.calls,
                "saved": saved,
                "is it": [trainer.strategy is mine, type(by_name.strategy).__name__, by_name.strategy.scale],
                "strategy": [str(mine.root_device), mine.is_global_zero, mine.broadcast("x")],
                "known": "instrumented" in StrategyRegistry.available_strategies(),
            }
        )
    )
