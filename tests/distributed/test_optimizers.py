"""Every optimizer steps as on one device, or is refused before the first batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightlib.optim import MuonAdamW
from tests.distributed.test_numbers import assert_near, loader, state_of, trainer_of
from tests.distributed.user import BATCH, Net, data, plain_loop
from tests.processes.ranks import ranks
from tests.runs.resumable import SaveAtStep

pytestmark = pytest.mark.processes

STEPS = 4
BY_ELEMENTS = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
BY_PARAMETERS = ("Adafactor", "Rprop")


def fitted(strategy: str, kind: str, size: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    trainer = trainer_of(strategy, limit_val_batches=0, max_steps=STEPS)
    trainer.fit(Net(depth=1, optimizer=kind), loader(size))
    return state_of(trainer)


def by_all(rank: int, strategy: str, kinds: tuple[str, ...], size: int) -> dict[str, Any]:
    return {kind: fitted(strategy, kind, size) for kind in kinds}


@pytest.mark.parametrize(
    ("strategy", "size", "kinds"),
    [
        ("zero1", 2, BY_ELEMENTS + BY_PARAMETERS),
        ("fsdp", 2, BY_ELEMENTS),
        pytest.param("tensor", 1, BY_ELEMENTS, marks=pytest.mark.slow),
    ],
)
def test_the_numbers_are_those_of_one_device(strategy: str, size: int, kinds: tuple[str, ...]):
    found = ranks(2, by_all, strategy, kinds, size)[0]
    for kind in kinds:
        torch.manual_seed(3)
        net = Net(depth=1, optimizer=kind)
        plain_loop(net, STEPS, 1, BATCH)
        assert_near(found[kind], net.state_dict(), 2e-5)


@pytest.mark.parametrize(
    ("strategy", "kind"), [("zero1", "LBFGS"), ("fsdp", "LBFGS"), ("fsdp", "Adafactor"), ("tensor", "Rprop")]
)
def test_what_cannot_step_a_part_is_refused(strategy: str, kind: str):
    with pytest.raises(AssertionError) as caught:  # one process may raise the error of the other
        ranks(2, by_all, strategy, (kind,), 1)
    text = str(caught.value)
    assert f"MisconfigurationException: {kind} with " in text
    assert "Fix: torch.optim.AdamW(self.parameters()); or strategy='ddp'" in text
    assert "hanging" not in text


# two optimizers of today
SIZES = {"ddp": 2, "zero1": 2, "fsdp": 2, "tensor": 1, "pipeline": 1}  # processes that read different data
LONG = 9  # of 7 in an epoch


class Today(Net):
    """The usual network with one of the two optimizers."""

    def configure_optimizers(self) -> Any:
        if self.kind == "muon":
            return MuonAdamW(self, lr=3e-3, muon_lr=0.02)
        return AdamWScheduleFree(self.parameters(), lr=1e-2, warmup_steps=2)


def trained(
    strategy: str, kind: str, *callbacks: Any, steps: int = LONG, before: Path | None = None
) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    trainer = trainer_of(strategy, max_steps=steps, callbacks=list(callbacks))
    trainer.fit(Today(depth=1, optimizer=kind), loader(SIZES[strategy]), loader(1), ckpt_path=before)
    return state_of(trainer)


def one_leg(rank: int, strategy: str, kind: str, steps: int = LONG) -> dict[str, torch.Tensor]:
    return trained(strategy, kind, steps=steps)


def interrupted(rank: int, strategy: str, kind: str, path: Path) -> Any:
    return trained(strategy, kind, SaveAtStep(path, 4)), trained(strategy, kind, before=path)


def plain(kind: str, count: int = LONG) -> dict[str, torch.Tensor]:
    """Train on one device in a plain loop."""
    torch.manual_seed(3)
    net = Today(depth=1, optimizer=kind)
    optimizer, free = net.configure_optimizers(), kind == "free"
    if free:
        optimizer.train()
    steps = iter([*DataLoader(data(), BATCH), *DataLoader(data(), BATCH)][:count])
    for x, y in steps:
        optimizer.zero_grad()
        F.cross_entropy(net.model(x), y).backward()
        optimizer.step()
    if free:
        optimizer.eval()
    return net.state_dict()


@pytest.mark.parametrize("strategy", SIZES)
def test_muon_steps_full_matrices(strategy: str):
    """Muon computes in bfloat16: a gradient with another rounding may move a weight by some 1e-3 of a step."""
    found, wanted = ranks(2, one_leg, strategy, "muon", 2)[0], plain("muon", 2)
    within = 5e-3 if strategy in ("tensor", "pipeline") else 1e-6
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert (found[name] - value).norm() <= within * value.norm() + 1e-7, name


@pytest.mark.parametrize("strategy", [name for name in SIZES if name != "zero1"])
def test_the_average_of_a_schedule_free_optimizer_is_that_of_one_device(strategy: str):
    found, wanted = ranks(2, one_leg, strategy, "free")[0], plain("free")
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("fsdp", "muon"), ("zero1", "muon"), ("pipeline", "muon"), ("ddp", "free"), ("fsdp", "free"), ("tensor", "free")],
)
def test_a_resumed_run_ends_with_the_same_bits(strategy: str, kind: str, tmp_path: Path):
    for complete, resumed in ranks(2, interrupted, strategy, kind, tmp_path / "a.ckpt"):
        assert list(resumed) == list(complete)
        assert all(torch.equal(value, complete[name]) for name, value in resumed.items())


def test_zero1_refuses_a_schedule_free_optimizer():
    with pytest.raises(AssertionError) as caught:  # one process may raise the error of the other
        ranks(2, one_leg, "zero1", "free")
    text = str(caught.value)
    assert "AdamWScheduleFree is a schedule-free optimizer, and " in text
    assert "Fix: Trainer(strategy='ddp') or 'fsdp'" in text
