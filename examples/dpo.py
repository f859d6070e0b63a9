"""Direct preference optimization (DPO): the GPT of sft.py learns that upward answers are preferred.

Run it after sft.py, whose weights it starts from:

    python examples/sft.py
    python examples/dpo.py
    python examples/dpo.py --strategy fsdp --devices 2

A third of the prompts is for validation. The reference model is a frozen copy of the weights of sft.py: checkpoints
leave it out, and the program loads it again.
"""

from __future__ import annotations

import argparse

import torch
from sft import PROMPT, SFT, answered, answers, labels_of, prompts
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.losses import ReferenceModel, dpo_loss, sequence_log_probs

IS_VALIDATED = torch.arange(len(prompts())) % 3 == 0


class Preferences(L.DataModule):
    """Pairs of texts with the same prompt: the preferred one, and the other one."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(pairs(prompts()[~IS_VALIDATED]), batch_size=13, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(pairs(prompts()[IS_VALIDATED]), batch_size=26)


def pairs(words: torch.Tensor) -> TensorDataset:
    """Return prompts with upward answers, and with downward answers."""
    return TensorDataset(*(torch.cat([words, answers(words, step)], dim=1) for step in (1, -1)))


class DPO(L.Module):
    """A policy that is trained, and the reference model that it began as.

    Args:
        sft: The checkpoint of sft.py.
        beta: How strongly the policy is kept at the reference.
        likelihood: Factor of the log-probability of preferred answers; without it they become less likely as well.
        lr: The learning rate.
    """

    def __init__(self, sft: str = "sft.ckpt", beta: float = 0.1, likelihood: float = 0.2, lr: float = 3e-4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = SFT.load_from_checkpoint(sft).model
        self.reference = ReferenceModel(self.model)

    def compare(self, stage: str, batch: list[torch.Tensor]) -> torch.Tensor:
        """Log and return the loss of pairs."""
        texts = torch.cat(batch)
        policy, reference = (
            sequence_log_probs(model(texts[:, :-1]), labels_of(texts)[:, 1:]).chunk(2)
            for model in (self.model, self.reference)
        )
        loss = dpo_loss(*policy, *reference, beta=self.hparams.beta)
        loss = loss - self.hparams.likelihood * policy[0].mean()
        margins = self.hparams.beta * ((policy[0] - reference[0]) - (policy[1] - reference[1]))
        values = {"loss": loss, "margin": margins.mean(), "accuracy": (margins > 0).float().mean()}
        self.log_dict({f"{stage}_{name}": value for name, value in values.items()}, batch_size=len(margins))
        return loss

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.compare("train", batch)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.compare("val", batch)
        words = batch[0][:, :PROMPT]
        given = answered(self.model, words, greedy=True)[:, PROMPT:]
        self.log("val_up", (given == answers(words, 1)).all(1).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), self.hparams.lr)


def main() -> None:
    """Validate the weights of sft.py, train, and write dpo.ckpt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sft", default="sft.ckpt", help="the checkpoint of sft.py")
    parser.add_argument("--max_epochs", type=int, default=10)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--devices", default="auto")
    args = parser.parse_args()

    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator=args.accelerator,
        strategy=args.strategy,
        devices=args.devices,
        max_epochs=args.max_epochs,
        gradient_clip_val=1.0,
        log_every_n_steps=2,
        check_val_every_n_epoch=5,
        callbacks=ModelCheckpoint(".", filename="dpo", enable_version_counter=False, save="trainable"),
    )
    module, data = DPO(args.sft), Preferences()
    trainer.validate(module, data, verbose=False)
    before = float(trainer.callback_metrics["val_up"])
    trainer.fit(module, data)
    if trainer.is_global_zero:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        print(f"accuracy {metrics['val_accuracy']:.3f}, margin {metrics['val_margin']:.3f}")
        print(f"upward answers {before:.3f} before, {metrics['val_up']:.3f} after")


if __name__ == "__main__":
    main()
