"""Large batches on little memory: accumulation, clipping, warmup, and logged norms."""

import json

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import grad_norm
from torch.utils.data import DataLoader, TensorDataset


class Transformer(pl.LightningModule):
    def __init__(self, width=8, lr=0.05, warmup=4):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = torch.nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        self.out = torch.nn.Linear(width, 1)
        self.steps, self.norms, self.rates, self.clipped = [], [], [], 0

    def forward(self, x):
        return self.out(self.encoder(x).mean(1))

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self(batch[0]), batch[1])
        self.steps.append([self.global_step, loss.item()])
        return loss

    def on_before_optimizer_step(self, optimizer):
        norms = grad_norm(self, norm_type=2)
        self.norms.append(norms["grad_2.0_norm_total"].item())
        self.log_dict({"norm/out": norms["grad_2.0_norm/out.weight"]})

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clipped += 1
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < self.hparams.warmup:
            scale = min(1.0, float(self.trainer.global_step + 1) / self.hparams.warmup)
            for group in optimizer.param_groups:
                group["lr"] = scale * self.hparams.lr
        self.rates.append(optimizer.param_groups[0]["lr"])

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    figures = {}
    for algorithm, window in (("norm", 3), ("value", 2)):
        pl.seed_everything(9)
        x = torch.randn(48, 5, 8)
        model = Transformer()
        trainer = pl.Trainer(
            max_epochs=2,
            accumulate_grad_batches=window,
            gradient_clip_val=0.3,
            gradient_clip_algorithm=algorithm,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(TensorDataset(x, x.mean((1, 2)).unsqueeze(1)), batch_size=8, shuffle=True))
        figures[algorithm] = {
            "steps": model.steps,
            "norms": model.norms,
            "rates": model.rates,
            "clipped": model.clipped,
            "global step": trainer.global_step,
            "logged": {name: value.item() for name, value in trainer.callback_metrics.items()},
        }
    print(json.dumps(figures))
