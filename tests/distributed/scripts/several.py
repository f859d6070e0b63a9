"""A user's script with more than one call and more than one Trainer."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L


class Net(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("test_loss", F.cross_entropy(self.net(x), y))

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(devices: int = 2, **options: Any) -> L.Trainer:
    given: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given |= {"enable_checkpointing": False, "max_epochs": 1, "accelerator": "cpu", "devices": devices}
    return L.Trainer(**given | options)


def loader() -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(24, 4, generator=generator), torch.randint(2, (24,), generator=generator))
    return DataLoader(data, 4)


def main(*arguments: str) -> None:
    torch.manual_seed(0)
    one, module = trainer(), Net()
    one.fit(module, loader(), loader())
    print("fitted", one.global_rank, one.current_epoch)
    if "other" in arguments:
        trainer(3).fit(module, loader())
    one.max_epochs = 2
    one.fit(module, loader(), loader())
    print("fitted again", one.global_rank, one.current_epoch)
    print("tested", one.global_rank, sorted(one.test(module, loader(), verbose=False)[0]))
    print("predicted", one.global_rank, len(one.predict(module, loader())))
    two = trainer(strategy="fsdp")
    two.fit(Net(), loader(), loader())
    print("second trainer", two.global_rank, two.global_step)


if __name__ == "__main__":
    main(*sys.argv[1:])
