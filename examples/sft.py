"""Supervised fine-tuning (SFT): a small GPT learns to answer with letters, upward or downward.

Run it; dpo.py and grpo.py train its weights further:

    python examples/sft.py
    python examples/sft.py --strategy ddp --devices 2

A text is "c3>def" or "c3>baz": from the letter c, three letters. The loss counts answers, not prompts, and each letter
once, also over batches and processes with different numbers of them.
"""

from __future__ import annotations

import argparse

import torch
from gpt import GPT
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import ModelCheckpoint

A, END, PAD, IGNORED = ord("a"), ord("\n"), 0, -100
PROMPT, LONGEST = 3, 5  # tokens of a prompt; letters of an answer


def prompts() -> torch.Tensor:
    """Return a prompt for each letter and each length of an answer."""
    return torch.tensor(
        [list(f"{chr(A + letter)}{length}>".encode()) for letter in range(26) for length in range(2, 6)]
    )


def answers(words: torch.Tensor, step: int) -> torch.Tensor:
    """Return the answers to prompts, upward for a step of 1 and downward for -1: letters, an end, and padding."""
    places = torch.arange(LONGEST + 1, device=words.device)
    letters = A + (words[:, :1] - A + step * (places + 1)) % 26
    lengths = words[:, 1:2] - ord("0")
    return torch.where(places < lengths, letters, torch.where(places == lengths, END, PAD))


def labels_of(texts: torch.Tensor) -> torch.Tensor:
    """Return the tokens that count, which are those of answers up to their end, and IGNORED for the rest."""
    answered = texts[:, PROMPT:]
    is_after = (answered == END).cumsum(1) - (answered == END).long() > 0
    return torch.cat([torch.full_like(texts[:, :PROMPT], IGNORED), answered.masked_fill(is_after, IGNORED)], dim=1)


@torch.no_grad()
def answered(model: torch.nn.Module, words: torch.Tensor, greedy: bool = False) -> torch.Tensor:
    """Return prompts with answers that a model samples, or with its most probable letters; padding after their ends."""
    for _ in range(LONGEST + 1):
        scores = model(words)[:, -1]
        following = scores.argmax(-1, keepdim=True) if greedy else torch.multinomial(scores.softmax(-1), 1)
        words = torch.cat([words, following], dim=1)
    is_after = labels_of(words)[:, PROMPT:] == IGNORED
    return torch.cat([words[:, :PROMPT], words[:, PROMPT:].masked_fill(is_after, PAD)], dim=1)


class Alphabet(L.DataModule):
    """Prompts with both answers to each."""

    def train_dataloader(self) -> DataLoader:
        texts = torch.cat([torch.cat([prompts(), answers(prompts(), step)], dim=1) for step in (1, -1)])
        return DataLoader(TensorDataset(texts, labels_of(texts)), batch_size=32, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(prompts(), batch_size=26)


class SFT(GPT):
    """The small GPT, with the loss of answers and the share of right ones."""

    def training_step(self, batch: list[torch.Tensor]) -> dict:
        texts, labels = batch
        scores, following = self(texts[:, :-1]), labels[:, 1:]
        loss = F.cross_entropy(scores.flatten(0, 1), following.flatten(), ignore_index=IGNORED, reduction="sum")
        letters = (following != IGNORED).sum()
        self.log("train_loss", loss / letters, prog_bar=True)
        return {"loss": loss, "weight": letters}

    def validation_step(self, words: torch.Tensor) -> None:
        given = answered(self.model, words, greedy=True)[:, PROMPT:]
        up, down = ((given == answers(words, step)).all(1).float().mean() for step in (1, -1))
        self.log_dict({"val_right": up + down, "val_up": up}, prog_bar=True)


def main() -> None:
    """Train, validate, and write sft.ckpt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_epochs", type=int, default=20)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--devices", default="auto")
    args = parser.parse_args()

    L.seed_everything(0)
    saved = ModelCheckpoint(".", filename="sft", enable_version_counter=False)
    trainer = L.Trainer(
        accelerator=args.accelerator,
        strategy=args.strategy,
        devices=args.devices,
        max_epochs=args.max_epochs,
        gradient_clip_val=1.0,
        log_every_n_steps=5,
        check_val_every_n_epoch=5,
        callbacks=saved,
    )
    trainer.fit(SFT(width=64, depth=2), Alphabet())
    if trainer.is_global_zero:
        right, up = (float(trainer.callback_metrics[f"val_{name}"]) for name in ("right", "up"))
        print(f"right answers {right:.3f}, upward {up:.3f}; the weights are in {saved.best_model_path}")


if __name__ == "__main__":
    main()
