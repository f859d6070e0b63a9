"""A plain model with a dict of losses on two processes: the numbers of one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.evaluation import MetricCallback
from lightlib.strategies.mesh import MeshStrategy
from tests.distributed.user import data
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes


class TwoLosses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Any, y: Any, mode: str) -> Any:
        scores = self.net(x)
        if mode == "predict":
            return scores
        return {"class_loss": F.cross_entropy(scores, y), "size_losses": [scores.square(), scores.abs()]}


def built() -> TwoLosses:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return TwoLosses()


def fitted(rank: int, strategy: str) -> Any:
    module = L.Module.from_model(built(), optimizer=partial(torch.optim.SGD, lr=0.1))
    trainer = L.Trainer(**quiet.QUIET, strategy=strategy, max_epochs=1)
    trainer.fit(module, DataLoader(data(32), 4), DataLoader(data(8, 2), 4))
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    return weights, {name: float(value) for name, value in trainer.callback_metrics.items()}


def both(rank: int) -> Any:
    return {strategy: fitted(rank, strategy) for strategy in ("ddp", "fsdp")}


def test_the_numbers_of_one_process() -> None:
    model = built()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    halves = [DataLoader(torch.utils.data.Subset(data(32), range(rank, 32, 2)), 4) for rank in range(2)]
    for parts in zip(*halves, strict=True):
        optimizer.zero_grad()
        for part in parts:
            losses = model(*part, mode="loss")
            terms = {"class_loss": losses["class_loss"], "size_losses": sum(x.mean() for x in losses["size_losses"])}
            (sum(terms.values()) / 2).backward()
        optimizer.step()
    zero, one = ranks(2, both)
    assert all(weights for weights, _ in zero.values())  # fsdp gathers them there alone
    for results in (zero, one):
        for strategy, (weights, metrics) in results.items():
            for name, value in model.state_dict().items() if weights else ():
                torch.testing.assert_close(weights[f"model.{name}"], value, msg=f"{strategy}: {name}")
            assert {"loss", "class_loss", "size_losses"} <= metrics.keys()
            assert metrics["loss"] == pytest.approx(metrics["class_loss"] + metrics["size_losses"], rel=1e-5)


class ItsLoss(nn.Module):
    """Returns its loss and its scores if it gets labels, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        scores = self.net(input_ids)
        return {"loss": F.cross_entropy(scores, labels), "logits": scores}


class Keeps(L.Callback):
    """Keeps the training outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append({name: value.clone() for name, value in outputs.items()})


def by_name(items: Any) -> Any:
    x, y = torch.utils.data.default_collate(items)
    return {"input_ids": x, "labels": y}


def seeded_model(kind: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return kind()


def its_loss(rank: int, strategy: str) -> Any:
    module = L.Module.from_model(seeded_model(ItsLoss), optimizer=partial(torch.optim.SGD, lr=0.1))
    trainer = L.Trainer(**quiet.QUIET, strategy=strategy, max_epochs=1, accumulate_grad_batches=2)
    trainer.fit(module, DataLoader(data(32), 4, collate_fn=by_name), DataLoader(data(7, 2), 2, collate_fn=by_name))
    (tested,) = trainer.test(module, DataLoader(data(7, 2), 2, collate_fn=by_name), verbose=False)
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    return weights, float(trainer.callback_metrics["test_loss"]), tested["test_loss"]


def shown(rank: int, strategy: Any) -> Any:
    torchmetrics = pytest.importorskip("torchmetrics")
    accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=8)
    callbacks = [keeps := Keeps(), MetricCallback(accuracy, stages="train")]
    net = seeded_model(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8)))
    module = L.Module.from_model(net, F.cross_entropy, partial(torch.optim.SGD, lr=0.0))
    trainer = L.Trainer(**quiet.QUIET, strategy=strategy, max_epochs=1, callbacks=callbacks)
    trainer.fit(module, DataLoader(data(32), 4))
    return keeps.outputs, float(trainer.callback_metrics["train_accuracy"])


def piped(rank: int) -> Any:
    keeps = Keeps()
    net = seeded_model(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8)))
    module = L.Module.from_model(net, F.cross_entropy, partial(torch.optim.SGD, lr=0.1))
    trainer = L.Trainer(**quiet.QUIET, strategy=MeshStrategy(pipeline=2), max_epochs=1, callbacks=keeps)
    trainer.fit(module, DataLoader(data(16), 4), DataLoader(data(8, 2), 4))
    return keeps.outputs, float(trainer.callback_metrics["val_loss"])


def all_of_them(rank: int) -> Any:
    return {name: (its_loss(rank, name), shown(rank, name)) for name in ("ddp", "fsdp")}, piped(rank)


def test_a_model_that_returns_its_loss_and_outputs_of_training() -> None:
    x, y = data(32).tensors
    test_x, test_y = data(7, 2).tensors
    plain = seeded_model(ItsLoss)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for at in range(0, 32, 16):  # two batches of four on each of two processes
        optimizer.zero_grad()
        F.cross_entropy(plain.net(x[at : at + 16]), y[at : at + 16]).backward()
        optimizer.step()
    expected = F.cross_entropy(plain.net(test_x), test_y).item()
    zero, one = ranks(2, all_of_them)
    for results, _ in (zero, one):
        for strategy, ((weights, logged, returned), _) in results.items():
            for name, value in plain.state_dict().items() if weights else ():
                torch.testing.assert_close(weights[f"model.{name}"], value, msg=f"{strategy}: {name}")
            assert logged == pytest.approx(expected, rel=1e-5), strategy
            assert returned == pytest.approx(expected, rel=1e-5), strategy
    unchanged = seeded_model(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8)))
    scores = unchanged(x)
    for rank, (results, _) in enumerate((zero, one)):
        for strategy, (_, (outputs, accuracy)) in results.items():
            torch.testing.assert_close(torch.cat([each["preds"] for each in outputs]), scores[rank::2])
            assert torch.equal(torch.cat([each["target"] for each in outputs]), y[rank::2]), strategy
            assert accuracy == pytest.approx((scores.argmax(1) == y).float().mean().item()), strategy
    net, seen = unchanged, []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = data(16).tensors
    for part, target in zip(x.split(4), y.split(4), strict=True):
        optimizer.zero_grad()
        seen.append((net(part), target))
        F.cross_entropy(*seen[-1]).backward()
        optimizer.step()
    (first, first_loss), (last, last_loss) = zero[1], one[1]
    for output, (predicted, target) in zip(last, seen, strict=True):
        torch.testing.assert_close(output["preds"], predicted.detach())
        assert torch.equal(output["target"], target)
    for output, (predicted, target) in zip(first, seen, strict=True):
        assert set(output) == {"loss"}, "the first stage has no predictions"
        torch.testing.assert_close(output["loss"], F.cross_entropy(predicted, target).detach())
    x, y = data(8, 2).tensors
    assert first_loss == last_loss == pytest.approx(F.cross_entropy(net(x), y).item(), rel=1e-5)
