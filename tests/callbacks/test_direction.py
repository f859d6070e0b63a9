"""mode="auto": the metric, the module or the name decides before training."""

from __future__ import annotations

import pytest
import torch
import torchmetrics
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.callbacks.direction import check_mode_or_auto, settled_mode
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.evaluation import Metric, MetricCallback
from tests.runs.bad_input import refused
from tests.runs.plain import QUIET, Net, loader
from tests.runs.saves_at import SavesAt

SCORES = (3.0, 5.0, 4.0, 1.0, 2.0, 0.0)


class Scripted(Metric):
    """One of SCORES in each epoch."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.epoch = None

    def process(self, batch, outputs):
        self.results.append(outputs)

    def compute_metrics(self, results):
        return {"score": results[-1]}


class Validates(Net):
    def validation_step(self, batch, batch_idx):
        return SCORES[self.trainer.current_epoch]


def with_direction(better, **arguments):
    metric = Scripted(**arguments)
    metric.higher_is_better = better
    return metric


def fitted(tmp_path, metric, monitor, epochs=5, saved_at=None, resumed=None):
    best = ModelCheckpoint(tmp_path / "best", "{epoch}", monitor=monitor, mode="auto")
    stopping = EarlyStopping(monitor, mode="auto", patience=3)
    extra = [SavesAt(tmp_path / "saved.ckpt", saved_at)] if saved_at else []
    arguments = {**QUIET, "enable_checkpointing": True, "max_epochs": epochs}
    trainer = L.Trainer(**arguments, callbacks=[MetricCallback(metric), best, stopping, *extra])
    trainer.fit(Validates(), loader(4), loader(4), ckpt_path=resumed)
    return trainer, best, stopping


@pytest.mark.parametrize(("better", "best_of", "epochs"), [(True, max, 5), (False, min, 5)])
@pytest.mark.parametrize("by_prefix", [True, False])
def test_the_metric_decides_and_no_direction_is_given(tmp_path, better, best_of, epochs, by_prefix):
    metric = with_direction(better, prefix="p") if by_prefix else with_direction({"score": better})
    monitor = "val_p/score" if by_prefix else "val_score"
    trainer, best, stopping = fitted(tmp_path, metric, monitor)
    assert best.mode == stopping.mode == ("max" if better else "min")
    assert float(best.best_model_score) == best_of(SCORES[: trainer.current_epoch])
    assert best.best_model_path.endswith(f"epoch={SCORES.index(best_of(SCORES[:epochs]))}.ckpt")
    assert stopping.best_score == best.best_model_score
    if better:  # the best one was in epoch 1: after 2, 3 and 4 the run ends
        assert stopping.stopped_epoch == 4


def test_a_resumed_run_keeps_the_best_and_the_patience(tmp_path):
    metric = with_direction({"score": True})
    _, best, stopping = fitted(tmp_path, metric, "val_score", saved_at=3)
    (tmp_path / "whole").mkdir()
    _, again, stopped = fitted(tmp_path, metric, "val_score", resumed=tmp_path / "saved.ckpt")
    assert again.state_dict()["best_model_score"] == best.state_dict()["best_model_score"] == 5.0
    assert stopped.state_dict() == stopping.state_dict()


def trainer(*callbacks):
    return L.Trainer(**QUIET, max_epochs=1, callbacks=list(callbacks))


class Holds(L.Module):
    def __init__(self, **metrics):
        super().__init__()
        for name, metric in metrics.items():
            setattr(self, name, metric)


def accuracy():
    return MulticlassAccuracy(3)


def mode_of(monitor, module=None, *callbacks, mode="auto"):
    return settled_mode("Owner", monitor, mode, trainer(*callbacks), module or L.Module())


def test_metrics_of_torchmetrics_decide():
    assert mode_of("val_x", None, MetricCallback({"x": accuracy()})) == "max"
    assert mode_of("val_x", None, MetricCallback({"x": torchmetrics.MeanSquaredError()})) == "min"
    assert mode_of("x", Holds(x=accuracy())) == "max"
    assert mode_of("x_epoch", Holds(x=torchmetrics.MeanAbsoluteError())) == "min"
    collection = torchmetrics.MetricCollection({"a": accuracy(), "b": torchmetrics.MeanSquaredError()}, prefix="val_")
    assert mode_of("val_a", Holds(any=collection)) == "max"
    assert mode_of("val_b", Holds(any=collection)) == "min"
    # the metric knows better than the name
    assert mode_of("val_loss", None, MetricCallback({"loss": accuracy()})) == "max"
    assert mode_of("loss", Holds(loss=accuracy())) == "max"


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("val_loss", "min"), ("Train/Loss_epoch", "min"), ("val_acc", "max"), ("valid.accuracy", "max"),
        ("test-f1", "max"), ("val_mse/dataloader_idx_0", "min"), ("val_accuracy", "max"), ("perplexity", "min"),
    ],
)  # fmt: skip
def test_words_in_names_decide(name, mode):
    assert mode_of(name) == mode


@pytest.mark.parametrize("name", ["val_score", "gloss", "val_accent", "loss_of_accuracy", ""])
def test_other_names_are_refused(name):
    with refused(
        MisconfigurationException,
        f'Owner(monitor={name!r}, mode="auto"): it is unknown whether more or less of this metric is better.',
        "a metric with `higher_is_better` in a MetricCallback***",
        'Owner(…, mode="min") if less is better, mode="max" if more is.',
    ):
        mode_of(name)


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_it_is_refused_before_training(tmp_path, kind):
    steps = []

    class Counts(Net):
        def training_step(self, batch, batch_idx):
            steps.append(batch_idx)
            return super().training_step(batch, batch_idx)

    callback = kind(monitor="val_score", mode="auto")
    arguments = {**QUIET, "max_epochs": 1, "enable_checkpointing": True, "default_root_dir": tmp_path}
    with pytest.raises(MisconfigurationException, match=f"{kind.__name__}.*it is unknown whether"):
        L.Trainer(**arguments, callbacks=[callback]).fit(Counts(), loader(4))
    assert steps == []


def test_a_mode_against_the_metric_is_a_warning():
    with pytest.warns(UserWarning, match=r"Owner\(monitor='val_x', mode='min'\): by its metric, more is better"):
        assert mode_of("val_x", None, MetricCallback({"x": accuracy()}), mode="min") == "min"
    assert mode_of("val_x", None, MetricCallback({"x": accuracy()}), mode="max") == "max"
    assert mode_of("x", Holds(x=accuracy()), mode="min") == "min"  # as in Lightning


def test_bad_input():
    with pytest.raises(UnknownNameError, match="automatic"):
        EarlyStopping("val_loss", mode="automatic")
    with refused(
        MisconfigurationException,
        'ModelCheckpoint(monitor=None, mode="auto"): nothing is compared.',
        "a metric to monitor, or no mode.",
        'ModelCheckpoint(monitor="val_loss", mode="auto")',
    ):
        ModelCheckpoint(mode="auto")
    assert check_mode_or_auto("Owner", None, "max") == "max"


def test_other_modes_are_as_before():
    stopping = EarlyStopping("m", mode="max", min_delta=-0.1)
    assert (stopping.mode, stopping.min_delta, float(stopping.best_score)) == ("max", 0.1, -torch.inf)
    assert EarlyStopping("m").state_key == "EarlyStopping{'monitor': 'm', 'mode': 'min'}"
    assert EarlyStopping("m", mode="auto").state_key == "EarlyStopping{'monitor': 'm', 'mode': 'auto'}"
