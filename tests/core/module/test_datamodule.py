"""DataModule.from_datasets: the batches of its loaders, and the arguments of its `__init__`."""

from __future__ import annotations

import pytest
from torch.utils.data import TensorDataset

from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.overrides import overrides
from tests.runs.plain import Net, quiet_trainer, samples


class Takes(DataModule):
    def __init__(self, name, batch_size=7, *, num_workers=3):
        super().__init__()
        self.save_hyperparameters()


class TakesOne(DataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.got = {"batch_size": batch_size}


class TakesAll(DataModule):
    def __init__(self, **arguments):
        super().__init__()
        self.got = arguments


def data(n=6):
    return TensorDataset(*samples(n))


def test_loaders_of_data_sets():
    module = DataModule.from_datasets(data(), [data(2), data(3)], {"a": data(4)}, batch_size=2)
    trainer = quiet_trainer(limit_val_batches=0)
    trainer.fit(Net(), datamodule=module)
    assert trainer.global_step == 3
    assert [len(loader) for loader in module.val_dataloader()] == [1, 2]
    assert {name: len(loader) for name, loader in module.test_dataloader().items()} == {"a": 2}
    assert str(module) == "DataModule(train: 3 batches; val: 1 batches, 2 batches; test: 2 batches)"


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [(TakesOne, {}, {"batch_size": 4}), (TakesAll, {"name": "x"}, {"batch_size": 4, "num_workers": 0, "name": "x"})],
)
def test_init_gets_what_it_takes_of_batch_size_and_num_workers(kind, more, expected):
    assert kind.from_datasets(data(), batch_size=4, **more).got == expected


def test_hyperparameters_of_a_subclass():
    module = Takes.from_datasets(data(), batch_size=4, name="x")
    assert module.hparams == {"name": "x", "batch_size": 4, "num_workers": 0}
    assert next(iter(module.train_dataloader()))[1].shape == (4,)


def test_a_loader_that_is_set_to_the_one_of_the_base_is_none():
    class Data(DataModule):
        def __init__(self):
            super().__init__()
            self.val_dataloader = super().val_dataloader

        def val_dataloader(self):
            return []

    assert not overrides(Data(), DataModule, "val_dataloader")
