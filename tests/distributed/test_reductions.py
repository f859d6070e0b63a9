"""Reductions on two processes by literal numbers, also of batches that are lists of samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import lightlib as L
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.modules import Regression

pytestmark = pytest.mark.processes


class Images(Dataset):
    """Ten samples of detectron2's form; the value of each is its number. The image has three channels."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.zeros(3, 2, 2), "value": float(index)}


def of_lists(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """MMEngine's `pseudo_collate`."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def values_of(batch: Any) -> torch.Tensor:
    return torch.as_tensor([sample["value"] for sample in batch] if isinstance(batch, list) else batch["value"])


class Logs(Regression):
    """Logs one number of each batch by every reduction."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.note(batch, on_step=False, on_epoch=True)
        return self.loss(torch.ones(1, 1))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.note(batch)

    test_step = validation_step

    def note(self, batch: Any, **options: Any) -> None:
        values = values_of(batch)
        for name in ("mean", "sum", "max", "min"):
            self.log(name, getattr(values, name)(), reduce_fx=name, sync_dist=True, **options)


LITERALS = {"mean": 4.5, "sum": 45.0, "max": 9.0, "min": 0.0}  # of 0 to 9


def logged(rank: int) -> Any:
    found = {}
    for name, collate in {"tensors": None, "dicts": list, "lists": of_lists}.items():
        loader, trainer = (
            DataLoader(Images(), 4, collate_fn=collate),
            L.Trainer(**quiet.QUIET, strategy="ddp", max_epochs=1),
        )
        trainer.fit(module := Logs(), loader)
        found[name] = [{key: float(trainer.callback_metrics[key]) for key in LITERALS}]
        for verb in ("validate", "test"):
            found[name] += getattr(trainer, verb)(module, loader, verbose=False)
    return found


def test_every_reduction_of_every_form_of_batch() -> None:
    for found in ranks(2, logged):  # each process has batches of four samples and one
        for name, numbers in found.items():
            assert numbers == [pytest.approx(LITERALS)] * 3, name
