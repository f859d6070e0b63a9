"""Finetuning over processes: the numbers of a plain loop, and resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import BaseFinetuning
from tests.distributed.user import BATCH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.saves_at import SavesAt

pytestmark = pytest.mark.processes

SIZES = {"ddp": 2, "fsdp": 2, "tensor": 1, "pipeline": 1, "zero1": 2}  # processes that read different data
EPOCHS, AT = 3, 1


class TrainsHead(Net):
    """Has the parameters that are not frozen when the run begins in the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.load_state_dict(built().state_dict())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.8**epoch)]


class Blocks(BaseFinetuning):
    """Freezes layers of the model, and unfreezes them together."""

    def __init__(self, layers: list[int]) -> None:
        super().__init__()
        self.layers = layers

    def found(self, pl_module: Any) -> list[nn.Module]:
        """Return those of the layers that this process has."""
        return [part for name, part in pl_module.model.named_children() if int(name) in self.layers]

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(self.found(pl_module))

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == AT:
            self.unfreeze_and_add_param_group(self.found(pl_module), optimizer, optimizer.param_groups[0]["lr"] / 2)


def frozen(strategy: str) -> list[int]:
    """Return the layers that are frozen at first: in a pipeline each stage has to train something."""
    return [0, 4] if strategy == "pipeline" else [0, 1, 2, 3, 4]


def leg(strategy: str, saves: L.Callback | None = None, before: Path | None = None) -> Any:
    module, options = TrainsHead(), {**quiet.QUIET, "limit_val_batches": 0}
    callbacks = [Blocks(frozen(strategy)), *([saves] if saves else [])]
    trainer = L.Trainer(**options, strategy=strategy, max_epochs=EPOCHS, callbacks=callbacks)
    trainer.fit(module, DataLoader(data(), BATCH // SIZES[strategy]), ckpt_path=before)
    return {name: value.clone() for name, value in trainer.strategy.module_state().items()}


def one_leg(rank: int, strategy: str) -> Any:
    return leg(strategy)


def interrupted(rank: int, strategy: str, path: Path, kind: str, steps: list[int]) -> Any:
    """Return the weights of an uninterrupted run, and of those that resume after these steps."""
    found = []
    for step in steps:
        whole = leg(strategy, SavesAt(path / f"{step}.ckpt", step, format=kind))
        found.append((whole, leg(strategy, before=path / f"{step}.ckpt")))
    return found


def plain(strategy: str) -> dict[str, torch.Tensor]:
    module = TrainsHead()
    layers = nn.ModuleList(module.model[i] for i in frozen(strategy))
    layers.requires_grad_(False)
    (optimizer,), (schedule,) = module.configure_optimizers()
    for epoch in range(EPOCHS):
        if epoch == AT:
            layers.requires_grad_(True)
            optimizer.add_param_group({"params": list(layers.parameters())})
        optimizer.param_groups[-1]["lr"] = module.lr * 0.8**epoch / (2 if epoch >= AT else 1)
        for x, y in DataLoader(data(), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module.model(x), y).backward()
            optimizer.step()
        if epoch + 1 < AT:
            schedule.step()
        optimizer.param_groups[0]["lr"] = module.lr * 0.8 ** (epoch + 1)
    return {f"model.{name}": value for name, value in module.model.state_dict().items()}


@pytest.mark.parametrize("strategy", SIZES)
def test_the_weights_are_those_of_one_device(strategy: str):
    wanted, found = plain(strategy), ranks(2, one_leg, strategy)[0]
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("ddp", "file"),
        ("fsdp", "file"),
        ("fsdp", "directory"),
        ("pipeline", "directory"),
        ("tensor", "file"),
        ("zero1", "file"),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(strategy: str, kind: str, tmp_path: Path):
    for rank in ranks(2, interrupted, strategy, tmp_path, kind, [5, 7, 10]):
        for whole, found in rank:
            assert list(found) == list(whole)
            assert all(torch.equal(value, whole[name]) for name, value in found.items())


def saved(rank: int, path: Path) -> None:
    leg("pipeline", SavesAt(path, 10))


def test_one_device_resumes_a_pipeline(tmp_path: Path):
    """The flags of all stages are in the checkpoint; only random numbers and user state are those of a rank."""
    ranks(2, saved, tmp_path / "a.ckpt")
    module, options = TrainsHead(), {**quiet.QUIET, "limit_val_batches": 0}
    trainer = L.Trainer(**options, max_epochs=EPOCHS, callbacks=[Blocks(frozen("pipeline"))])
    with pytest.warns(UserWarning, match="written by 2 processes"):
        trainer.fit(module, DataLoader(data(), BATCH), ckpt_path=tmp_path / "a.ckpt")
    assert all(parameter.requires_grad for parameter in module.parameters())
    for name, value in plain("pipeline").items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-4, atol=1e-5)
