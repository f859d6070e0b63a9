"""Entries that `save_checkpoint(…, extra=…)` adds."""

from __future__ import annotations

import pytest
import torch

import lightlib as L
from lightlib.checkpoint import load
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.runs.bad_input import Net, loader, with_methods
from tests.runs.plain import QUIET

EXTRA = {"vocabulary": ["a", "b"], "centers": torch.arange(3.0), "nested": {"n": 1}}


class Saves(L.Callback):
    """Saves within a hook, where the save waits, and changes the values afterwards."""

    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 1:
            centers, extra = torch.arange(3.0), {}
            extra |= {**EXTRA, "centers": centers}
            trainer.save_checkpoint(self.path, extra=extra)
            centers += 10
            extra.clear()


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_after_and_within_a_fit(tmp_path, kind):
    def on_load_checkpoint(self, checkpoint):
        self.found = checkpoint["vocabulary"]

    module = with_methods(Net, on_load_checkpoint)
    trainer = L.Trainer(**QUIET, max_steps=2, callbacks=Saves(tmp_path / "within.ckpt"))
    trainer.fit(module, loader())
    trainer.save_checkpoint(tmp_path / "after.ckpt", weights_only=True, format=kind, extra=EXTRA)
    for name in ("within", "after"):
        content = load(tmp_path / f"{name}.ckpt")
        assert content["vocabulary"] == ["a", "b"]
        assert content["nested"] == {"n": 1}
        assert torch.equal(content["centers"], torch.arange(3.0))
    trainer = L.Trainer(**QUIET, max_steps=3)
    trainer.fit(module, loader(), ckpt_path=tmp_path / "within.ckpt")
    assert module.found == ["a", "b"]
    assert trainer.global_step == 3


@pytest.mark.parametrize(
    ("extra", "kind", "what"),
    [
        (3, ArgumentTypeError, r"extra=3 \(int\)"),
        ({3: "a"}, ArgumentTypeError, "a dict of names"),
        ({"a": object()}, ArgumentTypeError, r"no plain value at \['a'\] \(object\)"),
        ({"state_dict": {}}, MisconfigurationException, "has an entry 'state_dict' already"),
        ({"optimizer_states": []}, MisconfigurationException, "has an entry 'optimizer_states' already"),
        ({"lightlib": {}}, MisconfigurationException, "has an entry 'lightlib' already"),
        ({"by_the_hook": 1}, MisconfigurationException, "has an entry 'by_the_hook' already"),
    ],
)
def test_refused(tmp_path, extra, kind, what):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["by_the_hook"] = 2

    trainer = L.Trainer(**QUIET, max_steps=1)
    trainer.fit(with_methods(Net, on_save_checkpoint), loader())
    with pytest.raises(kind, match=what):
        trainer.save_checkpoint(tmp_path / "a.ckpt", extra=extra)
    assert not (tmp_path / "a.ckpt").exists()
