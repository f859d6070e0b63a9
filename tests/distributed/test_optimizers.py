"""Every optimizer of torch steps as on one device, or is refused before the first batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.test_numbers import assert_near, loader, state_of, trainer_of
from tests.distributed.user import BATCH, Net, plain_loop
from tests.processes.ranks import ranks

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
