"""Which checkpoints are uploaded."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace

import pytest
import torch

from lightlib.loggers.checkpoint_files import CheckpointFile, CheckpointUploads
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
    uploads = CheckpointUploads("all")
    assert uploads.after_save(checkpoints) == [
        CheckpointFile(paths[2], None, ("latest",)),
        CheckpointFile(paths[1], 0.75, ("latest",)),
        CheckpointFile(paths[0], 0.5, ("latest", "best")),
    ]
    assert uploads.after_save(checkpoints) == []
    os.utime(paths[2], (200, 200))
    assert [checkpoint.path for checkpoint in uploads.after_save(checkpoints)] == [paths[2]]


@pytest.mark.parametrize("score", [3, 0.5])
def test_a_score_keeps_its_type(tmp_path, score):
    path = tmp_path / "a.ckpt"
    path.touch()
    (file,) = CheckpointUploads("all").after_save(callback(str(path), top={str(path): torch.tensor(score)}))
    assert (file.score, type(file.score)) == (score, type(score))


def test_a_checkpoint_elsewhere_is_told():
    with pytest.warns(LightlibWarning, match="s3://bucket/a.ckpt are not on this machine"):
        assert CheckpointUploads("all").after_save(callback("s3://bucket/a.ckpt")) == []


def test_when_to_upload(tmp_path):
    path = tmp_path / "a.ckpt"
    path.touch()
    few, all_of_them = (callback(str(path), save_top_k=number, monitor="x") for number in (1, -1))

    def uploaded(log_model, checkpoints):
        uploads = CheckpointUploads(log_model)
        return len(uploads.after_save(checkpoints)), len(uploads.at_end())

    assert uploaded("all", few) == (1, 0)
    assert uploaded(True, all_of_them) == (1, 0)
    assert uploaded(True, few) == (0, 1)
    assert uploaded(False, all_of_them) == (0, 0)
    (file,) = CheckpointUploads("all").after_save(few)
    assert file.settings == {"monitor": "x", "save_top_k": 1}


def test_a_copy_waits_for_no_callback(tmp_path):
    uploads = CheckpointUploads(True)
    uploads.after_save(callback("a.ckpt", save_top_k=1))
    assert pickle.loads(pickle.dumps(uploads)).at_end() == []
