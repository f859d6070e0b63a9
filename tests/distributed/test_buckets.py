"""Three processes that resume add up gradients in the order of the earlier run, to the last bit."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.strategies import DDPStrategy
from tests.distributed.test_state import QUIET, SavesAt
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes


class Net(L.Module):
    """Its gradients do not arrive in the reverse of the order of its parameters."""

    def __init__(self, hooked: bool = False) -> None:
        super().__init__()
        self.head, self.body, self.foot = nn.Linear(96, 7), nn.Linear(96, 96), nn.Linear(20, 96)
        self.body.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(96)
        self.calls = 0
        if hooked:
            self.head.weight.register_hook(self.called)

    def called(self, gradient: torch.Tensor) -> None:
        self.calls += 1

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.norm(torch.tanh(self.foot(batch[0])))))).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-2)


def trained(path: str | None, save: Any, options: dict[str, Any], accumulate: int, hooked: bool = False) -> Any:
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(90, 20, generator=torch.Generator().manual_seed(2)))
    strategy = DDPStrategy(bucket_cap_mb=0.02, **options)
    trainer = L.Trainer(
        **QUIET,
        strategy=strategy,
        devices=3,
        max_epochs=2,
        accumulate_grad_batches=accumulate,
        callbacks=[] if save is None else SavesAt(*save),
    )
    module = Net(hooked)
    on = None if path is None else {"stop": False}
    trainer.fit(module, DataLoader(data, 3, shuffle=True), ckpt_path=path, resume=on)
    return {name: value.clone() for name, value in trainer.strategy.module_state().items()}, module.calls


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


def legs(rank: int, folder: Any, options: dict[str, Any], accumulate: int) -> Any:
    """Return the saved order, and where runs resumed from steps 3 and 5 differ from one never stopped."""
    whole = trained(None, None, options, accumulate)[0]
    first, second, unordered = (str(folder / name) for name in ("first.ckpt", "second.ckpt", "unordered.ckpt"))
    trained(None, (3, first), options, accumulate)
    at_once = trained(first, None, options, accumulate)[0]
    trained(first, (5, second), options, accumulate)
    again = trained(second, None, options, accumulate)[0]
    content = torch.load(first)
    order = content["lightlib"].pop("strategy", {})
    if rank == 0:
        torch.save(content, unordered)
    torch.distributed.barrier()
    without = trained(unordered, None, options, accumulate)[0]
    return order, differing(whole, at_once), differing(whole, again), differing(whole, without)


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_that_goes_on_has_the_buckets_of_the_one_before(tmp_path, accumulate):
    order, at_once, again, without = ranks(3, legs, tmp_path, {}, accumulate)[0]
    arrived = ["head.weight", "head.bias", "body.weight", "norm.weight", "norm.bias", "foot.weight", "foot.bias"]
    assert sorted(order["replicate"]["order"]) == sorted(arrived)
    assert order["replicate"]["order"][:2] in (["head.bias", "head.weight"], ["head.weight", "head.bias"])
    assert at_once == again == []
    assert without, "the order makes no difference here, so this test shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_no_order_is_kept_where_torch_arranges_in_another_way(tmp_path, options):
    order, at_once, again, _ = ranks(3, legs, tmp_path, options, 1)[0]
    assert order == {}
    if "find_unused_parameters" in options:
        assert at_once == again == []


def hooked(rank: int, folder: Any) -> Any:
    path = str(folder / "one.ckpt")
    trained(None, (3, path), {}, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calls = trained(path, None, {}, 1, hooked=True)[1]
    return calls, [str(warning.message) for warning in caught]


def test_hooks_of_the_user_never_see_the_zeros(tmp_path):
    calls, caught = ranks(3, hooked, tmp_path)[0]
    assert calls == 17  # of 20 batches the last 17
    assert any("Register the hooks in on_train_start" in message for message in caught)
