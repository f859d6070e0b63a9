"""BatchSummary: the first batch of each loader is printed once, as the steps receive it."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import BatchSummary
from lightlib.callbacks.summary.batch_summary import described, rows
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET


class Line(Regression):
    def __init__(self):
        super().__init__(2)

    def loss(self, batch):
        return self.net(batch["x"]).mean()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def test_step(self, batch, batch_idx):
        pass

    def predict_step(self, batch, batch_idx):
        return self.net(batch["x"])


def loader(first, batch_size=2):
    data = [{"x": torch.tensor([first + i, 0.0]), "y": i} for i in range(4)]
    return DataLoader(data, batch_size)


def blocks(printed):
    """Return the printed blocks: the title and the rows."""
    return printed.replace("\nFirst", "\0First").strip().split("\0")


def test_the_first_batch_of_each_loader_of_a_stage(capsys):
    trainer = L.Trainer(**QUIET, max_epochs=2, callbacks=[BatchSummary()])
    trainer.fit(Line(), loader(0.0), [loader(10.0), loader(20.0, 1)])
    title, x, y = "First batch of", "  x: float32 (2, 2) on cpu, ", "  y: int64 (2,) on cpu, 0 to 1, mean 0.5"
    assert blocks(capsys.readouterr().out) == [
        f"{title} validation:\n{x}0 to 11, mean 5.25\n{y}",
        f"{title} validation, loader 1:\n{x}0 to 20, mean 10\n{y}".replace("(2", "(1").replace(
            "0 to 1, mean 0.5", "0 to 0, mean 0"
        ),
        f"{title} training:\n{x}0 to 1, mean 0.25\n{y}",
    ]


def test_each_run_prints_again(capsys):
    trainer = L.Trainer(**QUIET, callbacks=[BatchSummary()])
    for verb, stage in (("test", "test"), ("predict", "prediction"), ("test", "test")):
        getattr(trainer, verb)(Line(), loader(0.0))
        assert blocks(capsys.readouterr().out)[0].startswith(f"First batch of {stage}:\n  x: float32 (2, 2)")


def test_places_and_values_that_are_no_tensors():
    batch = {"pair": (torch.zeros(1, dtype=torch.bool), ["a", 2]), "long": "b" * 80, "none": None, "empty": []}
    assert list(rows(batch)) == [
        "pair.0: bool (1,) on cpu, 0 to 0, mean 0",
        "pair.1.0: 'a' (str)",
        "pair.1.1: 2 (int)",
        f"long: '{'b' * 59}… (str)",
        "none: None (NoneType)",
        "empty: [] (list)",
    ]
    assert list(rows(torch.ones(2))) == ["batch: float32 (2,) on cpu, 1 to 1, mean 1"]


def test_tensors_without_a_range():
    nan = float("nan")
    assert described(torch.tensor([nan, nan])) == "float32 (2,) on cpu, 2 not finite"
    assert described(torch.tensor([1.0, float("inf")])) == "float32 (2,) on cpu, 1 to 1, mean 1, 1 not finite"
    assert described(torch.empty(0, 3)) == "float32 (0, 3) on cpu"
    assert described(torch.zeros(2, dtype=torch.complex64)) == "complex64 (2,) on cpu"
    assert described(torch.zeros(2, device="meta")) == "float32 (2,) on meta"
    assert described(torch.eye(2).to_sparse()) == "float32 (2, 2) on cpu"
    assert described(torch.ones(2, dtype=torch.bfloat16, requires_grad=True)) == "bfloat16 (2,) on cpu, 1 to 1, mean 1"
