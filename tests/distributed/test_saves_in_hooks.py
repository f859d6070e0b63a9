"""`trainer.save_checkpoint` in a hook on two ranks: written on return, and resumed exactly."""

from __future__ import annotations

import os
import random
import re
import warnings
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from tests.processes.ranks import ranks
from tests.runs.modules import Holds, Seen
from tests.runs.plain import Net, Rows, samples, scheduled
from tests.runs.quiet import QUIET
from tests.runs.resumable import Everything, Noisy, trainer_for

pytestmark = pytest.mark.processes

# hook, the call that saves, batches per step; epochs have four batches, and a validation after the third
CASES = {
    "before a batch": ("on_train_batch_start", 7, 1),
    "before a batch in a window": ("on_train_batch_start", 8, 2),
    "after a step": ("on_train_batch_end", 7, 1),
    "in a window": ("on_train_batch_end", 7, 2),
    "after an epoch": ("on_train_epoch_end", 1, 1),
    "after an epoch of windows": ("on_train_epoch_end", 1, 2),
    "after a validation": ("on_validation_end", 1, 1),
    "after a validation in a window": ("on_validation_end", 1, 2),
}
IN_A_WINDOW = {name for name in CASES if name.endswith("in a window")}
LOST = r"do not hold\n +the gradients of the accumulation window: FSDPStrategy keeps them outside of the parameters"
FORMATS = ("file", "directory")


class After(L.Callback):
    """Counts the calls that follow those of the callback that saves."""

    def __init__(self) -> None:
        self.calls = {hook: 0 for hook, _, _ in CASES.values()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.calls)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.calls = dict(state_dict)

    def on_train_batch_start(self, *args: Any) -> None:
        self.calls["on_train_batch_start"] += 1

    def on_train_batch_end(self, *args: Any) -> None:
        self.calls["on_train_batch_end"] += 1

    def on_train_epoch_end(self, *args: Any) -> None:
        self.calls["on_train_epoch_end"] += 1

    def on_validation_end(self, *args: Any) -> None:
        self.calls["on_validation_end"] += 1


def saves_in(hook: str, call: int, paths: list[str]) -> Any:
    """Return a callback that saves when `hook` is called for the `call`-th time, and looks for the files at once."""

    def save(self: Any, trainer: Any, module: Any, *args: Any) -> None:
        self.calls += 1
        if self.calls == call:
            for path in paths:
                trainer.save_checkpoint(path, format=Path(path).suffix[1:])
                self.there.append(os.path.exists(path))
            self.rows = len(trainer.logger.rows)

    values = {"calls": 0, "rows": 0, "there": [], "not_in_checkpoint": ("calls", "rows", "there")}
    return type("Saves", (L.Callback,), {hook: save, **values})()


def trained(strategy: str, accumulate: int, saves: Any = None, path: str | None = None) -> dict[str, Any]:
    """Train on this rank and its peer; return all that a resumed run must have in common with the complete one."""
    seed = 11 if path is None else 5
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    module, after = Everything(), After()
    callbacks = [after] if saves is None else [saves, after]
    trainer = trainer_for(
        *callbacks, strategy=strategy, num_sanity_val_steps=0, accumulate_grad_batches=accumulate, max_epochs=2
    )
    loaders = DataLoader(Noisy(28), 4, shuffle=True), DataLoader(Noisy(10), 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, *loaders, ckpt_path=path)
    values = [*module.parameters(), *module.buffers()]
    return {
        "weights": [getattr(value, "_local_tensor", value).detach().clone() for value in values],
        "calls": after.calls,
        "progress": trainer.progress.state_dict(),
        "rows": trainer.logger.rows[saves.rows if saves is not None else 0 :],
        "warnings": [str(warning.message) for warning in caught if "checkpoint" in str(warning.message)],
    }


def saved_and_resumed(rank: int, folder: Path, strategy: str) -> dict[str, Any]:
    found = {}
    for case, (hook, call, accumulate) in CASES.items():
        paths = [str(folder / f"{case}.{kind}") for kind in FORMATS]
        saves = saves_in(hook, call, paths)
        complete = trained(strategy, accumulate, saves)
        found[case] = saves.there, complete, [trained(strategy, accumulate, path=path) for path in paths]
    return found


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_resumed_run_ends_as_the_one_that_continued(tmp_path: Path, strategy: str):
    """The data draw random numbers in the main process.

    Under FSDP a window has gradients that no checkpoint holds: the save warns, and the rest is exact.
    """
    for rank, found in enumerate(ranks(2, saved_and_resumed, tmp_path, strategy)):
        assert list(found) == list(CASES)
        for case, (there, complete, resumed) in found.items():
            assert there == [True, True], (rank, case)
            lost = strategy == "fsdp" and case in IN_A_WINDOW
            assert [bool(re.search(LOST, text)) for text in complete["warnings"]] == [True] * (lost and rank == 0)
            for kind, again in zip(FORMATS, resumed, strict=True):
                for name in ("calls", "progress") if lost else ("calls", "progress", "rows"):
                    assert again[name] == complete[name], (rank, case, kind)
                exact = all(map(torch.equal, again["weights"], complete["weights"]))
                assert exact != lost, (rank, case, kind)


def numbers_seen(rank: int, path: Path, size: int) -> list[list[int]]:
    """Save before the fourth batch of two ranks; resume on one."""
    module, saves = Seen(), [saves_in("on_train_batch_start", 4, [f"{path}.file"])] if size > 1 else []
    strategy = {"strategy": "ddp"} if size > 1 else {"devices": 1}
    trainer = L.Trainer(**QUIET | {"logger": Rows()}, **strategy, max_epochs=1, callbacks=saves)
    trainer.fit(module, DataLoader(range(32), 4 // size), ckpt_path=None if saves else f"{path}.file")
    return module.seen


def test_another_number_of_ranks_reads_the_batch_again(tmp_path: Path):
    """The first three batches of each rank are done, twelve samples in all."""
    ranks(2, numbers_seen, tmp_path / "a", 2)
    with pytest.warns(UserWarning, match="written by 2 processes and is resumed by 1"):
        resumed = numbers_seen(0, tmp_path / "a", 1)
    assert resumed == [list(range(first, first + 4)) for first in range(12, 32, 4)]


def embedded() -> L.Module:
    """An embedding with sparse gradients, of which each batch uses some rows, next to a layer with dense ones."""
    torch.manual_seed(1)
    return Holds(
        lambda self, batch: cross_entropy(self.head(self.embedding(batch[0])), batch[1]),
        embedding=nn.Embedding(12, 4, sparse=True),
        head=nn.Linear(4, 2),
    )


def indices() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randint(12, (32,), generator=generator), torch.randint(2, (32,), generator=generator))


def sparse(path: Path, strategy: str, kind: str | None = None) -> list[torch.Tensor]:
    """Train on windows of two batches and save within the second one, or resume from there."""
    saves = [] if kind else [saves_in("on_train_batch_end", 3, [f"{path}.{each}" for each in FORMATS])]
    trainer = L.Trainer(
        **QUIET | {"logger": Rows()}, strategy=strategy, max_epochs=1, accumulate_grad_batches=2, callbacks=saves
    )
    module = embedded()
    trainer.fit(module, DataLoader(indices(), 4), ckpt_path=f"{path}.{kind}" if kind else None)
    return [p.detach().clone() for p in module.parameters()]


def sparse_in_each_way(rank: int, path: Path, strategy: str) -> list[list[torch.Tensor]]:
    return [sparse(path, strategy), *(sparse(path, strategy, kind) for kind in FORMATS)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_sparse_gradients_of_a_window_are_resumed(tmp_path: Path, world_size: int):
    alone = embedded()
    optimizer = alone.configure_optimizers()
    for window in DataLoader(indices(), 8 * world_size):
        optimizer.zero_grad()
        alone.training_step(window, 0).backward()
        optimizer.step()
    for complete, *resumed in ranks(
        world_size, sparse_in_each_way, tmp_path / "a", "ddp" if world_size > 1 else "auto"
    ):
        for value, wanted in zip(complete, alone.parameters(), strict=True):
            torch.testing.assert_close(value, wanted.detach(), rtol=1e-5, atol=1e-6)
        for again in resumed:
            assert all(map(torch.equal, again, complete))


class Strange:
    """An object that no file gives back."""


class Past(torch.optim.lr_scheduler.LRScheduler):
    """A schedule that keeps its last values in a deque, and maybe an object."""

    def __init__(self, optimizer: torch.optim.Optimizer, strange: bool) -> None:
        self.past = deque([1.0], maxlen=3)
        if strange:
            self.mine = Strange()
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        self.past.append(self.past[-1] * 0.7)
        return [base * sum(self.past) / len(self.past) for base in self.base_lrs]


def fitted(strategy: str, strange: bool = False, callbacks: Any = (), path: Path | None = None) -> Any:
    arguments = QUIET | {"logger": Rows(), "callbacks": list(callbacks), "max_epochs": 2}
    trainer = L.Trainer(**arguments, strategy=strategy)
    module = Net(scheduled(partial(Past, strange=strange), lr=0.2, interval="step"))
    trainer.fit(module, DataLoader(TensorDataset(*samples(24)), 4), ckpt_path=path)
    weights = [getattr(p, "_local_tensor", p).detach().clone() for p in module.parameters()]
    return weights, trainer.lr_scheduler_configs[0].scheduler.past


def schedules_of_two(rank: int, folder: Path, strategy: str) -> Any:
    """Save a deque and resume from it; then save an object that no file gives back."""
    errors = []
    paths = [str(folder / f"deque.{kind}") for kind in FORMATS]
    complete = fitted(strategy, callbacks=[saves_in("on_train_batch_end", 4, paths)])
    resumed = [fitted(strategy, path=path) for path in paths]
    for kind in FORMATS:
        saves = saves_in("on_train_batch_end", 2, [str(folder / f"object.{kind}")])
        try:
            fitted(strategy, strange=True, callbacks=[saves])
        except Exception as error:  # noqa: BLE001  rank zero's own error, or what it sent
            errors.append(str(error))
        torch.distributed.barrier()  # no rank is left behind
    return complete, resumed, errors, sorted(os.listdir(folder))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_state_that_cannot_be_resumed_is_an_error_of_the_save_on_all_ranks(tmp_path: Path, strategy: str):
    for complete, resumed, errors, files in ranks(2, schedules_of_two, tmp_path, strategy):
        for weights, past in resumed:
            assert past == complete[1]
            assert (type(past), past.maxlen) == (deque, 3)
            assert all(map(torch.equal, weights, complete[0]))
        assert len(errors) == 2
        for text in errors:
            assert re.search(r"no plain value at .*lr_schedulers.*\(Strange\): no run could be resumed", text), text
        assert [name for name in files if "object" in name] == []
