"""litgpt: a small GPT pretrained with Fabric, in one process and in two."""

import csv
import json
import logging
import os
import sys
import warnings
from pathlib import Path

os.environ["TORCH_COMPILE_DISABLE"] = "1"  # for the spawned processes too

import torch
from lightning.fabric import Fabric
from litgpt import Config, pretrain
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import DataModule
from litgpt.utils import choose_logger
from torch.utils.data import DataLoader

LENGTH = 16


class Counting(DataModule):
    """Numbers that count up in steps of one to three."""

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None):
        self.batch_size = batch_size

    def setup(self, stage=""):
        begins, widths = torch.arange(60) * 7 % 31, torch.arange(60) % 3 + 1
        self.rows = (begins[:, None] + widths[:, None] * torch.arange(LENGTH + 1)) % 32

    def train_dataloader(self):
        return DataLoader(self.rows[:47], batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.rows[47:], batch_size=self.batch_size)


def arguments(folder, micro_steps):
    batch, accumulation = 4, 2
    return {
        "out_dir": Path(folder),
        "resume": False,
        "data": Counting(),
        "train": TrainArgs(
            save_interval=4,
            log_interval=1,
            global_batch_size=batch * accumulation,
            micro_batch_size=batch,
            max_tokens=micro_steps * batch * LENGTH,
            max_norm=1.0,
            min_lr=1e-4,
            lr_warmup_steps=2,
            tie_embeddings=False,
        ),
        "eval": EvalArgs(interval=2, max_iters=3, final_validation=True, initial_validation=False),
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1e-2}},
        "tokenizer_dir": None,
        "seed": 21,
    }


def config():
    return Config(
        block_size=LENGTH,
        vocab_size=32,
        padded_vocab_size=32,
        n_layer=2,
        n_head=2,
        n_embd=16,
        intermediate_size=32,
    )


def two_processes(fabric):
    given = arguments("two", micro_steps=32)
    given["train"].global_batch_size *= 2
    pretrain.main(fabric=fabric, devices=2, initial_checkpoint_dir=None, config=config(), tokenizer=None, **given)
    fabric.logger.finalize("success")


def charts(folder):
    rows = []
    for file in sorted(Path(folder).rglob("metrics.csv")):
        with file.open() as lines:
            for row in csv.DictReader(lines):
                names = ("step", "loss", "learning_rate", "epoch", "total_tokens", "val_loss", "val_ppl")
                rows.append({name: float(row[name]) for name in names if row.get(name)})
    return rows


def saved(folder):
    weights = torch.load(Path(folder) / "final" / "lit_model.pth", weights_only=False)["model"]
    return {name: weight.double().abs().sum().item() for name, weight in weights.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    sys.argv[1:] = ["tiny"]  # litgpt writes its command line into each checkpoint's folder
    pretrain.setup("tiny", config(), devices=1, precision="32-true", logger_name="csv", **arguments("one", 32))
    logger = choose_logger("csv", Path("two"), name="two")
    Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn", loggers=[logger]).launch(two_processes)
    losses = [row["loss"] for row in charts("two") if "loss" in row]
    print(
        json.dumps(
            {
                "loss": losses[-1],
                "charts": {folder: charts(folder) for folder in ("one", "two")},
                "weights": {folder: saved(folder) for folder in ("one", "two")},
                "files": sorted(str(file) for folder in ("one", "two") for file in Path(folder).rglob("*.pth")),
            }
        )
    )
