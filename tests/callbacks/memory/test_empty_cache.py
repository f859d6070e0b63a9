"""EmptyCache: when the cache of the device is emptied."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lightlib.callbacks import EmptyCache
from lightlib.errors import ArgumentTypeError, MisconfigurationException


def calls(monkeypatch, callback, device="cuda"):
    """Return how often it is emptied after four steps, an epoch and a validation."""
    made, counts = [], []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: made.append(1))
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)), global_step=0)
    callback.setup(trainer, None, "fit")
    for trainer.global_step in (1, 2, 3, 4):
        callback.on_accumulation_end(trainer, None)
    counts.append(len(made))
    callback.on_train_epoch_end(trainer, None)
    counts.append(len(made))
    callback.on_validation_end(trainer, None)
    return [*counts, len(made)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [0, 1, 2]),
        ({"every_n_steps": 2}, [2, 3, 4]),
        ({"every_n_steps": 1, "after_epoch": False, "after_validation": False}, [4, 4, 4]),
    ],
)
def test_it_is_emptied_when_asked(monkeypatch, options, wanted):
    assert calls(monkeypatch, EmptyCache(**options)) == wanted


def test_a_cpu_has_none(monkeypatch):
    assert calls(monkeypatch, EmptyCache(1), "cpu") == [0, 0, 0]


def test_wrong_arguments():
    with pytest.raises(MisconfigurationException, match="every_n_steps=0"):
        EmptyCache(0)
    with pytest.raises(ArgumentTypeError, match=r"every_n_steps=1\.5"):
        EmptyCache(1.5)
