"""Loaders that depend on the epoch and are requested again: a resumed run reads those of its epoch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import lightlib as L
from tests.runs.plain import QUIET
from tests.runs.saves_at import SavesAt


class Numbers(Dataset):
    """`count` numbers of an epoch."""

    def __init__(self, epoch, count):
        self.x = 100.0 * epoch + torch.arange(float(count))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index]


def loader(epoch, equal, **arguments):
    return DataLoader(Numbers(epoch, 8 if equal else 10 - 2 * epoch), batch_size=2, **arguments)


class Reads(L.Module):
    """Notes the numbers that it reads, which checkpoints hold. Data are of the epoch in which they are requested."""

    def __init__(self, equal, of_datamodule=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.read, self.validated, self.equal = [], [], equal
        self.save_hyperparameters(ignore=["equal", "of_datamodule"])
        if not of_datamodule:
            self.train_dataloader = lambda: loader(self.trainer.current_epoch, equal, shuffle=True)
            self.val_dataloader = lambda: loader(self.trainer.current_epoch, equal)

    def training_step(self, batch, batch_idx):
        self.read.append(batch.tolist())
        return self.weight + batch.mean() * torch.rand(())

    def validation_step(self, batch, batch_idx):
        self.validated.append(batch.tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(L.DataModule):
    def __init__(self, equal):
        super().__init__()
        self.equal = equal

    def train_dataloader(self):
        return loader(self.trainer.current_epoch, self.equal, shuffle=True)

    def val_dataloader(self):
        return loader(self.trainer.current_epoch, self.equal)


def run(every, equal, by_datamodule, resumed=None, save=(), epochs=4, **arguments):
    module = Reads(equal, by_datamodule)
    callbacks = [SavesAt(path, step) for path, step in save]
    trainer = L.Trainer(
        **QUIET, max_epochs=epochs, reload_dataloaders_every_n_epochs=every, callbacks=callbacks, **arguments
    )
    trainer.fit(module, datamodule=Data(equal) if by_datamodule else None, ckpt_path=resumed)
    return module, trainer


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("by_datamodule", [False, True])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_resumed_run_reads_the_loaders_of_its_epoch(tmp_path, every, equal, by_datamodule):
    L.seed_everything(1, verbose=False)
    whole, trainer = run(every, equal, by_datamodule)
    total = trainer.global_step
    points = [(tmp_path / f"{step}.ckpt", step) for step in range(1, total)]
    L.seed_everything(1, verbose=False)
    again, _ = run(every, equal, by_datamodule, save=points)
    assert again.read == whole.read
    for path, step in points:
        torch.manual_seed(2)
        resumed, _ = run(every, equal, by_datamodule, resumed=path)
        assert resumed.read == whole.read, step  # a checkpoint holds what was read before
        assert resumed.validated == whole.validated, step
        assert torch.equal(resumed.weight, whole.weight)


def test_rare_validations_read_the_loaders_of_their_epoch(tmp_path):
    """Those of epoch 1 are read again in epoch 3: five epochs have not passed."""
    whole, _ = run(5, True, True, epochs=6, check_val_every_n_epoch=2, save=[(tmp_path / "a.ckpt", 14)])
    resumed, _ = run(5, True, True, epochs=6, check_val_every_n_epoch=2, resumed=tmp_path / "a.ckpt")
    assert resumed.validated == whole.validated
    assert {x for batch in whole.validated for x in batch} == {100 * epoch + i for epoch in (0, 5) for i in range(8)}


def test_a_second_fit_counts_from_its_own_request():
    """As in Lightning: requested when fit begins, in epoch 3, and next in epoch 5, after two epochs."""
    module, data = Reads(True, True), Data(True)
    trainer = L.Trainer(**QUIET, max_epochs=3, reload_dataloaders_every_n_epochs=2)
    trainer.fit(module, datamodule=data)
    trainer.max_epochs = 6
    trainer.fit(module, datamodule=data)
    epochs = [int(batch[0] // 100) for batch in module.read[::4]]
    assert epochs == [0, 0, 2, 3, 3, 5]
