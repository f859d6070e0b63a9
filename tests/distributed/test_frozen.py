"""Parameters that are frozen or unfrozen while several processes train: the numbers of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from tests.distributed.user import BATCH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes

EPOCHS, CHANGED = 3, 1
QUIET = quiet.QUIET | {"num_sanity_val_steps": 0, "limit_val_batches": 0}


def change(module: Net) -> None:
    """Freeze the last layer, and train the first."""
    module.model[-1].requires_grad_(False)
    module.model[0].requires_grad_(True)


class Changes(L.Callback):
    """Freezes and unfreezes layers at the start of an epoch, and may save in that epoch."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == CHANGED:
            change(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.path is not None and (trainer.current_epoch, batch_idx) == (CHANGED, 2):
            trainer.save_checkpoint(self.path)


def train(strategy: str, size: int, path: Path | None = None, before: Path | None = None) -> dict[str, torch.Tensor]:
    module = built()
    module.model[0].requires_grad_(False)
    trainer = L.Trainer(**QUIET, strategy=strategy, max_epochs=EPOCHS, callbacks=Changes(path))
    trainer.fit(module, DataLoader(data(48), BATCH // size if size < 3 else 2), ckpt_path=before)
    return {name: value.detach().clone() for name, value in trainer.strategy.module_state().items()}


def trained(rank: int, strategy: str) -> dict[str, torch.Tensor]:
    return train(strategy, 2)


def resumed(rank: int, path: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the weights of a run, and of one that resumes it after the change."""
    return train("ddp", 3, path), train("ddp", 3, before=path)


def plain() -> dict[str, torch.Tensor]:
    module = built()
    module.model[0].requires_grad_(False)
    optimizer = module.configure_optimizers()
    for epoch in range(EPOCHS):
        if epoch == CHANGED:
            change(module)
        for x, y in DataLoader(data(48), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module.model(x), y).backward()
            optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize("strategy", ["ddp", "ddp_find_unused_parameters_true", "fsdp"])
def test_the_weights_are_those_of_one_device(strategy: str):
    wanted = plain()
    for rank, found in enumerate(ranks(2, trained, strategy)):
        for name in wanted if rank == 0 or strategy != "fsdp" else ():
            torch.testing.assert_close(
                found[name], wanted[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}:{m}"
            )


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path):
    for whole, found in ranks(3, resumed, tmp_path / "a.ckpt"):
        assert list(found) == list(whole)
        assert all(torch.equal(value, whole[name]) for name, value in found.items())


class Unused(Net):
    """Leaves its last layer out of the loss from the second batch on."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) if batch_idx < 1 else self.model[0](batch[0]).sum()


def without_gradients(rank: int) -> str:
    torch.manual_seed(0)
    trainer = L.Trainer(**QUIET, strategy="ddp", max_epochs=1)
    with pytest.raises(L.errors.LightlibError) as caught:  # the rank that fails second reports the error of the first
        trainer.fit(Unused(), DataLoader(data(48), 4))
    return str(caught.value)


def test_parameters_without_a_gradient_are_named():
    for message in ranks(2, without_gradients):
        unused = [name for name, _ in Unused().named_parameters() if not name.startswith("model.0.")]
        shown = ", ".join(map(repr, unused[:10]))
        assert f"gave these parameters of Unused no gradient: {shown} and {len(unused) - 10} more." in message
        assert "Fix: Trainer(strategy='ddp_find_unused_parameters_true')" in message
