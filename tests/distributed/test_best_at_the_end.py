"""RestoreBest, PublishCheckpoint, keep_last and extras over processes: as on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import ModelCheckpoint, PublishCheckpoint, RestoreBest
from lightlib.checkpoint import load
from tests.distributed.user import BATCH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.plain import with_methods

pytestmark = pytest.mark.processes

SIZES = {"ddp": 2, "fsdp": 2, "pipeline": 1, "tensor": 1, "zero1": 2}  # processes that read different data
SCORES = (5.0, 1.0, 3.0)


def run(rank: int, strategy: str, folder: Path, kind: str) -> Any:
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.model(batch[0])
        self.log("score", SCORES[self.current_epoch])

    module = with_methods(Net, validation_step)
    module.load_state_dict(built().state_dict())
    options = {name: value for name, value in quiet.QUIET.items() if name != "enable_checkpointing"}
    best = ModelCheckpoint(folder, "best-{epoch}", monitor="score", format=kind)
    newest = ModelCheckpoint(folder, "newest-{epoch}", keep_last=2, format=kind)
    restores, publishes = RestoreBest(), PublishCheckpoint("net")
    trainer = L.Trainer(
        **options | {"num_sanity_val_steps": 0, "max_epochs": 3, "limit_val_batches": 1.0},
        strategy=strategy,
        callbacks=[best, newest, restores, publishes],
    )
    trainer.fit(module, DataLoader(data(), BATCH // SIZES[strategy]), DataLoader(data(8, 2), BATCH))
    trainer.save_checkpoint(folder / "extra.ckpt", format=kind, extra={"rank": trainer.global_rank + 7})
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    return weights, restores.restored_path, publishes.published_path


def plain() -> dict[str, torch.Tensor]:
    """Return the weights of a plain loop on one device after the best epoch."""
    module = built()
    optimizer = module.configure_optimizers()
    for _ in range(2):
        for x, y in DataLoader(data(), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module.model(x), y).backward()
            optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("ddp", "file"), ("fsdp", "file"), ("fsdp", "directory"), ("pipeline", "directory"), ("tensor", "file"),
     ("zero1", "file")],
)  # fmt: skip
def test_the_best_weights_are_those_of_the_file(strategy: str, kind: str, tmp_path: Path):
    results = ranks(2, run, strategy, tmp_path, kind)
    weights, restored, published = results[0]
    assert [result[1:] for result in results] == [(restored, published)] * 2
    assert restored == str(tmp_path / "best-epoch=1.ckpt")
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert names == {
        "best-epoch=1.ckpt", "newest-epoch=1.ckpt", "newest-epoch=2.ckpt", "extra.ckpt", Path(published).name
    }  # fmt: skip
    saved, released, expected = load(restored)["state_dict"], torch.load(published)["state_dict"], plain()
    assert list(weights) == list(saved)
    for name, value in weights.items():
        assert torch.equal(value, saved[name])
        assert torch.equal(value, released[name])
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    built().load_state_dict(released, strict=True)
    assert load(tmp_path / "extra.ckpt")["rank"] == 7
    assert torch.equal(load(tmp_path / "extra.ckpt")["state_dict"]["model.0.weight"], weights["model.0.weight"])
