"""Metrics of two ranks: counted by hand over 7 samples, each once, in the order of the loader."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import History
from lightlib.evaluation import Metric, MetricCallback, PredictionDump, TestTimeAugmentation, evaluate_offline
from tests.evaluation.modules import Listed, Losses, Predicts, data, loader, losses_by_hand, outputs_by_hand
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.saves_at import SavesAt

pytestmark = pytest.mark.processes


def accuracy() -> Any:
    return MulticlassAccuracy(3, average="micro")


def trainer(strategy: str = "ddp", **arguments: Any) -> L.Trainer:
    return L.Trainer(**{**quiet.QUIET, "strategy": strategy, "devices": 2, "max_epochs": 1, **arguments})


def validated(rank: int, strategy: str, samples: int) -> Any:
    module = Predicts()
    run = trainer(strategy, callbacks=[MetricCallback([accuracy(), Listed(), Losses()])])
    return [run.validate(module, loader(samples), verbose=False)[0] for _ in range(2)]  # the second starts from zero


@pytest.mark.parametrize(("strategy", "samples"), [("ddp", 7), ("fsdp", 7), ("tensor", 7), ("ddp", 1), ("fsdp", 1)])
def test_numbers_are_counted_by_hand(strategy: str, samples: int):
    net = Predicts().net
    logits, y = outputs_by_hand(net, samples)
    expected = {"val_accuracy": float((logits.argmax(1) == y).sum() / samples)}
    expected |= {f"val_{name}": value for name, value in losses_by_hand(net, samples).items()}
    expected["val_listed"] = float(logits[:, 0].double().sum())
    for found in ranks(2, validated, strategy, samples):
        assert found[0] == found[1]
        assert found[0] == pytest.approx(expected, rel=1e-6)
        assert found[0]["val_accuracy"] == expected["val_accuracy"]


def several(rank: int, folder: str) -> Any:
    """Everything that needs two ranks and one strategy."""
    module = Predicts()
    found: dict[str, Any] = {"rank": rank}

    def losses(given: Any, metric: Metric | None = None, **arguments: Any) -> dict[str, float]:
        run = trainer(callbacks=[MetricCallback(metric or Losses(), prefix="")], **arguments)
        return run.validate(module, given, verbose=False)[0]

    found["ours"] = losses(loader(7))
    padded = DistributedSampler(data(7), 2, rank, shuffle=False)
    found["padded"] = losses(loader(7, sampler=padded))
    found["folder"] = losses(loader(7), Losses(collect_dir=folder))
    found["limited"] = losses(loader(7), limit_val_batches=1)
    found["batches"] = losses(list(loader(7)))
    metric = Losses(prefix="")
    for place, batch in enumerate(loader(7)):
        if place % 2 == rank:
            metric.process(batch, module.net(batch[0]).detach())
    found["loop"] = metric.evaluate()
    return found


class PerBatch(Metric):
    def process(self, batch: Any, outputs: Any) -> None:
        self.results.append(len(batch[0]))

    def compute_metrics(self, results: list[Any]) -> dict[str, Any]:
        return {"n": sum(results)}


class Objects(PerBatch):
    def process(self, batch: Any, outputs: Any) -> None:
        self.results.append(History())


class Broken(PerBatch):
    def compute_metrics(self, results: list[Any]) -> dict[str, Any]:
        raise ValueError("broken on purpose")


def fails(rank: int, kind: str, folder: str) -> str:
    metric: Metric = {"repeated": PerBatch, "objects": Objects, "broken": Broken}[kind](
        collect_dir=folder if kind == "objects" else None
    )
    sampler = DistributedSampler(data(7), 2, rank) if kind == "repeated" else None
    with pytest.raises(Exception) as caught:  # noqa: PT011  its text is compared below
        trainer(callbacks=[MetricCallback(metric)]).validate(Predicts(), loader(7, sampler=sampler), verbose=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("repeated", "PerBatch has 4 results for 7 samples, of which the sampler repeats 1."),
        ("objects", "cannot be read back safely"),
        ("broken", "broken on purpose"),
    ],
)
def test_errors_end_both_ranks(kind: str, message: str, tmp_path: Any):
    for found in ranks(2, fails, kind, str(tmp_path)):
        assert message in found


def test_samples_count_once_in_the_order_of_the_loader(tmp_path: Any):
    module = Predicts()
    alone = L.Trainer(**{**quiet.QUIET, "max_epochs": 1}, callbacks=[MetricCallback(Losses(), prefix="")])
    (whole,) = alone.validate(module, loader(7), verbose=False)
    assert whole == pytest.approx(losses_by_hand(module.net, 7))
    each = cross_entropy(*outputs_by_hand(module.net, 7), reduction="none")
    for found in ranks(2, several, str(tmp_path)):
        for name in ("ours", "padded", "folder", "batches"):
            assert found[name] == pytest.approx(whole, rel=1e-6), name
            assert found[name]["loss/count"] == 7
        assert found["ours"] == found["padded"] == found["folder"]
        assert found["limited"]["loss/last"] == pytest.approx(float(each[3]), rel=1e-6)
        assert found["limited"]["loss/mean"] == pytest.approx(float(each[:4].mean()), rel=1e-6)
        assert found["loop"]["count"] == 7
    assert list(tmp_path.iterdir()) == []


def trained(rank: int, folder: Any, saved_at: int, resumed: bool) -> Any:
    torch.manual_seed(3)
    history = History()
    callbacks = [MetricCallback([MeanSquared(), Listed(), Losses()], stages="train"), history]
    if not resumed:
        callbacks.append(SavesAt(folder / "saved.ckpt", saved_at))
    run = trainer(callbacks=callbacks, max_epochs=2, limit_val_batches=0, global_batch_size=4)
    run.fit(Predicts(), loader(11, size=4, shuffle=True), ckpt_path=folder / "saved.ckpt" if resumed else None)
    return {name: history.values(name) for name in history.names}


class MeanSquared(MeanSquaredError):
    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        super().update(preds[:, 0].double(), target.double())


@pytest.mark.parametrize("step", [2, 4])
def test_a_resumed_epoch_has_the_numbers_of_an_unbroken_one(tmp_path: Any, step: int):
    whole = ranks(2, trained, tmp_path, step, False)
    assert whole[0]["train_loss/count"] == [11.0, 11.0]
    assert len(set(whole[0]["train_mean_squared"])) == 2
    assert ranks(2, trained, tmp_path, step, True) == whole


def dumped(rank: int, folder: str, strategy: str, samples: int, padded: bool) -> Any:
    sampler = DistributedSampler(data(samples), 2, rank, shuffle=False) if padded else None
    online = {}
    for stage in ("val", "test"):
        callbacks = [
            MetricCallback([accuracy(), MeanSquared(), Listed(), Losses()], stages=stage),
            PredictionDump(f"{folder}/{stage}", stages=stage),
        ]
        run = trainer(strategy, callbacks=callbacks)
        verb = run.test if stage == "test" else run.validate
        repeats = padded and rank == 0  # other ranks do not warn
        with pytest.warns(UserWarning, match="repeats 1 samples") if repeats else nullcontext():
            online[stage] = verb(Predicts(), loader(samples, sampler=sampler), verbose=False)[0]
    return online


@pytest.mark.parametrize(
    ("strategy", "samples", "padded"), [("ddp", 7, False), ("ddp", 7, True), ("ddp", 1, False), ("tensor", 7, False)]
)
def test_dumped_predictions_give_the_same_bits(tmp_path: Any, strategy: str, samples: int, padded: bool):
    online, also = ranks(2, dumped, str(tmp_path), strategy, samples, padded)
    assert online == also
    for stage, expected in online.items():
        metrics = [accuracy(), MeanSquared(), Listed(), Losses()]
        assert evaluate_offline(tmp_path / stage, metrics) == expected
        assert expected[f"{stage}_loss/count"] == samples
        assert len(expected) == 6


class Calls(Predicts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0])


def flipped(x: torch.Tensor) -> torch.Tensor:
    return x.flip(1)


def augmented(rank: int, strategy: str) -> Any:
    callbacks = [TestTimeAugmentation([flipped]), MetricCallback([accuracy(), Losses(prefix="")], stages="test")]
    run = trainer(strategy, callbacks=callbacks)
    return run.test(Calls(), loader(7), verbose=False)[0]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_test_time_augmentation_equals_a_plain_loop(strategy: str):
    net = Calls().net
    x, y = data(7).tensors
    with torch.no_grad():
        merged = (net(x) + net(flipped(x))) / 2
    losses = cross_entropy(merged, y, reduction="none")
    expected = {
        "test_accuracy": float((merged.argmax(1) == y).sum() / 7),
        "test_mean": float(losses.mean()),
        "test_last": float(losses[-1]),
        "test_count": 7.0,
    }
    for found in ranks(2, augmented, strategy):
        assert found == pytest.approx(expected, rel=1e-5)
