"""GAN: manual optimization with two optimizers, toggled in turn, each with a schedule."""

import json

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, latent, features):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(latent, 16), nn.LeakyReLU(0.2), nn.Linear(16, features))

    def forward(self, z):
        return self.net(z)


class GAN(L.LightningModule):
    def __init__(self, latent: int = 4, features: int = 6, lr: float = 2e-3, critic_steps: int = 2):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = Generator(latent, features)
        self.discriminator = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))
        self.validation_z = torch.randn(3, latent)
        self.steps = []

    def forward(self, z):
        return self.generator(z)

    def adversarial(self, guess, real):
        target = torch.full_like(guess, float(real))
        return nn.functional.binary_cross_entropy_with_logits(guess, target)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(len(real), self.hparams.latent).type_as(real)

        self.toggle_optimizer(optimizer_d)
        loss_real = self.adversarial(self.discriminator(real), True)
        loss_fake = self.adversarial(self.discriminator(self(z).detach()), False)
        loss_d = (loss_real + loss_fake) / 2
        optimizer_d.zero_grad()
        self.manual_backward(loss_d)
        self.clip_gradients(optimizer_d, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)

        if (batch_idx + 1) % self.hparams.critic_steps == 0:
            self.toggle_optimizer(optimizer_g)
            loss_g = self.adversarial(self.discriminator(self(z)), True)
            optimizer_g.zero_grad()
            self.manual_backward(loss_g)
            optimizer_g.step()
            self.untoggle_optimizer(optimizer_g)
            self.log("g_loss", loss_g, prog_bar=True)
        self.log_dict({"d_loss": loss_d, "global_step": float(self.global_step)}, prog_bar=True)
        self.steps.append(loss_d.item())

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def validation_step(self, batch, batch_idx):
        pass

    def on_validation_epoch_end(self):
        self.log("drawn", self(self.validation_z.to(self.device)).mean())

    def configure_optimizers(self):
        betas = (0.5, 0.999)
        optimizer_g = torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr, betas=betas)
        optimizer_d = torch.optim.Adam(self.discriminator.parameters(), lr=self.hparams.lr * 2, betas=betas)
        schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in (optimizer_g, optimizer_d)]
        return [optimizer_g, optimizer_d], schedules


if __name__ == "__main__":
    L.seed_everything(5)
    data = TensorDataset(torch.randn(60, 6) * 0.5 + 1)
    model = GAN()
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=10, shuffle=True), DataLoader(data, batch_size=30))
    print(
        json.dumps(
            {
                "steps": model.steps,
                "metrics": {name: value.item() for name, value in trainer.callback_metrics.items()},
                "global step": trainer.global_step,
                "lr": [optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers],
                "frozen left": [name for name, p in model.named_parameters() if not p.requires_grad],
            }
        )
    )
