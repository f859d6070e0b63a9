"""sft.py, dpo.py and grpo.py: their results, several processes against one device, and exact resume."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib import checkpoint
from lightlib.callbacks import ModelCheckpoint
from lightlib.errors import LightlibError
from tests.distributed.runs import assert_same
from tests.examples.test_examples import EXAMPLES, number_after, run
from tests.processes import programs
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes
CPU = ("--accelerator", "cpu")


@pytest.fixture(scope="module")
def sft(tmp_path_factory):
    """The output of sft.py and its checkpoint."""
    folder = tmp_path_factory.mktemp("sft")
    done = programs.run(EXAMPLES / "sft.py", *CPU, env=programs.environment(), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder / "sft.ckpt"


def test_each_learns(sft):
    said, path = sft
    assert number_after("right answers", said) >= 0.9  # an untrained model has none
    assert 0.1 < number_after("upward", said) < 0.9  # both answers are learned
    said = run("dpo", "--sft", str(path), *CPU)
    assert number_after("accuracy", said) >= 0.9
    assert number_after("margin", said) >= 0.5  # it begins at 0
    before, after = number_after("upward answers", said), number_after("before,", said)
    assert after >= before + 0.2
    assert after >= 0.75
    said = run("grpo", "--sft", str(path), *CPU)
    before, after = number_after("reward", said), number_after("before,", said)
    assert before <= 0.8
    assert after >= 0.9
    for name in ("dpo", "grpo"):
        saved = checkpoint.load(f"{name}.ckpt")["state_dict"]
        assert saved
        assert not any("reference" in name for name in saved)


@pytest.mark.parametrize(("name", "strategy"), [("dpo", "fsdp"), ("grpo", "ddp")])
def test_they_run_with_two_processes(sft, name, strategy):
    said = run(name, "--sft", str(sft[1]), *CPU, "--strategy", strategy, "--devices", "2", starts=1)
    assert number_after("before,", said) >= 0.75


# against one device
def module_of(name, path):
    """An example's module with the weights of sft.py, and batches that divide evenly."""
    sys.path.insert(0, str(EXAMPLES))  # of this process, which is the test's
    example = importlib.import_module(name)
    words = importlib.import_module("sft").prompts()[:96]
    torch.manual_seed(0)
    if name == "sft":
        texts = torch.cat([words, example.answers(words, 1)], dim=1)
        return example.SFT(width=32, depth=2, heads=2), TensorDataset(texts, example.labels_of(texts))
    if name == "dpo":
        return example.DPO(path), example.pairs(words)
    return example.GRPO(path), words


def trained(rank, name, path, strategy, devices):
    """Train in 64 bits: Adam makes steps of the rounding of gradients that are zero, as those of keys' biases are."""
    module, data = module_of(name, path)
    size = 16 if strategy in ("tensor", "pipeline") else 16 // devices
    options = {"max_epochs": 1, "gradient_clip_val": 1.0, "precision": "64-true", "limit_val_batches": 0}
    trainer = L.Trainer(**QUIET, strategy=strategy, devices=devices, **options)
    trainer.fit(module, DataLoader(data, size, shuffle=True))
    return {"weights": trainer.strategy.module_state(), "metrics": {}, "norm": float(trainer.gradient_norm)}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [(name, strategy) for name in ("sft", "dpo") for strategy in ("ddp", "fsdp", "tensor", "pipeline")]
    + [("grpo", "tensor")],  # whose processes sample the same answers
)
def test_two_processes_compute_what_one_does(sft, name, strategy):
    (alone,) = ranks(1, trained, name, sft[1], "auto", 1)
    assert_same(alone, ranks(2, trained, name, sft[1], strategy, 2)[0], 1e-6)


def refused(rank, path):
    with pytest.raises(LightlibError) as caught:
        trained(rank, "grpo", path, "pipeline", 2)
    return str(caught.value)


def test_sampling_is_refused_in_a_pipeline(sft):
    for error in ranks(2, refused, sft[1]):
        assert "calls self.model twice" in error


# resume
def resumed(rank, path, folder, strategy, devices):
    """The weights after 10 steps, without a stop and from a checkpoint after 4, as new objects."""
    options = QUIET | {"strategy": strategy, "devices": devices, "enable_checkpointing": True}
    ends = []
    for start in (None, folder / "step=4.ckpt"):
        module, words = module_of("grpo", path)
        torch.manual_seed(1 if start is None else 2)
        saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=4, save_top_k=-1, save="trainable")
        trainer = L.Trainer(**options, max_steps=10, max_epochs=-1, callbacks=[saver])
        trainer.fit(module, DataLoader(words, 16 // devices, shuffle=True), ckpt_path=start)
        ends.append(trainer.strategy.module_state())
    return ends


@pytest.mark.parametrize(("strategy", "devices"), [("auto", 1), ("ddp", 2), ("fsdp", 2)])
def test_a_resumed_run_samples_the_same_answers(sft, tmp_path, strategy, devices):
    uninterrupted, again = ranks(devices, resumed, sft[1], tmp_path, strategy, devices)[0]
    assert uninterrupted.keys() == again.keys()
    assert all(value.equal(again[name]) for name, value in uninterrupted.items())


KILLED = f"""
import os, runpy, signal, sys
import lightlib

class Kills(lightlib.Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 20:  # in the second epoch
            os.kill(os.getpid(), signal.SIGKILL)

trainer = lightlib.Trainer
lightlib.Trainer = lambda callbacks, **arguments: trainer(callbacks=[callbacks, Kills()], **arguments)
sys.path.insert(0, {str(EXAMPLES)!r})
runpy.run_path({str(EXAMPLES / "grpo.py")!r}, run_name="__main__")
"""


def test_a_killed_program_ends_with_the_same_weights(sft):
    arguments = ("--sft", str(sft[1]), *CPU, "--max_epochs", "3")
    expected = run("grpo", *arguments).splitlines()[-1]
    weights = checkpoint.load("grpo.ckpt")["state_dict"]
    Path("grpo.ckpt").unlink()
    killed = programs.run("-c", KILLED, *arguments, env=programs.environment())
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert run("grpo", *arguments, "--resume").splitlines()[-1] == expected
    again = checkpoint.load("grpo.ckpt")["state_dict"]
    assert weights.keys() == again.keys()
    assert all(value.equal(again[name]) for name, value in weights.items())
