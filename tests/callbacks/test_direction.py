"""mode="auto": the metric, the module or the name decides before training."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
import torchmetrics
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import CheckpointGC, EarlyStopping, ModelCheckpoint
from lightlib.callbacks.direction import Direction
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.evaluation import Metric, MetricCallback
from tests.runs.bad_input import refused
from tests.runs.modules import Holds
from tests.runs.plain import QUIET, Net, calling, loader, with_methods
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

    def validation_step(self, batch, batch_idx):
        return SCORES[self.trainer.current_epoch]

    trainer.fit(with_methods(Net, validation_step), loader(4), loader(4), ckpt_path=resumed)
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


def accuracy():
    return MulticlassAccuracy(3)


def mode_of(monitor, module=None, *callbacks, mode="auto"):
    direction = Direction("Owner", monitor, mode)
    return direction.settle(direction.first_mode, trainer(*callbacks), module or L.Module())


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

    counts = calling(Net, training_step=lambda self, batch, batch_idx: steps.append(batch_idx))
    callback = kind(monitor="val_score", mode="auto")
    arguments = {**QUIET, "max_epochs": 1, "enable_checkpointing": True, "default_root_dir": tmp_path}
    with pytest.raises(MisconfigurationException, match=f"{kind.__name__}.*it is unknown whether"):
        L.Trainer(**arguments, callbacks=[callback]).fit(counts, loader(4))
    assert steps == []


@pytest.mark.parametrize(
    ("monitor", "module", "callbacks", "reason"),
    [
        ("val_acc", L.Module(), (), "its name"),
        ("val_x", L.Module(), (MetricCallback({"x": accuracy()}),), "its metric"),
        ("x_epoch", Holds(x=accuracy()), (), "its metric"),
        ("loss", Holds(loss=accuracy()), (), "its metric"),
    ],
)
def test_no_mode_is_a_warning_if_more_is_better(monitor, module, callbacks, reason):
    given = f"Owner(monitor={monitor!r}"
    with pytest.warns(UserWarning, match="without a mode") as caught:
        assert mode_of(monitor, module, *callbacks, mode=None) == "min"
    (text,) = [str(one.message) for one in caught]
    assert text.splitlines() == [
        f"{given}) without a mode keeps the smallest, but by {reason} more is better.",
        '  Expected: mode="max", or mode="min" if less is better after all.',
        f'  Fix: {given}, mode="max")',
    ]


def test_no_warning_where_less_is_better_or_a_mode_is_given():
    for mode in ("min", "max"):  # as in Lightning
        assert mode_of("val_x", None, MetricCallback({"x": accuracy()}), mode=mode) == mode
        assert mode_of("val_acc", mode=mode) == mode
        assert mode_of("x", Holds(x=torchmetrics.MeanSquaredError()), mode=mode) == mode
    for name in ("val_loss", "val_score", "loss_of_accuracy"):
        assert mode_of(name, mode=None) == "min"


class LogsObject(Net):
    """Logs a metric of torchmetrics under another name than the attribute's."""

    def __init__(self, *metrics):
        super().__init__()
        self.kept = torch.nn.ModuleList(metrics or [accuracy()])

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.kept[0](self.net(x), y)
        self.log("quality", self.kept[0])


KINDS = [
    lambda folder, **mode: ModelCheckpoint(folder, "{epoch}", monitor="quality", **mode),
    lambda folder, **mode: EarlyStopping("quality", **mode),
    lambda folder, **mode: CheckpointGC(monitor="quality", **mode),
]


def runs(tmp_path, callback, module=None, **arguments):
    saver = [ModelCheckpoint(tmp_path / "gc", save_top_k=-1)] if isinstance(callback, CheckpointGC) else []
    one = L.Trainer(
        **{**QUIET, "enable_checkpointing": True, "max_epochs": 2, **arguments}, callbacks=[callback, *saver]
    )
    one.fit(module or LogsObject(), loader(8), loader(8))
    return callback


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("sanity", [0, 2])
def test_the_metric_that_is_logged_decides(tmp_path, make, sanity):
    assert runs(tmp_path, make(tmp_path, mode="auto"), num_sanity_val_steps=sanity).mode == "max"
    with pytest.warns(UserWarning, match="by the metric that is logged under this name more is better") as caught:
        assert runs(tmp_path, make(tmp_path), num_sanity_val_steps=sanity).mode == "min"
    assert len(caught) == 1
    assert runs(tmp_path, make(tmp_path, mode="min"), num_sanity_val_steps=sanity).mode == "min"


def test_it_knows_better_than_the_name(tmp_path):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.kept[0](self.net(x), y)
        self.log("val_error", self.kept[0])

    for kind in (ModelCheckpoint(tmp_path, monitor="val_error", mode="auto"), EarlyStopping("val_error", mode="auto")):
        assert runs(tmp_path, kind, with_methods(LogsObject, validation_step)).mode == "max"


def test_a_run_that_logs_each_step_is_asked_before_its_first_save(tmp_path):
    def training_step(self, batch, batch_idx):
        x, y = batch
        self.kept[1](self.net(x), y)
        self.log("train_quality", self.kept[1])

    saver = ModelCheckpoint(tmp_path, monitor="train_quality", mode="auto", every_n_train_steps=1)
    assert runs(tmp_path, saver, calling(LogsObject(accuracy(), accuracy()), training_step)).mode == "max"


@pytest.mark.parametrize("make", KINDS)
def test_a_number_of_which_nothing_is_known_is_refused_in_the_sanity_check(tmp_path, make):
    logs_number = with_methods(LogsObject, validation_step=lambda self, batch, batch_idx: self.log("quality", 1.0))
    with pytest.raises(MisconfigurationException, match="it is unknown whether more or less of this metric is better"):
        runs(tmp_path, make(tmp_path, mode="auto"), logs_number, num_sanity_val_steps=1)


def test_a_resumed_run_keeps_what_the_logged_metric_decided(tmp_path):
    def run(folder, epochs, resumed=None):
        best = ModelCheckpoint(folder, "{epoch}", monitor="quality", mode="auto", save_top_k=2, save_last=True)
        stopping = EarlyStopping("quality", mode="auto", patience=9)
        arguments = {**QUIET, "enable_checkpointing": True, "max_epochs": epochs, "callbacks": [best, stopping]}
        L.Trainer(**arguments).fit(LogsObject(), loader(8), loader(8), ckpt_path=resumed)
        return best.best_model_score, best.kth_value, best.mode, stopping.state_dict()

    complete = run(tmp_path / "complete", 6)
    run(tmp_path / "parts", 3)
    assert run(tmp_path / "parts", 6, tmp_path / "parts" / "last.ckpt") == complete


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
    assert Direction("Owner", None, "max").first_mode == "max"


def test_other_modes_are_as_before():
    stopping = EarlyStopping("m", mode="max", min_delta=-0.1)
    assert (stopping.mode, stopping.min_delta, float(stopping.best_score)) == ("max", 0.1, -torch.inf)
    assert EarlyStopping("m").state_key == "EarlyStopping{'monitor': 'm', 'mode': 'min'}"
    assert EarlyStopping("m", mode="auto").state_key == "EarlyStopping{'monitor': 'm', 'mode': 'auto'}"


@pytest.mark.parametrize(
    ("monitor", "mode", "warns"), [("val_acc", "min", True), ("val_acc", "max", False), ("v", "min", False)]
)
def test_a_plateau_schedule_against_the_metric_is_a_warning(monitor, mode, warns):
    def plateau(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": monitor}}

    module = with_methods(Net(plateau), validation_step=lambda self, batch, batch_idx: self.log(monitor, 1.0))
    text = f"ReduceLROnPlateau reads '{monitor}' with mode='min', its default, but by its name more is better"
    with pytest.warns(UserWarning, match=text) if warns else nullcontext():
        trainer().fit(module, loader(4), loader(4))


class Measures(Net):
    """A metric of torchmetrics under its attribute's name: 0.5 in the first epoch, then more, then less."""

    right = (2, 4, 3)

    def __init__(self):
        super().__init__()
        self.val_acc = MulticlassAccuracy(3, average="micro")

    def validation_step(self, batch, batch_idx):
        target = torch.zeros(4, dtype=torch.long)
        self.val_acc((torch.arange(4) >= self.right[self.trainer.current_epoch]).long(), target)
        self.log("val_acc", self.val_acc)


@pytest.mark.parametrize(
    ("mode", "epoch", "score", "warns"),
    [(None, 0, 0.5, 1), ("auto", 1, 1.0, 0), ("max", 1, 1.0, 0), ("min", 0, 0.5, 0)],
)
def test_the_best_of_an_accuracy(tmp_path, mode, epoch, score, warns):
    """Without a mode the smallest is kept, as in Lightning, with one warning before training; "auto" keeps the best."""
    steps = []

    notes = calling(Measures, training_step=lambda self, batch, batch_idx: steps.append(len(caught)))
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="val_acc", mode=mode)
    arguments = {**QUIET, "enable_checkpointing": True, "max_epochs": 3, "callbacks": [best], "num_sanity_val_steps": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        L.Trainer(**arguments).fit(notes, loader(4), loader(4))
    assert [path.name for path in tmp_path.iterdir()] == [f"epoch={epoch}.ckpt"]
    assert float(best.best_model_score) == score
    texts = [str(one.message) for one in caught if "without a mode keeps the smallest" in str(one.message)]
    assert len(texts) == warns
    assert steps[0] >= warns, "before the first step"
