"""Group relative policy optimization (GRPO): the GPT of sft.py learns from rewards for its answers.

Run it after sft.py, whose weights it starts from:

    python examples/sft.py
    python examples/grpo.py
    python examples/grpo.py --strategy ddp --devices 2

A reward is the share of tokens of the upward answer. Each step samples a group of answers to each prompt, so a killed
run that is resumed (`--resume`) has to draw the same ones, which it does.
"""

from __future__ import annotations

import argparse

import torch
from sft import IGNORED, PROMPT, SFT, answered, answers, labels_of, prompts
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.losses import ReferenceModel, group_advantages, grpo_loss, token_kl, token_log_probs


class Prompts(L.DataModule):
    """All prompts, without answers."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(prompts(), batch_size=8, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(prompts(), batch_size=26)


def rewards_of(texts: torch.Tensor) -> torch.Tensor:
    """Return the share of each answer that is as upward answers are."""
    return (texts[:, PROMPT:] == answers(texts[:, :PROMPT], 1)).float().mean(1)


class GRPO(L.Module):
    """A policy that samples and is trained, and the reference model that it began as.

    Args:
        sft: The checkpoint of sft.py.
        group_size: Answers to each prompt.
        beta: How strongly the policy is kept at the reference.
        lr: The learning rate.
    """

    def __init__(self, sft: str = "sft.ckpt", group_size: int = 8, beta: float = 0.04, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = SFT.load_from_checkpoint(sft).model
        self.reference = ReferenceModel(self.model)

    def training_step(self, words: torch.Tensor) -> torch.Tensor:
        size = self.hparams.group_size
        texts = answered(self.model, words.repeat_interleave(size, 0))
        rewards, following = rewards_of(texts), labels_of(texts)[:, 1:]
        policy, reference = (token_log_probs(model(texts[:, :-1]), following) for model in (self.model, self.reference))
        mask = following != IGNORED
        kl = token_kl(policy.detach(), reference).sum(1) / mask.sum(1)
        self.log_dict({"train_reward": rewards.mean(), "train_kl": kl.mean()}, prog_bar=True)
        advantages = group_advantages(rewards, size)
        return grpo_loss(policy, advantages, mask, reference_log_probs=reference, beta=self.hparams.beta)

    def validation_step(self, words: torch.Tensor) -> None:
        self.log("val_reward", rewards_of(answered(self.model, words)).mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), self.hparams.lr)


def main() -> None:
    """Validate the weights of sft.py, train, and write grpo.ckpt after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sft", default="sft.ckpt", help="the checkpoint of sft.py")
    parser.add_argument("--max_epochs", type=int, default=5)
    parser.add_argument("--resume", action="store_true", help="continue a run that was killed, from grpo.ckpt")
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
        callbacks=ModelCheckpoint(".", filename="grpo", enable_version_counter=False, save="trainable"),
    )
    module, data = GRPO(args.sft), Prompts()
    trainer.validate(module, data, verbose=False)
    before = float(trainer.callback_metrics["val_reward"])
    trainer.fit(module, data, ckpt_path="grpo.ckpt" if args.resume else None)
    if trainer.is_global_zero:
        print(f"reward {before:.3f} before, {float(trainer.callback_metrics['val_reward']):.3f} after")


if __name__ == "__main__":
    main()
