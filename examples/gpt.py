"""A small GPT learns to write Python, character by character, from the standard library.

Run it, for half a minute or longer:

    python examples/gpt.py
    python examples/gpt.py --max_steps 3000 --precision bf16-mixed
    python examples/gpt.py --max_steps 300 --strategy fsdp --devices 2
    python examples/gpt.py --max_steps 300 --accumulate_grad_batches 2

The same module trains under every strategy: "ddp", "fsdp", "hsdp", "zero1", "tensor", "pipeline", … The loss is
weighted by its number of tokens, also over accumulated batches; the schedule gets the length of the run.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import LearningRateMonitor

BATCH_SIZE, CONTEXT = 16, 64
INDENT = "    "  # one character, a tab, to the model
SOURCES = ("argparse", "ast", "dataclasses", "datetime", "functools", "inspect", "pathlib", "random", "typing")


class Text(L.DataModule):
    """The source of a few modules as windows of CONTEXT + 1 characters."""

    def __init__(self) -> None:
        super().__init__()
        folder = Path(os.__file__).parent
        files = [path for name in SOURCES if (path := folder / f"{name}.py").exists()]
        text = "".join(path.read_text(encoding="utf-8") for path in files).replace(INDENT, "\t")
        self.windows = torch.tensor(list(text.encode("ascii", "ignore"))).unfold(0, CONTEXT + 1, CONTEXT)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.windows[:-320], BATCH_SIZE, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.windows[-320:], BATCH_SIZE)


class Embed(nn.Module):
    """A vector for each character and its place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, width), nn.Embedding(CONTEXT, width)
        nn.init.normal_(self.characters.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.characters(text) + self.places(torch.arange(text.shape[1], device=text.device))


class Block(nn.Module):
    """Attention to earlier characters, then a small network at every position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norm_attention, self.norm_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm_attention(x)
        parts = (self.query(y), self.key(y), self.value(y))  # under tensor parallelism: of this process's heads
        query, key, value = (part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.network(self.norm_network(x))


class GPT(L.Module):
    """The usual decoder: embeddings, blocks, a norm, and one score per character."""

    def __init__(self, width: int = 96, depth: int = 3, heads: int = 4, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        blocks = [Block(width, heads) for _ in range(depth)]
        self.model = nn.Sequential(Embed(width), *blocks, nn.LayerNorm(width), nn.Linear(width, 128))

    def parallel_plan(self) -> L.ParallelPlan:
        """Return the matrices split by columns and by rows; the rest is found in the nn.Sequential."""
        columns = ("query", "key", "value", "network.0")
        return L.ParallelPlan(
            tensor={
                **{f"model.*.{name}": "colwise" for name in columns},
                **{f"model.*.{name}": "rowwise" for name in ("project", "network.2")},
            }
        )

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.model(text)

    def loss_sum(self, windows: torch.Tensor) -> torch.Tensor:
        scores = self.model(windows[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum")

    def training_step(self, windows: torch.Tensor) -> dict:
        loss, tokens = self.loss_sum(windows), windows[:, 1:].numel()
        self.log("train_loss", loss / tokens, prog_bar=True)
        return {"loss": loss, "weight": tokens}

    def validation_step(self, windows: torch.Tensor) -> None:
        self.log("val_loss", self.loss_sum(windows) / windows[:, 1:].numel(), prog_bar=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.lr, betas=(0.9, 0.95), weight_decay=0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warmup_and_cosine, "interval": "step"}}

    @torch.inference_mode()
    def sample(self, prompt: str, length: int, temperature: float = 0.7) -> str:
        """Continue the text after `prompt`."""
        text = torch.tensor([list(prompt.encode())], device=self.device)
        for _ in range(length):
            scores = self(text[:, -CONTEXT:])[:, -1] / temperature
            text = torch.cat([text, torch.multinomial(scores.softmax(-1), 1)], dim=1)
        return bytes(text[0].tolist()).decode().replace("\t", INDENT)


def warmup_and_cosine(optimizer: torch.optim.Optimizer, total_steps: int) -> LambdaLR:
    """Rise over a tenth of the run, then fall to a tenth of the rate. The Trainer passes `total_steps`."""
    warmup = max(1, total_steps // 10)

    def factor(step: int) -> float:
        falling = 0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, total_steps - warmup))
        return (step + 1) / warmup if step < warmup else falling

    return LambdaLR(optimizer, factor)


def main() -> None:
    """Learn, and write a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_steps", type=int, default=800)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accumulate_grad_batches", type=int, default=1)
    args = parser.parse_args()

    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator=args.accelerator,
        strategy=args.strategy,
        devices=args.devices,
        precision=args.precision,
        max_steps=args.max_steps,
        log_every_n_steps=min(10, args.max_steps),
        accumulate_grad_batches=args.accumulate_grad_batches,
        gradient_clip_val=1.0,
        val_check_interval=min(200, args.max_steps),
        check_val_every_n_epoch=None,
        callbacks=LearningRateMonitor(),
    )
    trainer.fit(GPT(), Text())

    if trainer.is_global_zero:  # the checkpoint holds the full model, however it was sharded
        loss, steps = trainer.callback_metrics["val_loss"], trainer.global_step
        print(f"validation loss {loss:.3f}; after {steps} steps it writes:\n")
        model = GPT.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
        print(model.eval().sample("def read(self, ", 400))


if __name__ == "__main__":
    main()
