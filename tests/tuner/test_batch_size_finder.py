"""BatchSizeFinder: the largest batch that fits, no trace in the run, and the result in the checkpoint."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.accelerators.out_of_memory import is_out_of_memory
from lightlib.callbacks import BatchSizeFinder, ModelCheckpoint
from lightlib.errors import MisconfigurationException
from lightlib.tuner import Tuner
from lightlib.tuner.batch_size_finder import search
from tests.runs import plain
from tests.runs.plain import with_methods
from tests.tuner.nets import LIMIT, QUIET, Loads, Net, Small, outcome


@pytest.mark.parametrize(
    ("mode", "margin", "found"), [("power", 0.05, 16), ("binsearch", 0.0, 20), ("binsearch", 0.1, 18)]
)
def test_the_largest_batch_that_fits(mode, margin, found):
    module = Small()
    assert Tuner(L.Trainer(**QUIET)).scale_batch_size(module, mode=mode, margin=margin) == found
    assert module.batch_size == found
    assert LIMIT == 20


@pytest.mark.parametrize("largest", range(1, 70))
def test_the_search_equals_counting(largest):
    def attempt(size):
        return size <= largest, None

    assert search("binsearch", attempt, 2, 25, 8192) == largest
    assert search("power", attempt, 2, 25, 8192) == max(2**n for n in range(7) if 2**n <= largest)


def test_limits_of_the_search():
    def fits(size):
        return True, None

    assert search("power", fits, 2, 25, 8192) == 8192
    assert search("power", fits, 2, 3, 8192) == 8
    assert search("power", fits, 3, 25, 50) == 50
    assert search("power", lambda size: (True, 40), 2, 25, 8192) == 40  # samples in the data set
    with pytest.raises(MisconfigurationException, match="found none: a batch of 1 ran out of memory"):
        search("power", lambda size: (False, None), 2, 25, 8192)


def test_training_uses_the_found_size_and_equals_a_run_that_began_with_it():
    def run(module, callbacks):
        torch.manual_seed(3)
        trainer = L.Trainer(**QUIET, max_epochs=2, callbacks=callbacks)
        trainer.fit(module)
        return outcome(trainer, module)

    finder = BatchSizeFinder()
    torch.testing.assert_close(
        run(Small(dropout=0.5), [finder]), run(Loads(dropout=0.5, batch_size=16), []), rtol=0, atol=0
    )
    assert finder.optimal_batch_size == 16
    assert os.listdir(".") == []


def test_a_resumed_run_keeps_the_size(monkeypatch):
    searches = []
    trial = L.Trainer.run_probe
    monkeypatch.setattr(L.Trainer, "run_probe", lambda self, *args: (searches.append(1), trial(self, *args))[1])

    def run(**resumed):
        torch.manual_seed(3)
        module, saves = Small(dropout=0.5), ModelCheckpoint("saved", "{step}", every_n_train_steps=2, save_top_k=-1)
        trainer = L.Trainer(
            **{**QUIET, "enable_checkpointing": True}, max_epochs=2, callbacks=[BatchSizeFinder(), saves]
        )
        trainer.fit(module, **resumed)
        result = outcome(trainer, module)
        return {name: result[name] for name in ("weights", "optimizer", "random", "progress")}, module.batch_size

    unbroken, size = run()
    count = len(searches)
    assert (size, count > 3) == (16, True)
    resumed, again = run(ckpt_path="saved/step=2.ckpt")
    assert (len(searches), again) == (count, 16)
    torch.testing.assert_close(resumed, unbroken, rtol=0, atol=0)


def test_the_size_of_a_data_module_and_of_an_evaluation():
    class Data(L.DataModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"batch_size": 2})

        def test_dataloader(self):
            return DataLoader(TensorDataset(*plain.samples(40)), batch_size=self.hparams.batch_size)

    def test_step(self, batch, batch_idx):
        if len(batch[0]) > 10:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes")

    data, tested = Data(), with_methods(Net, test_step)
    del tested.batch_size
    assert Tuner(L.Trainer(**QUIET)).scale_batch_size(tested, datamodule=data, method="test") == 8
    assert data.hparams.batch_size == 8


def test_other_errors_end_the_search():
    module = with_methods(Small, error=RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Tuner(L.Trainer(**QUIET)).scale_batch_size(module)
    assert module.batch_size == 4


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("any text"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (ValueError("CUDA out of memory"), False),
        (RuntimeError("out of luck"), False),
    ],
)
def test_errors_that_mean_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "triple"}, r"mode of BatchSizeFinder 'triple'.*'binsearch', 'power'"),
        ({"init_val": 0}, "init_val=0"),
        ({"steps_per_trial": 1.5}, r"steps_per_trial=1.5"),
        ({"margin": 1.0}, r"margin=1.0"),
        ({"margin": "a"}, r"margin='a'"),
        ({"init_val": 9, "max_val": 8}, r"init_val <= max_val"),
    ],
)
def test_bad_arguments(arguments, text):
    with pytest.raises(MisconfigurationException, match=f"(?s){text}"):
        BatchSizeFinder(**arguments)


def test_bad_runs():
    def scale(module, *data, **arguments):
        return Tuner(L.Trainer(**QUIET)).scale_batch_size(module, *data, **arguments)

    with pytest.raises(MisconfigurationException, match=r"train_dataloaders=.*whose batch size is fixed"):
        scale(Loads(), plain.loader(8))
    with pytest.raises(MisconfigurationException, match=r"looked for `size` in Loads"):
        scale(Loads(), batch_arg_name="size")
    with pytest.raises(MisconfigurationException, match="Unknown method of Tuner 'train'"):
        scale(Loads(), method="train")
    with pytest.raises(MisconfigurationException, match="with method='test'"):
        scale(Loads(), plain.loader(8), method="test")
    with pytest.raises(MisconfigurationException, match="has a BatchSizeFinder already"):
        Tuner(L.Trainer(**QUIET, callbacks=[BatchSizeFinder()])).scale_batch_size(Loads())
    with pytest.warns(UserWarning, match="fast_dev_run is on"):
        assert Tuner(L.Trainer(**QUIET, fast_dev_run=True)).scale_batch_size(Loads()) is None
