"""Which checkpoints are uploaded."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from lightlib.loggers.checkpoint_files import CheckpointFile, new_checkpoints, settings, uploads_at_once
from lightlib.report import LightlibWarning


def callback(best="", last="", top=(), **others):
    return SimpleNamespace(
        best_model_path=best, last_model_path=last, best_model_score=None, best_k_models=dict(top), **others
    )


def test_only_new_and_changed_files_oldest_first(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.ckpt", "b.ckpt", "last.ckpt")]
    for i, path in enumerate(paths):
        with open(path, "w", encoding="utf-8"):
            pass
        os.utime(path, (100 - i, 100 - i))
    checkpoints = callback(paths[0], paths[2], {paths[0]: torch.tensor(0.5), paths[1]: 0.75, "gone.ckpt": 1.0})
    uploaded = {}
    assert new_checkpoints(checkpoints, uploaded) == [
        CheckpointFile(paths[2], None, ("latest",)),
        CheckpointFile(paths[1], 0.75, ("latest",)),
        CheckpointFile(paths[0], 0.5, ("latest", "best")),
    ]
    assert new_checkpoints(checkpoints, uploaded) == []
    os.utime(paths[2], (200, 200))
    assert [checkpoint.path for checkpoint in new_checkpoints(checkpoints, uploaded)] == [paths[2]]


def test_a_checkpoint_elsewhere_is_told():
    with pytest.warns(LightlibWarning, match="s3://bucket/a.ckpt are not on this machine"):
        assert new_checkpoints(callback("s3://bucket/a.ckpt"), {}) == []


def test_when_to_upload():
    few, all_of_them = callback(save_top_k=1, monitor="x"), callback(save_top_k=-1)
    assert uploads_at_once("all", few)
    assert uploads_at_once(True, all_of_them)
    assert not uploads_at_once(True, few)
    assert not uploads_at_once(False, all_of_them)
    assert settings(few) == {"monitor": "x", "save_top_k": 1}
