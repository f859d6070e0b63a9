"""Two processes: the run's configuration, placeholders of a schedule, and clipping by a function."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.schedulers import NUM_EPOCHS, TRAIN_DATALOADER_LEN, UPDATE_STEPS_PER_EPOCH
from tests.distributed.user import data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.plain import Net, with_methods

pytestmark = pytest.mark.processes


def net() -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return torch.nn.Linear(4, 8)


class Scheduled(Net):
    """Its schedule needs the numbers of the run."""

    def __init__(self) -> None:
        super().__init__(net=net())
        self.rates: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        cycle = partial(OneCycleLR, max_lr=0.5, epochs=NUM_EPOCHS, steps_per_epoch=UPDATE_STEPS_PER_EPOCH)
        mark = partial(torch.optim.lr_scheduler.StepLR, step_size=TRAIN_DATALOADER_LEN * 100)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}, {"scheduler": mark, "interval": "manual"}]


def run(rank: int) -> Any:
    module = Scheduled()
    trainer = L.Trainer(**quiet.QUIET, strategy="ddp", max_epochs=2, accumulate_grad_batches=3)
    trainer.fit(module, DataLoader(data(80), 4), DataLoader(data(12, 2), 3))
    lengths = [config.scheduler for config in trainer.lr_scheduler_configs]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(Scheduled.training_step(self, batch, batch_idx))
        optimizer.step(clip_grads=lambda parameters: clip_grad_norm_(parameters, 0.05))

    clipped = with_methods(Scheduled, training_step, automatic_optimization=False)
    loaders = DataLoader(data(32), 4), DataLoader(data(12, 2), 3)
    L.Trainer(**quiet.QUIET, strategy="ddp", max_epochs=1).fit(clipped, *loaders)
    weights = {name: value.detach().clone() for name, value in clipped.net.state_dict().items()}
    return trainer.run_config.to_dict(), module.rates, (lengths[0].total_steps, lengths[1].step_size), weights


def clipped_by_hand() -> torch.nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    OneCycleLR(optimizer, max_lr=0.5, epochs=1, steps_per_epoch=4)  # sets the first rate; nothing steps it
    halves = [DataLoader(torch.utils.data.Subset(data(32), range(rank, 32, 2)), 4) for rank in range(2)]
    for parts in zip(*halves, strict=True):
        optimizer.zero_grad()
        for x, y in parts:
            (cross_entropy(model(x), y) / 2).backward()
        clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


def test_the_numbers_of_two_processes() -> None:
    results = ranks(2, run)
    for rank, (config, rates, lengths, weights) in enumerate(results):
        shared = {name: config[name] for name in config if not name.endswith(("_process_zero", "_dl_kwargs"))}
        assert shared == {
            "num_epochs": 2,
            "train_per_device_batch_size": 4,
            "eval_per_device_batch_size": 3,
            "gradient_accumulation_steps": 3,
            "train_total_batch_size": 24,
            "eval_total_batch_size": 6,
            "num_update_steps_per_epoch": 4,  # 80 samples are 10 batches on each process, in windows of 3
            "max_num_train_steps": None,
            "is_distributed": True,
            "mixed_precision": "32-true",
            "gradient_clip_value": None,
            "num_processes": 2,
        }
        assert (config["is_local_process_zero"], config["is_world_process_zero"]) == (rank == 0, rank == 0)
        assert (config["train_dl_kwargs"]["batch_size"], config["eval_dl_kwargs"]["batch_size"]) == (4, 3)
        assert lengths == (8, 1000)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
        schedule, expected = OneCycleLR(optimizer, max_lr=0.5, total_steps=8), []
        for _ in range(8):
            expected.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        assert rates == expected
        for name, value in clipped_by_hand().state_dict().items():
            torch.testing.assert_close(weights[name], value)
