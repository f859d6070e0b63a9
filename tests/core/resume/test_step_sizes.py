"""A run resumed by another number of processes keeps its global batch size, or is refused."""

# ruff: noqa: RUF001  a multiplication sign is meant

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.strategies import MeshStrategy
from tests.processes.ranks import ranks
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes


BATCHES: list[int] = []  # since the last step of this rank, which is a process of its own
STEPS: list[int] = []  # no attribute of an object, which would be resumed


class Steps(L.Callback):
    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        BATCHES.append(len(batch[0]))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        STEPS.append(sum(BATCHES) * trainer.world_size)
        BATCHES.clear()


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        worker = get_worker_info()
        for i in range(worker.id if worker else 0, 96, worker.num_workers if worker else 1):
            yield torch.tensor([float(i)]), torch.zeros(1)


def loader_of(kind: str, batch: int) -> DataLoader[Any]:
    if kind == "stream":
        return DataLoader(Stream(), batch, num_workers=2)
    return DataLoader(TensorDataset(torch.ones(96, 1), torch.zeros(96, 1)), batch, drop_last=kind == "dropping")


def fitted(rank: int, path: str, batch: int, steps: int, kind: str, options: dict[str, Any], how: Any) -> Any:
    """Return the error or None, the samples of each optimizer step, and the warning of another run."""
    last = Path(path) / "last.ckpt"
    module, saves = Regression(), ModelCheckpoint(path, save_last=True, every_n_train_steps=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = L.Trainer(
            **{**QUIET, "enable_checkpointing": True},
            max_epochs=2,
            max_steps=steps,
            callbacks=[saves, Steps()],
            **options,
        )
        try:
            ckpt_path = str(last) if last.exists() else None
            trainer.fit(module, loader_of(kind, batch), ckpt_path=ckpt_path, resume=how)
        except Exception as error:  # noqa: BLE001  that of another rank is one, too
            return str(error), STEPS, ""
    return None, STEPS, "".join(str(one.message) for one in caught if "is not the one" in str(one.message))


def run(size: int, folder: Path, batch: int, steps: int, kind: str = "data", how: Any = None, **options: Any) -> Any:
    given = {"devices": size, "strategy": "ddp" if size > 1 else "auto", **options}
    first, *rest = ranks(size, fitted, str(folder), batch, steps, kind, given, how)
    assert all(one[:2] == first[:2] for one in rest if not first[0])
    assert all(bool(one[0]) == bool(first[0]) for one in rest)
    return first


def test_the_global_batch_size_is_kept_or_the_run_is_refused(tmp_path: Path) -> None:
    assert run(3, tmp_path, 4, 2, global_batch_size=12) == (None, [12] * 2, "")
    assert run(1, tmp_path, 4, 6, global_batch_size=12) == (None, [12] * 4, "")
    error, samples, _ = run(2, tmp_path, 4, 8, global_batch_size=12)
    assert "12 (1 process × 4 × 3 accumulated) samples, and those of this run 16 (2 processes × 4 × 2" in error
    assert "12 samples: with batch_size=4 on 1, 3, 4 processes; on 2 processes with batch_size=1, 2, 3, 6." in error
    assert "DataLoader(dataset, batch_size=3)" in error
    assert samples == []  # before training
    assert run(2, tmp_path, 3, 8, global_batch_size=12) == (None, [12] * 2, "")


def test_a_batch_that_no_size_reaches(tmp_path: Path) -> None:
    assert run(1, tmp_path, 5, 2, global_batch_size=5)[:2] == (None, [5] * 2)
    error, samples, _ = run(2, tmp_path, 5, 4, global_batch_size=5)
    assert "5 samples: with batch_size=5 on 1 processes; on 2 processes never, because 5 is no multiple." in error
    assert "Trainer(global_batch_size=5); fit(…, resume={'changes': 'ignore'})" in error
    assert samples == []
    assert run(2, tmp_path, 5, 4, global_batch_size=5, how={"changes": "ignore"}) == (None, [4] * 2, "")
    error, samples, said = run(2, tmp_path, 5, 6, global_batch_size=4)
    assert (error, samples) == (None, [4] * 2)  # as many processes: it is the user's choice
    assert said == ""


def test_without_a_global_batch_size_both_are_in_one_warning(tmp_path: Path) -> None:
    assert run(1, tmp_path, 4, 2)[:2] == (None, [4] * 2)
    error, samples, said = run(2, tmp_path, 4, 4, accumulate_grad_batches=2)
    assert (error, samples) == (None, [8, 16])  # the checkpoint is within a window
    assert (
        "\n    samples per optimizer step: 4 (1 process × 4 × 1 accumulated) then, 16 (2 processes × 4 × 2 "
        "accumulated) now; Trainer(global_batch_size=4) keeps them\n  Training continues."
    ) in said
    assert "accumulate_grad_batches" not in said
    assert run(1, tmp_path, 4, 6, accumulate_grad_batches=4) == (None, [16] * 2, "")


def test_epochs_of_another_number_of_steps(tmp_path: Path) -> None:
    assert run(3, tmp_path, 5, 2, "dropping")[:2] == (None, [15] * 2)
    _, samples, said = run(1, tmp_path, 5, 4, "dropping", accumulate_grad_batches=3)
    assert samples == [15] * 2
    assert "\n    optimizer steps per epoch: 6 then, 7 now\n" in said


def test_workers_that_share_out_a_stream(tmp_path: Path) -> None:
    assert run(2, tmp_path, 3, 2, "stream", global_batch_size=6)[:2] == (None, [6] * 2)
    error, samples, said = run(1, tmp_path, 6, 4, "stream", global_batch_size=6)
    assert (error, samples) == (None, [6] * 2)
    assert "\n    batches of 2 workers, which share out a stream: 3 then, 6 now\n" in said


def error_of(rank: int, kind: str) -> str:
    """Return the error of a run of 3 processes."""
    strategy: Any = MeshStrategy(replicate=-1, shard=2) if kind == "mesh" else "hsdp"
    try:
        L.Trainer(**QUIET, strategy=strategy, max_epochs=1).fit(Regression(), loader_of("data", 4))
    except Exception as error:  # noqa: BLE001  what is tested
        return str(error)
    return ""


@pytest.mark.parametrize(("kind", "sizes"), [("mesh", "replicate=-1 x shard=2"), ("hsdp", "replicate=2 x shard=-1")])
def test_a_mesh_that_does_not_divide_is_refused_with_numbers(kind: str, sizes: str) -> None:
    for error in ranks(3, error_of, kind):
        assert f"The sizes {sizes} do not divide the 3 processes" in error
