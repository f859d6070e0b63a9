"""A function of all predictions and targets as a metric: against numbers by hand, and wrong input."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.evaluation import MetricCallback
from lightlib.evaluation.function_metric import FunctionMetric
from tests.runs.plain import network, quiet_trainer, samples


def compute_metrics(found):
    predictions, labels = found
    assert labels is found.label_ids
    return {"accuracy": (predictions.argmax(-1) == labels).mean(), "samples": len(labels)}


class Model(nn.Module):
    """Returns an object with its loss and logits, as other libraries do."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x, labels):
        logits = self.net(x)
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def data(n):
    x, labels = samples(n)
    rows = [{"x": one, "labels": label} for one, label in zip(x, labels, strict=True)]
    return torch.utils.data.DataLoader(rows, batch_size=4)


def test_a_model_that_returns_an_object_needs_no_module_of_its_own():
    module = L.Module.from_model(Model(), optimizer=torch.optim.SGD)
    trainer = quiet_trainer(max_epochs=1, callbacks=MetricCallback(compute_metrics, stages=("train", "val")))
    trainer.fit(module, data(12), data(10))
    x, labels = samples(10)
    logits = module.model.net(x).detach()
    found = trainer.callback_metrics
    assert found["val_accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert found["val_samples"] == 10
    assert found["train_samples"] == 12
    parts = zip(logits.split(4), labels.split(4), strict=True)
    losses = [nn.functional.cross_entropy(part, own, reduction="sum") for part, own in parts]
    assert found["val_loss"] == pytest.approx(float(sum(losses)) / 10, rel=1e-5)


def test_samples_of_different_lengths_are_padded():
    metric = FunctionMetric(lambda found: {"sum": found.predictions.sum(), "width": found.label_ids.shape[1]}, pair)
    metric.process(torch.zeros(1, 2), torch.ones(1, 2))
    metric.process(torch.zeros(1, 3, dtype=torch.bfloat16), torch.ones(1, 3, dtype=torch.bfloat16))
    assert metric.evaluate() == {"sum": 5 - 100, "width": 3}


def pair(batch, outputs):
    return outputs, batch


def test_no_pair_and_no_dict():
    metric = FunctionMetric(lambda found: 3.0, lambda batch, outputs: outputs)
    with pytest.raises(MisconfigurationException, match="in place of predictions and targets"):
        metric.process(None, {"logits": 1})
    metric = FunctionMetric(lambda found: 3.0, pair)
    metric.process(torch.ones(2), torch.ones(2))
    with pytest.raises(MisconfigurationException, match=r"compute_metrics returned 3\.0"):
        metric.evaluate()
