"""Fixtures of several logger tests."""

from __future__ import annotations

from types import SimpleNamespace

import fsspec
import pytest
import torch


@pytest.fixture
def memory():
    """The file system in memory of fsspec, empty before and after."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture
def checkpoints(tmp_path):
    """A stand-in for a ModelCheckpoint with one file, as a logger sees it."""
    path = tmp_path / "epoch=1.ckpt"
    path.write_text("weights")
    return SimpleNamespace(
        best_model_path=str(path),
        best_model_score=torch.tensor(0.5),
        best_k_models={str(path): torch.tensor(0.5)},
        last_model_path="",
        current_score=None,
        monitor="val_loss",
        mode="min",
        save_top_k=1,
    )
