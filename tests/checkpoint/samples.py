"""Checkpoints as runs write them, made by hand, for tests of tools that read files."""

from __future__ import annotations

from pathlib import Path

import torch

from lightlib.checkpoint.directory import reader
from lightlib.checkpoint.file import archive
from lightlib.checkpoint.storage.label import Label

LABEL = Label(run="5f0c", serial=3, epoch=1, batch=14, step=7)


def content(weights_only=False, **more):
    """A checkpoint with tied weights, Adam's state, hyperparameters with a secret, and a callback."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 4, generator=generator)
    state = {
        "model.embed.weight": weight,
        "model.head.weight": weight,
        "model.head.bias": torch.arange(3.0),
        "steps": torch.tensor(7),
    }
    moments = {0: {"step": torch.tensor(7.0), "exp_avg": weight / 2, "exp_avg_sq": weight**2}}
    found = {
        "epoch": 1,
        "global_step": 7,
        "pytorch-lightning_version": "2.6.0",
        "state_dict": state,
        "loops": {"fit_loop": {"epoch_progress": {"current": {"ready": 2}}}},
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "hub": {"api_key": "hf_1234"}, "note": "a\x1b[2Jb"},
        "lightlib": {
            "format": 2,
            "torch": "2.13.0",
            "world_size": 2,
            "progress": {"epoch": 1, "epoch_batch": 4, "batch": 14, "step": 7, "validated": 10},
            "label": LABEL.as_dict(),
            "setting": {"strategy": "ddp(2)", "precision": "32-true"},
        },
    }
    if weights_only:
        found["lightlib"]["label"]["weights_only"] = True
    else:
        found["optimizer_states"] = [{"state": moments, "param_groups": [{"lr": 0.1, "params": [0]}]}]
        found["lr_schedulers"] = [{"last_epoch": 1}]
        found["callbacks"] = {"EarlyStopping{'monitor': 'v', 'mode': 'min'}": {"wait_count": 1}}
    return {**found, **more}


def write(folder: Path, kind: str, **arguments):
    """Write one of each kind, and return its path as text."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        archive.save(content(**arguments), path := str(folder / "last.ckpt"), LABEL)
    elif kind == "directory":
        reader.save(content(**arguments), path := str(folder / "last-directory"), LABEL, alone=True)
    elif kind == "torch":  # as any program writes it
        found = content(**arguments)
        del found["lightlib"]
        torch.save(found, path := str(folder / "torch.ckpt"))
    elif kind == "old":  # as torch wrote it before 1.6
        found = content(**arguments)
        found["lightlib"]["format"] = 1
        torch.save(found, path := str(folder / "old.ckpt"), _use_new_zipfile_serialization=False)
    else:
        raise AssertionError(kind)
    return path


def same(one, other) -> bool:
    """Whether two contents are equal, tensors bit by bit."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return (
            isinstance(one, torch.Tensor)
            and isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.equal(other)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Canary:
    """The object in a malicious file: reading it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def malicious(folder: Path) -> tuple[str, Path]:
    """Return a file that runs code when it is read as a pickle, and the file that the code would make."""
    canary = folder / "canary"
    path = folder / "malicious.ckpt"
    torch.save({"state_dict": {}, "hyper_parameters": {"a": Canary(canary)}}, path)
    return str(path), canary
