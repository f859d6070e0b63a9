"""Counts the files of lightlib between a callback that saves and the bytes on disk, and back."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import lightlib
from lightlib import Trainer
from lightlib.callbacks import ModelCheckpoint
from tests.runs.modules import Regression

ROOT = Path(lightlib.__file__).parent


def fit(folder, **options):
    trainer = Trainer(
        max_epochs=options.pop("epochs"),
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=ModelCheckpoint(folder, every_n_train_steps=1, save_last=True),
    )
    trainer.fit(Regression(), DataLoader(torch.ones(2, 1), 1), **options)


def file_of(frame):
    path = Path(frame.f_code.co_filename)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else None


def stacks(call, start, ends):
    """Return lightlib's files on the stack, from the frame of `start`, at each call of one of `ends`.

    A function is named by its file and its name.
    """
    seen, names = [], {name for _, name in ends}

    def profile(frame, event, _):
        if event != "call" or frame.f_code.co_name not in names or (file_of(frame), frame.f_code.co_name) not in ends:
            return
        files = []
        while frame is not None:
            files.append(file_of(frame))
            if (files[-1], frame.f_code.co_name) == start:
                seen.append({file for file in files if file is not None})
                return
            frame = frame.f_back

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert seen
    return set().union(*seen)


CALLBACK = "callbacks/checkpoint/model_checkpoint.py"
SAVER = "core/resume/save.py"


def test_from_the_hook_to_the_bytes(tmp_path):
    request = stacks(lambda: fit(tmp_path, epochs=1), (CALLBACK, "on_train_batch_end"), {(SAVER, "request")})
    written = stacks(
        lambda: fit(tmp_path, epochs=1), (CALLBACK, "_save_due"), {("checkpoint/storage/local.py", "write")}
    )
    assert request | written == {
        CALLBACK,
        "core/trainer.py",
        SAVER,
        "checkpoint/formats.py",
        "checkpoint/file/archive.py",
        "checkpoint/file/records.py",
        "checkpoint/storage/filesystem.py",
        "checkpoint/storage/local.py",
    }


def test_from_the_path_to_the_restored_state(tmp_path):
    fit(tmp_path, epochs=1)
    restored = stacks(
        lambda: fit(tmp_path, epochs=2, ckpt_path="last"),
        ("core/trainer.py", "fit"),
        {
            ("core/resume/find.py", "resolve_path"),
            ("checkpoint/file/archive.py", "_read"),
            ("core/resume/resume_source.py", "check"),
            ("core/resume/restore.py", "restore_weights"),
            ("core/resume/fingerprint.py", "compare"),
            ("core/resume/restore.py", "restore"),
            ("core/run/run.py", "_restore_rng"),
        },
    )
    assert restored == {
        "core/trainer.py",
        "core/session.py",
        "core/resume/resume_source.py",
        "core/resume/find.py",
        "core/resume/restore.py",
        "core/resume/fingerprint.py",
        "core/run/loop.py",
        "core/run/run.py",
        "checkpoint/formats.py",
        "checkpoint/file/archive.py",
    }
