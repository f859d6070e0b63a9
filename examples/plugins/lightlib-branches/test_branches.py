"""BranchAxis passes lightlib's conformance tests, alone and next to replicas."""

from __future__ import annotations

from typing import Any

import torch
from lightlib_branches import BranchAxis, Branches
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.testing import check_axis


class Net(L.Module):
    """A layer of branches between two Linear layers."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        branches = Branches(lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), count)
        self.model = nn.Sequential(nn.Linear(4, 8), branches, nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean squared error."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW: its state is saved and loaded as well."""
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return 32 samples in batches of 8."""
        inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(inputs, inputs.sin().sum(1, keepdim=True)), batch_size=8)


def refused() -> Net:
    """Return a module with three branches, which two processes cannot share."""
    return Net(count=3)


def test_it_conforms() -> None:
    """Every check of the kit passes."""
    check_axis(BranchAxis, Net, make_refused=refused, method="fork")
