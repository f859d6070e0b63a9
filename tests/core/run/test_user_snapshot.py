"""A resumed run, without a sanity check of its own, has the changes by that of the stopped run."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchmetrics import SumMetric

import lightlib as L
from tests.core.run.test_user_state import Net, check, data, run
from tests.runs.plain import samples


class Validates(Net):
    """Scales the loss by findings of validations: numbers, a list, a generator, a metric updated by hand."""

    def __init__(self):
        super().__init__()
        self.seen, self.found, self.first, self.level = 0, [], None, 0.0
        self.generator, self.total = torch.Generator().manual_seed(1), SumMetric()

    def weight(self, loss):
        counted = 0.1 * self.seen + 0.01 * len(self.found) + 0.1 * float(self.total.sum_value)
        return loss * (1 + counted + self.first + self.noise + 0.1 * self.level)

    def validation_step(self, batch, batch_idx):
        self.seen += 1
        self.found.append(self.seen)
        self.first = self.seen if self.first is None else self.first
        self.level = float(batch[0].abs().mean())
        self.noise = float(torch.rand((), generator=self.generator))
        self.total.update(0.5)


class Harder(Dataset):
    """Adds to each sample how many were read before."""

    def __init__(self):
        self.samples, self.reads = samples(8), 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.reads += 1
        return self.samples[0][index] + self.reads, self.samples[1][index]


class AtTheCheck(L.Callback):
    """Changes itself and the module by the hooks around the sanity check, and when training starts."""

    def on_sanity_check_start(self, trainer, pl_module):
        self.factor = 3.0

    def on_sanity_check_end(self, trainer, pl_module):
        pl_module.head.bias.requires_grad_(False)

    def on_train_start(self, trainer, pl_module):
        self.starts = getattr(self, "starts", 0) + 1

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * self.factor


def program(validation, steps):
    """A program that validates in every second epoch and before training."""
    options = {"num_sanity_val_steps": steps, "check_val_every_n_epoch": 2}
    return lambda: (Validates(), (data(shuffle=True), validation()), [AtTheCheck()], options)


@pytest.mark.parametrize("steps", [1, -1])
@pytest.mark.parametrize("validation", [lambda: data(8), lambda: DataLoader(Harder(), 4)], ids=["plain", "counted"])
def test_changes_by_the_sanity_check_are_restored(validation, steps, tmp_path):
    check(program(validation, steps), tmp_path, (1, 5, 8, 12))


def test_only_changes_take_room(tmp_path):
    path = str(tmp_path / "a.ckpt")
    run(program(lambda: data(8), 1), path, 2)
    values = torch.load(path, weights_only=False)["lightlib"]["user"]["values"]
    assert values["module"].keys() == {"seen", "found", "first", "noise", "generator", "level"}
    assert values["AtTheCheck"].keys() == {"factor"}  # and not `starts`, which on_train_start sets again
    assert values.keys() == {"module", "AtTheCheck"}
