"""Checkpoints go from every strategy to any other, within an epoch, with the optimizer and position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.checkpoint import formats
from tests.distributed.user import BATCH, CLASSES, WIDTH, Block, Net, data
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes

QUIET = quiet.QUIET | {"num_sanity_val_steps": 0, "limit_val_batches": 0}
EPOCHS, PER_EPOCH = 4, 7


class Saved(Net):
    """Two groups of parameters, one of which is frozen in part, tied weights, a buffer, and a schedule."""

    def __init__(self, kind: str = "AdamW") -> None:
        super().__init__(optimizer=kind)
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Linear(4, WIDTH), *(Block(WIDTH) for _ in range(4)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        )
        self.model[2].up.weight.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen += 1

    def configure_optimizers(self) -> Any:
        trained = {name: p for name, p in self.named_parameters() if p.requires_grad}
        groups = [
            {"params": [p for name, p in trained.items() if name.endswith("weight")]},
            {"params": [p for name, p in trained.items() if name.endswith("bias")], "lr": 2e-3, "weight_decay": 0.0},
        ]
        options = {"lr": 1e-2, "weight_decay": 0.1} | ({"momentum": 0.9} if self.kind == "SGD" else {"eps": 1e-4})
        optimizer = getattr(torch.optim, self.kind)(groups, **options)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [rise, rise])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def rise(step: int) -> float:
    return min(1.0, (step + 1) / 12)


class SavesAt(L.Callback):
    """Writes a checkpoint after so many steps, and ends the run."""

    def __init__(self, step: int, path: Path, kind: str = "file") -> None:
        self.step, self.path, self.kind = step, path, kind

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path, format=self.kind)
            trainer.should_stop = True


def leg(
    rank: int, strategy: str, size: int, kind: str, before: Path | None, after: Path, step: int, **options: Any
) -> Any:
    """Resume from one checkpoint to the next; every epoch draws a new order of the samples."""
    torch.manual_seed(3)
    trainer = L.Trainer(
        **QUIET, strategy=strategy, max_epochs=EPOCHS, callbacks=SavesAt(step, after), gradient_clip_val=0.5, **options
    )
    on = None if before is None else {"stop": False, "changes": "ignore"}
    trainer.fit(Saved(kind), DataLoader(data(), BATCH // size, shuffle=True), ckpt_path=before, resume=on)
    lr = [group["lr"] for group in trainer.optimizers[0].param_groups]
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    return trainer.global_step, trainer.progress.state_dict(), lr, weights


def interrupted(rank: int, strategy: str, size: int, folder: Path) -> Any:
    """Return the results of an uninterrupted run, and of one resumed from step 4."""
    first, none = folder / "first.ckpt", folder / "none.ckpt"
    whole = leg(rank, strategy, size, "AdamW", None, none, 10**6)
    leg(rank, strategy, size, "AdamW", None, first, 4)
    return whole, leg(rank, strategy, size, "AdamW", first, none, 10**6)


@pytest.mark.parametrize(
    ("strategy", "count", "size"),
    [
        ("ddp", 3, 3),
        ("zero1", 2, 2),
        ("fsdp", 2, 2),
        *(
            pytest.param(name, 2, size, marks=pytest.mark.slow)
            for name, size in (("ddp", 2), ("tensor", 1), ("pipeline", 1))
        ),
    ],
)
def test_a_run_that_goes_on_ends_with_the_same_bits(strategy: str, count: int, size: int, tmp_path: Path):
    """Its learning rate rises with every step, before and after."""
    whole, found = ranks(count, interrupted, strategy, size, tmp_path)[0]
    assert found[:3] == whole[:3]
    assert not [name for name, value in whole[3].items() if not torch.equal(value, found[3][name])]


class Centred(Saved):
    """Subtracts the mean of the samples that a process has seen: a buffer that differs by process."""

    def __init__(self, automatic: bool) -> None:
        super().__init__()
        self.automatic_optimization = automatic
        self.register_buffer("mean", torch.zeros(4))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.mean.lerp_(batch[0].mean(0), 0.1)
        loss = super().training_step((batch[0] - self.mean, batch[1]), batch_idx)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss


def centred(before: Path | None, after: Path, step: int, strategy: str, automatic: bool, kind: str) -> Any:
    torch.manual_seed(3)
    trainer = L.Trainer(**QUIET, strategy=strategy, max_epochs=2, callbacks=SavesAt(step, after, kind))
    module = Centred(automatic)
    on = None if before is None else {"stop": False}
    trainer.fit(module, DataLoader(data(), BATCH // 2, shuffle=True), ckpt_path=before, resume=on)
    return {"mean": module.mean.clone(), **{f"all.{n}": v.clone() for n, v in trainer.strategy.module_state().items()}}


def centred_twice(rank: int, folder: Path, *how: Any) -> Any:
    first, none = folder / "first.ckpt", folder / "none.ckpt"
    whole = centred(None, none, 10**6, *how)
    centred(None, first, 4, *how)
    return whole, centred(first, none, 10**6, *how)


@pytest.mark.parametrize(
    ("strategy", "automatic", "kind"), [("fsdp", True, "file"), ("fsdp", True, "directory"), ("ddp", False, "file")]
)
def test_buffers_that_are_others_on_every_process(strategy: str, automatic: bool, kind: str, tmp_path: Path):
    found_by_rank = ranks(2, centred_twice, tmp_path, strategy, automatic, kind)
    assert not torch.equal(found_by_rank[0][0]["mean"], found_by_rank[1][0]["mean"]), (
        "they are equal, so this test shows nothing"
    )
    for whole, found in found_by_rank:
        assert not [name for name, value in whole.items() if not torch.equal(value, found[name])]


JOURNEY = (  # strategy, processes, data processes
    ("auto", 1, 1), ("ddp", 2, 2), ("fsdp", 2, 2), ("tensor", 2, 1), ("pipeline", 2, 1), ("hsdp", 4, 4),
    ("zero1", 2, 2), ("auto", 1, 1),
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:The checkpoint was written by")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_journey_through_all_strategies_ends_where_one_device_does(kind: str, tmp_path: Path):
    whole = leg(0, "auto", 1, kind, None, tmp_path / "none.ckpt", 10**6, devices=1)
    before = None
    for index, (strategy, count, size) in enumerate(JOURNEY):
        after = tmp_path / f"{index}.ckpt"
        step = 3 * (index + 1) + 1 if index + 1 < len(JOURNEY) else 10**6
        if count == 1:
            found = leg(0, strategy, size, kind, before, after, step, devices=1)
        else:
            found = ranks(count, leg, strategy, size, kind, before, after, step)[0]
        if step < 10**6:
            assert (found[0], found[1]["batch"]) == (step, step), strategy
            read = Saved.load_from_checkpoint(after)
            assert list(read.state_dict()) == list(found[3])
            assert (read.seen, found[3].pop("seen")) == (step - 1, step)  # the module's hook follows the callback's
            for name, value in found[3].items():
                assert torch.equal(read.state_dict()[name], value), (strategy, name)
        before = after
    assert found[0] == whole[0] == EPOCHS * PER_EPOCH
    assert found[2] == pytest.approx(whole[2])
    for name, value in whole[3].items():
        error = ((found[3][name] - value).norm() / value.norm().clamp(min=1e-6)).item()
        assert error <= 5e-6, f"{name}: {error}"  # of one tensor; of all together:
    flat = [torch.cat([value.flatten() for value in weights.values()]) for weights in (found[3], whole[3])]
    assert ((flat[0] - flat[1]).norm() / flat[1].norm()).item() <= 1e-6


class Tied(L.Module):
    """Words in, words out, with one matrix for both."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 12, bias=False)
        self.blocks = nn.Sequential(*(Block(WIDTH) for _ in range(2)))
        self.head.weight = self.words.weight
        self.blocks[0].requires_grad_(False)

    def parallel_plan(self) -> Any:
        return {"tensor": {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (words,) = batch
        scores = self.head(self.blocks(self.words(words[:, :-1])))
        return F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, eps=1e-4)


def sentences() -> Any:
    words = torch.randint(12, (32, 5), generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(words)


def tied(rank: int, strategy: str, size: int, path: Path, resume: bool = False, **options: Any) -> Any:
    torch.manual_seed(3)
    trainer = L.Trainer(**QUIET, strategy=strategy, max_epochs=2, precision="64-true", **options)
    module = Tied()  # AdamW enlarges the roundings of single precision, more on one CPU than on another
    loader = DataLoader(sentences(), 8 // size)
    if resume:
        trainer.fit(module, loader, ckpt_path=path)
    else:
        trainer.fit(module, loader)
        trainer.save_checkpoint(path)
        trainer.max_epochs = 3
        trainer.fit(module, loader)
    return {
        name: value.clone() for name, value in trainer.strategy.module_state().items()
    }, module.head.weight is module.words.weight


@pytest.mark.parametrize(("strategy", "size"), [("ddp", 2), ("fsdp", 2), ("tensor", 1)])
def test_tied_and_frozen_weights(strategy: str, size: int, tmp_path: Path):
    alone, _ = tied(0, "auto", 1, tmp_path / "one.ckpt", devices=1)
    both, still_tied = ranks(2, tied, strategy, size, tmp_path / "two.ckpt")[0]
    assert still_tied
    assert list(alone) == list(both)
    for name, value in alone.items():
        torch.testing.assert_close(both[name], value, rtol=1e-9, atol=1e-10)
    read = Tied.load_from_checkpoint(tmp_path / "two.ckpt")
    assert read.head.weight is read.words.weight
    first = torch.load(tmp_path / "one.ckpt")["state_dict"]
    for name, value in read.state_dict().items():
        torch.testing.assert_close(value, first[name], rtol=1e-6, atol=1e-7, check_dtype=False)
    assert torch.equal(read.blocks[0].up.weight, both["blocks.0.up.weight"].float())


def full_disk(rank: int, strategy: str, size: int) -> Any:
    """Try to save with no space left, and continue."""

    def no_space(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    texts = []
    torch.manual_seed(3)
    trainer = L.Trainer(**QUIET, strategy=strategy, max_epochs=1)
    net = Saved()
    trainer.fit(net, DataLoader(data(), BATCH // size))
    save, formats.save = formats.save, no_space
    try:
        trainer.save_checkpoint("one.ckpt")
    except Exception as error:  # noqa: BLE001  any error will do, on every process
        texts.append(str(error))
    formats.save = save
    trainer.max_epochs = 2
    trainer.fit(net, DataLoader(data(), BATCH // size))
    return texts, trainer.global_step


@pytest.mark.parametrize(("strategy", "size"), [("ddp", 2), ("pipeline", 1)])
def test_what_the_first_process_cannot_write_is_an_error_on_all(strategy: str, size: int):
    for texts, steps in ranks(2, full_disk, strategy, size):
        assert len(texts) == 1
        assert "No space left on device" in texts[0]
        assert steps == 2 * PER_EPOCH


def mixed_up(rank: int, path: Path) -> list[str]:
    """Resume with groups, and with a module, that are not those of the file."""
    texts = []
    for kind in (OneGroup, Wider):
        torch.manual_seed(3)
        trainer = L.Trainer(**QUIET, strategy="fsdp", max_epochs=2)
        try:
            trainer.fit(kind(), DataLoader(data(), BATCH // 2), ckpt_path=path)
        except Exception as error:  # noqa: BLE001  its own error, or another rank's
            texts.append(str(error))
    return texts


class OneGroup(Saved):
    configure_optimizers = Net.configure_optimizers


class Wider(Saved):
    def __init__(self) -> None:
        super().__init__()
        self.model.append(nn.Linear(CLASSES, CLASSES))


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_another_module_is_refused_on_all(tmp_path: Path):
    leg(0, "auto", 1, "AdamW", None, tmp_path / "one.ckpt", 3, devices=1)
    for groups, weights in ranks(2, mixed_up, tmp_path / "one.ckpt"):
        assert "groups" in groups or "lr_schedulers" in groups or "schedulers" in groups
        assert "model.7.weight" in weights
