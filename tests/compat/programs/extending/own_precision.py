"""A custom Precision: rounds inputs, computes in bfloat16, and clips in its own way."""

import json
from contextlib import contextmanager

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.plugins.precision import DoublePrecision
from torch.utils.data import DataLoader, TensorDataset


class Rounded(Precision):
    """Rounds the inputs of a step and the gradients before they are clipped."""

    precision = "32-true"

    def __init__(self):
        super().__init__()
        self.calls = {}

    def note(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1

    def convert_input(self, data):
        self.note("convert_input")
        return [part.mul(8).round().div(8) for part in data]

    @contextmanager
    def forward_context(self):
        self.note("forward_context")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield

    def pre_backward(self, tensor, module):
        self.note("pre_backward")
        return super().pre_backward(tensor, module)

    def clip_gradients(self, optimizer, clip_val=0, gradient_clip_algorithm="norm"):
        self.note("clip_gradients")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.clamp_(-clip_val, clip_val)

    def optimizer_step(self, optimizer, model, closure, **kwargs):
        self.note("optimizer_step")
        return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.steps, self.types = [], set()

    def training_step(self, batch, batch_idx):
        out = self.layer(batch[0])
        self.types.add(str(out.dtype))
        loss = (out - batch[1]).square().mean()
        self.steps.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(**arguments):
    seed_everything(73)
    x = torch.randn(20, 4)
    model = Model()
    trainer = Trainer(
        max_epochs=2,
        gradient_clip_val=0.05,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, x[:, :2]), batch_size=5))
    dtype = str(model.layer.weight.dtype)
    return {"steps": model.steps, "types": sorted(model.types), "weights": dtype, "precision": trainer.precision}


if __name__ == "__main__":
    own = Rounded()
    print(
        json.dumps(
            {
                "own": fit(plugins=[own]),
                "calls": own.calls,
                "mixed": fit(plugins=MixedPrecision("bf16-mixed", device="cpu")),
                "double": fit(plugins=[DoublePrecision()]),
                "by name": fit(precision="bf16-true"),
            }
        )
    )
