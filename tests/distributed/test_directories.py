"""Checkpoint directories in a run: each process writes and reads its shard, also in the background."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint.directory import reader
from lightlib.checkpoint.directory.tensors import LazyTensor, Shards, read_tensors
from lightlib.strategies import FSDPStrategy
from tests.distributed.test_state import QUIET, OneGroup, Saved, Wider
from tests.distributed.user import BATCH, data
from tests.processes.ranks import ranks
from tests.runs.plain import with_methods

pytestmark = pytest.mark.processes


class Averages(L.Callback):
    """Keeps weights of each step, and an average as a part of the checkpoint."""

    not_in_checkpoint = ("weights", "average")

    def __init__(self) -> None:
        self.weights: dict[int, Any] = {}
        self.average: Any = None

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        state = trainer.strategy.module_state()
        self.weights[trainer.global_step] = {name: value.clone() for name, value in state.items()}
        self.average = module.model[0].weight.detach() * 2

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["average"] = self.average

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self.average = checkpoint["average"]


def trainer(steps: int, *callbacks: Any, **options: Any) -> L.Trainer:
    torch.manual_seed(3)
    strategy = FSDPStrategy(state_dict_type="sharded")
    return L.Trainer(**QUIET | options, strategy=strategy, max_steps=steps, callbacks=list(callbacks))


def in_the_background(rank: int, folder: str) -> Any:
    """Train and save every second step in the background; then resume from the last checkpoint."""
    average, loader = Averages(), DataLoader(data(), BATCH // 2, shuffle=True)
    saves = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=2, async_save=True)
    trainer(6, average, saves, enable_checkpointing=True).fit(Saved(), loader)
    one = trainer(9)
    one.fit(Saved(), loader)
    other, resumed = Averages(), trainer(9)
    resumed.callbacks.append(other)
    lengths: list[int] = []
    read = Shards.read
    Shards.read = lambda *args: lengths.append(len((found := read(*args))[0])) or found
    resumed.fit(Saved(), loader, ckpt_path=f"{folder}/step=6.ckpt")
    Shards.read = read
    ends = [run.strategy.module_state() for run in (one, resumed)]
    return average.weights, ends, sum(lengths), other.average is not None


@pytest.mark.filterwarnings("ignore")
def test_parts_are_written_while_training_goes_on(tmp_path: Path):
    results = ranks(2, in_the_background, str(tmp_path))
    weights, (one, resumed), _, averaged = results[0]
    assert averaged
    assert sorted(os.listdir(tmp_path)) == ["step=2.ckpt", "step=4.ckpt", "step=6.ckpt"]
    for step in (2, 4, 6):
        path = tmp_path / f"step={step}.ckpt"
        assert reader.verify(path) > 10
        found = read_tensors(reader.load(path))
        assert list(found["state_dict"]) == list(weights[step])
        assert found["state_dict"].pop("seen") == weights[step].pop("seen") + 1  # the module's hook comes later
        for name, value in weights[step].items():
            assert torch.equal(found["state_dict"][name], value)
        assert torch.equal(found["average"], 2 * weights[step]["model.0.weight"])
        assert found["global_step"] == step
    for name, value in one.items():
        assert torch.equal(resumed[name], value)
    size = sum(os.path.getsize(path) for path in (tmp_path / "step=6.ckpt").glob("shard-*"))
    assert all(lengths < 0.75 * size for _, _, lengths, _ in results)  # the rest is needed by all ranks


def other_modules(rank: int, path: str) -> list[str]:
    texts = []
    for kind in (OneGroup, Wider):
        try:
            trainer(9).fit(kind(), DataLoader(data(), BATCH // 2), ckpt_path=path)
        except Exception as error:  # noqa: BLE001  its own error, or another rank's
            texts.append(str(error))
    return texts


@pytest.mark.filterwarnings("ignore")
def test_one_device_and_a_directory(tmp_path: Path):
    path = tmp_path / "one.ckpt"
    torch.manual_seed(3)
    loader = DataLoader(data(), BATCH, shuffle=True)
    first = L.Trainer(**QUIET, devices=1, max_steps=5)
    first.fit(Saved(), loader)
    first.save_checkpoint(path, format="directory")
    trained = first.lightning_module.state_dict()
    loaded = Saved.load_from_checkpoint(path)
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, trained[name])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        assert all(isinstance(value, LazyTensor) for value in state.values())
        state["model.0.weight"] = state["model.0.weight"] * 2
        state["model.0.bias"] = state.pop("model.0.bias")

    doubled = with_methods(Saved, on_load_checkpoint)
    second = L.Trainer(**QUIET, devices=1, max_steps=5)
    second.fit(doubled, loader, ckpt_path=path)
    assert torch.equal(doubled.model[0].weight, 2 * trained["model.0.weight"])
    assert torch.equal(doubled.model[0].bias, trained["model.0.bias"])
    for groups, weights in ranks(2, other_modules, str(path)):
        assert "groups" in groups or "schedulers" in groups
        assert "model.7.weight" in weights
