"""Tensors that callbacks keep by parameter, over processes: their values, and their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint import load
from lightlib.checkpoint.directory.tensors import Shards
from lightlib.errors import MisconfigurationException
from tests.callbacks.moving_average import Average, plain_average, same
from tests.distributed.test_state import QUIET, SavesAt
from tests.distributed.user import BATCH, Net, built, data
from tests.processes import programs
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes

STEPS, SAVED = 7, 4  # of an epoch, and before the checkpoint
SIZES = {"auto": 1, "ddp": 2, "fsdp": 2, "tensor": 1, "pipeline": 1}  # processes that read different data
Tensors = dict[str, dict[str, torch.Tensor]]


def full(trainer: L.Trainer, callback: Average) -> Tensors:
    """Return the callback's tensors in full, on rank 0."""
    gather = trainer.strategy.parameter_tensors
    return {"average": gather(callback.average), "squares": gather(callback.squares)}


def leg(
    rank: int, strategy: str, after: Path | None, kind: str = "file", before: Path | None = None, shuffle: bool = False
) -> Any:
    """Train to the end of the epoch or to a checkpoint; return the full callback tensors and weights."""
    callback, module = Average(), built()
    callbacks = [callback] if after is None else [callback, SavesAt(SAVED, after, kind)]
    alone = {"devices": 1} if strategy == "auto" else {}
    trainer = L.Trainer(**QUIET, strategy=strategy, max_epochs=1, callbacks=callbacks, **alone)
    resume = None if before is None else {"stop": False, "changes": "ignore"}
    loader = DataLoader(data(), BATCH // SIZES[strategy], shuffle=shuffle)
    lengths: list[int] = []
    read = Shards.read
    Shards.read = lambda *args: lengths.append(len((found := read(*args))[0])) or found
    trainer.fit(module, loader, ckpt_path=before, resume=resume)
    Shards.read = read
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    held = {
        "names": list(callback.average),
        "sharded": any(isinstance(one, DTensor) for one in callback.average.values()),
    }
    return full(trainer, callback), weights, {**held, "steps": callback.steps, "read": sum(lengths)}


def interrupted(rank: int, strategy: str, folder: Path, kind: str) -> Any:
    """Return the results of an uninterrupted run, and of one that resumes in the middle of the epoch."""
    path = folder / f"{strategy}.ckpt"
    uninterrupted = leg(rank, strategy, None, shuffle=True)
    leg(rank, strategy, path, kind, shuffle=True)
    return uninterrupted, leg(rank, strategy, None, before=path, shuffle=True)


def plain(steps: int = STEPS) -> Tensors:
    """Return the tensors of a plain loop on one device."""
    module = built()
    average, squares = plain_average(module, module.model, list(DataLoader(data(), BATCH))[:steps])
    return {"average": average, "squares": squares}


def assert_close(found: Tensors, wanted: Tensors) -> None:
    for kind in ("average", "squares"):
        assert list(found[kind]) == list(wanted[kind])
        for name, value in wanted[kind].items():
            torch.testing.assert_close(
                found[kind][name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("fsdp", "file"),
        ("fsdp", "directory"),
        ("ddp", "file"),
        ("pipeline", "file"),
        ("pipeline", "directory"),
        ("tensor", "directory"),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(strategy: str, kind: str, tmp_path: Path):
    results = ranks(2, interrupted, strategy, tmp_path, kind)
    (tensors, weights, held), (found, found_weights, _) = results[0]
    assert same(found_weights, weights)
    for name in ("average", "squares"):
        assert same(found[name], tensors[name])
    for (_, _, own), (_, _, own_found) in results:
        assert own["names"] == own_found["names"]
        assert own["sharded"] == own_found["sharded"] == (strategy in ("fsdp", "tensor"))
        assert own_found["steps"] == STEPS
    everything = [name for name, _ in Net().named_parameters()]
    if strategy == "pipeline":
        assert [*held["names"], *results[1][0][2]["names"]] == everything
    else:
        assert held["names"] == everything
    saved = load(tmp_path / f"{strategy}.ckpt")["lightlib"]["callback_tensors"]["Average"]
    assert list(saved["average"]) == everything
    if kind == "directory":
        size = sum(path.stat().st_size for path in (tmp_path / f"{strategy}.ckpt").glob("shard-*"))
        assert all(0 < found_held["read"] < 0.75 * size for _, (_, _, found_held) in results)


@pytest.mark.filterwarnings("ignore:The checkpoint was written by")
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_saved_by_one_layout_and_resumed_by_another(kind: str, tmp_path: Path):
    one, two = tmp_path / "one.ckpt", tmp_path / "two.ckpt"
    wanted, halfway = plain(), plain(SAVED)
    at_save = plain(SAVED - 1)  # the save is in on_train_batch_end, before the average takes this batch in
    first = leg(0, "auto", one, kind)
    assert first[2]["steps"] == SAVED
    assert same(first[0]["average"], halfway["average"])
    ranks(2, leg, "fsdp", two, kind)
    for path in (one, two):
        saved = load(path)["lightlib"]["callback_tensors"]["Average"]
        assert_close({name: {k: saved[name][k] for k in at_save[name]} for name in at_save}, at_save)
    alone = leg(0, "auto", None, before=two)
    fsdp, pipeline = ranks(2, resumed, ["fsdp", "pipeline"], [one, two])[0]
    for found in (alone, fsdp, pipeline):
        assert found[2]["steps"] == STEPS
        assert_close(found[0], wanted)


def resumed(rank: int, strategies: list[str], paths: list[Path]) -> Any:
    """Resume under each strategy from each path."""
    return [leg(rank, strategy, None, before=path) for strategy, path in zip(strategies, paths, strict=True)]


def in_the_background(rank: int, strategy: str, folder: Path, kind: str) -> None:
    """Save every second step while training continues."""
    saves = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=2, async_save=True, format=kind)
    options = QUIET | {"enable_checkpointing": True}
    trainer = L.Trainer(**options, strategy=strategy, max_epochs=1, callbacks=[Average(), saves])
    trainer.fit(built(), DataLoader(data(), BATCH // SIZES[strategy]))


@pytest.mark.parametrize(("strategy", "kind"), [("fsdp", "directory"), ("pipeline", "file")])
def test_a_save_in_the_background_holds_the_tensors_of_its_step(strategy: str, kind: str, tmp_path: Path):
    ranks(2, in_the_background, strategy, tmp_path, kind)
    for step in (2, 4, 6):
        saved = load(tmp_path / f"step={step}.ckpt")["lightlib"]["callback_tensors"]["Average"]
        assert_close(saved, plain(step))


class Wrong(L.Callback):
    """Returns tensors of the wrong kind, on one rank or on all."""

    def __init__(self, how: str) -> None:
        self.how = how

    def sharded_state(self, trainer: Any, pl_module: Any) -> Any:
        parameters = dict(pl_module.named_parameters())
        name, parameter = next(iter(parameters.items()))
        if self.how == "full":
            return {"average": {name: parameter.detach().full_tensor()}}
        if self.how == "local":
            return {"average": {name: parameter.detach().to_local()}}
        if trainer.global_rank == 1:
            return {"average": {"nothing": parameter.detach()}}
        return {"average": {name: parameter.detach()}}


def refused(rank: int, strategies: dict[str, str]) -> list[str]:
    texts = []
    for how, strategy in strategies.items():
        trainer = L.Trainer(**QUIET, strategy=strategy, max_steps=1, callbacks=Wrong(how))
        trainer.fit(built(), DataLoader(data(), BATCH // 2))
        try:
            trainer.save_checkpoint("one.ckpt")
        except MisconfigurationException as error:
            texts.append(str(error))
    return texts


def test_what_does_not_fit_is_refused_on_all_ranks():
    for full_tensor, local, name in ranks(2, refused, {"full": "fsdp", "local": "fsdp", "name": "ddp"}):
        has = "the parameter has shape (16, 4) as a DTensor (S(0))."
        assert f"Wrong.sharded_state returned a tensor for 'model.0.weight' in 'average' with shape (16, 4); {has}" in (
            full_tensor
        )
        assert f"with shape (8, 4); {has}" in local
        assert "returned 'nothing' in 'average', which is no parameter of Net on this process." in name


FORKED = """
from torch.utils.data import DataLoader
import lightlib as L
from lightlib.strategies import MeshStrategy
from tests.callbacks.moving_average import Average
from tests.distributed.test_sharded_callback_state import assert_close, plain
from tests.distributed.test_state import QUIET
from tests.distributed.user import BATCH, built, data

callback, module = Average(), built()
strategy = MeshStrategy(shard=2, launcher="fork")
trainer = L.Trainer(**QUIET, devices=2, strategy=strategy, max_epochs=1, callbacks=callback)
trainer.fit(module, DataLoader(data(), BATCH // 2))
assert callback.loaded == 1
assert_close({"average": callback.average, "squares": callback.squares}, plain())
print("the starting process has the average")
"""


def test_forked_processes_send_the_full_tensors_back(tmp_path: Path):
    (tmp_path / "forked.py").write_text(FORKED)
    done = programs.run(tmp_path / "forked.py", cwd=tmp_path)
    assert "the starting process has the average" in done.stdout, done.stdout + done.stderr
