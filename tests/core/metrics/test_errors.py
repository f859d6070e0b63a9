"""Bad input: values given to `self.log`, calls of it where it has no meaning, and unknown monitors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torchmetrics

from lightlib.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightlib.errors import LoggingError, MisconfigurationException
from lightlib.loggers.logger import DummyLogger
from lightlib.report import PossibleUserWarning
from tests.runs.bad_input import Net, Validated, loader, refused, refuses_fit, trainer, with_methods

WRONG = MisconfigurationException
NUMBER = "a real number, a tensor with one element, or a torchmetrics.Metric."
ONE = "a number, or a tensor with exactly one element."
A_PLACE = (
    "a training, validation or test step, or a hook around it, for instance on_train_start, on_train_batch_end, "
    "on_train_epoch_end or on_validation_epoch_end."
)


def logging(call):
    """Return a module with a training step that calls `call(self, loss)`."""

    def training_step(self, batch, batch_idx):
        self.steps += 1
        loss = self.loss(batch)
        call(self, loss)
        return loss

    return with_methods(Net, training_step)


MEAN = torchmetrics.MeanMetric
LOG = [
    (lambda s, loss: s.log(3, loss), "self.log got the name 3 (int).", "a string.", 'self.log("loss", loss)'),
    (lambda s, loss: s.log(["a"], loss), "self.log got the name ['a'] (list).", "a string.", 'self.log("loss", loss)'),
    (
        lambda s, loss: s.log("a", torch.ones(2)), "self.log('a', …) got a tensor of shape (2,).", ONE,
        "self.log('a', value.mean()), or one name per element.",
    ),
    (
        lambda s, loss: s.log("a", torch.ones(0)), "self.log('a', …) got a tensor of shape (0,).", ONE,
        "self.log('a', value.mean()), or one name per element.",
    ),
    (
        lambda s, loss: s.log("a", np.ones(2)), "self.log('a', …) got a ndarray of shape (2,).", ONE,
        "self.log('a', value.mean()), or one name per element.",
    ),
    (
        lambda s, loss: s.log("a", "x"), "self.log('a', …) got 'x' (str).", NUMBER,
        "self.log('a', number), one name per number.",
    ),
    (
        lambda s, loss: s.log("a", None), "self.log('a', …) got None (NoneType).", NUMBER,
        "self.log('a', number), one name per number.",
    ),
    (
        lambda s, loss: s.log("a", [1, 2]), "self.log('a', …) got [1, 2] (list).", NUMBER,
        "self.log('a', number), one name per number.",
    ),
    (lambda s, loss: s.log("a", {"b": 1}), "self.log('a', …) got {'b': 1} (dict).", NUMBER, "self.log_dict(values)"),
    (
        lambda s, loss: s.log("a", 1j), "self.log('a', …) got 1j (complex).", NUMBER,
        "self.log('a', number), one name per number.",
    ),
    (
        lambda s, loss: s.log("a", torch.tensor(1j)), "self.log('a', …) got tensor(0.+1.j) (Tensor).", NUMBER,
        "self.log('a', number), one name per number.",
    ),
    (
        lambda s, loss: s.log("a", torchmetrics.MetricCollection([MEAN()])),
        "self.log('a', …) got MetricCollection(***) (MetricCollection).", NUMBER, "self.log_dict(values)",
    ),
    (
        lambda s, loss: s.log_dict([("a", loss)]), "self.log_dict got [('a', ***)] (list).",
        "a dictionary of names and values, or a torchmetrics.MetricCollection.",
        'self.log_dict({"loss": loss, "accuracy": accuracy})',
    ),
    (
        lambda s, loss: (s.log("a", loss), s.log("a", loss, prog_bar=True, on_epoch=True)),
        "self.log('a', …) was called twice in `training_step` with different arguments: *** and then on_epoch=True.",
        "the same arguments for one name in one hook.",
        "give the second value another name, or make the arguments equal.",
    ),
    (
        lambda s, loss: s.log("a", loss, on_step=False, on_epoch=False),
        "self.log('a', on_step=False, on_epoch=False) would log nothing.", "at least one of the two to be True.",
        "set on_step=True, on_epoch=True, or leave out the call.",
    ),
    (
        lambda s, loss: s.log("a", loss, on_step="yes"), "self.log('a', on_step='yes').", "True or False.",
        "self.log('a', …, on_step=True)",
    ),
    (
        lambda s, loss: s.log("a", loss, prog_bar=3), "self.log('a', prog_bar=3).", "True or False.",
        "self.log('a', …, prog_bar=True)",
    ),
    (
        lambda s, loss: s.log("a", loss, reduce_fx="men"),
        "self.log('a', reduce_fx='men') uses an unknown reduction. Did you mean 'mean'?",
        "'mean', 'sum', 'min' or 'max', or torch's functions of these names.",
        "self.log('a', metric) with a torchmetrics.Metric for anything else.",
    ),
    (
        lambda s, loss: s.log("a", loss, reduce_fx=torch.median),
        "self.log('a', reduce_fx=median) uses an unknown reduction.***",
        "'mean', 'sum', 'min' or 'max', or torch's functions of these names.",
        "self.log('a', metric) with a torchmetrics.Metric for anything else.",
    ),
    (
        lambda s, loss: s.log("a/dataloader_idx_0", loss),
        "self.log got the name 'a/dataloader_idx_0', which contains '/dataloader_idx_'.",
        "a plain name; the suffix is added when there are several loaders.",
        "self.log('a', …), or add_dataloader_idx=False.",
    ),
    (
        lambda s, loss: s.log("a", loss, on_epoch=True, batch_size="3"), "self.log('a', …, batch_size='3').",
        "the number of samples that the value is the mean of, at least 0.", "self.log('a', …, batch_size=len(batch))",
    ),
    (
        lambda s, loss: s.log("a", loss, on_epoch=True, batch_size=-3), "self.log('a', …, batch_size=-3).",
        "the number of samples that the value is the mean of, at least 0.", "self.log('a', …, batch_size=len(batch))",
    ),
    (
        lambda s, loss: s.log("a", loss, batch_size=torch.ones(2)),
        "self.log('a', …, batch_size=a tensor of shape (2,)).",
        "the number of samples that the value is the mean of, at least 0.", "self.log('a', …, batch_size=len(batch))",
    ),
    (
        lambda s, loss: (s.log("a", MEAN()), s.log("a", MEAN())),
        "self.log('a', …) got another MeanMetric object, but a MeanMetric earlier in this epoch.",
        "the same metric object each time.",
        "build the metric once, in __init__, and log it: self.log('a', self.metric)",
    ),
    (
        lambda s, loss: (s.log("a", MEAN()), s.log("a", 0.5)),
        "self.log('a', …) got 0.5, but a MeanMetric earlier in this epoch.", "the same metric object each time.",
        "build the metric once, in __init__, and log it: self.log('a', self.metric)",
    ),
    (
        lambda s, loss: (s.log("a", 0.5), s.log("a", MEAN())),
        "self.log('a', …) got a MeanMetric, but a number before.", "a metric each time, or a number each time.",
        "give one of the two another name.",
    ),
    (
        lambda s, loss: s.log("a", MEAN(), metric_attribute="mean"),
        "self.log('a', metric, metric_attribute='mean'): this metric is no attribute of the module.",
        "a metric that was assigned to the module, so that its state is saved and moved with it.",
        "self.mean = metric in __init__, and self.log('a', self.mean)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "what", "expected", "fix"), LOG)
def test_what_is_logged(call, what, expected, fix):
    module = logging(call)
    with refused(LoggingError, what, expected, fix):
        trainer().fit(module, loader())
    assert module.steps == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda s, loss: s.log("a", np.float32(1)),
        lambda s, loss: s.log("a", np.array(1.0)),
        lambda s, loss: s.log("a", loss, on_epoch=True, batch_size=0),
        lambda s, loss: s.log("a", loss, on_epoch=True, batch_size=np.int64(2)),
        lambda s, loss: s.log("a", loss, on_epoch=True, batch_size=torch.tensor(2)),
        lambda s, loss: s.log("step", math.nan),
        lambda s, loss: s.log("a", loss, on_step=np.True_),
    ],
)
def test_what_may_be_logged(call):
    module = logging(call)
    trainer(log_every_n_steps=50).fit(module, loader())
    assert module.steps == 4


def test_a_step_that_is_nan():
    module = logging(lambda s, loss: s.log("step", math.nan))
    with pytest.warns(UserWarning, match="the logged value 'step' is nan at epoch 0, batch 0, step 1"):
        trainer(log_every_n_steps=1, logger=DummyLogger()).fit(module, loader())
    assert module.steps == 4


def test_a_new_metric_in_each_epoch():
    def on_train_epoch_start(self):
        self.metric = MEAN()

    def training_step(self, batch, batch_idx):
        self.metric(float(self.current_epoch))
        self.log("a", self.metric, on_epoch=True)
        return self.loss(batch)

    run = trainer(max_epochs=2)
    run.fit(with_methods(Net, on_train_epoch_start, training_step), loader())
    assert run.callback_metrics["a_epoch"] == 1.0


def test_an_integer_tensor():
    with pytest.warns(
        PossibleUserWarning, match=r"self.log\('a', …\) got an integer tensor \(torch.int64\); it is logged"
    ):
        trainer().fit(logging(lambda s, loss: s.log("a", torch.tensor(3))), loader())


PLACES = [
    ("setup", "in `setup`", "move the call into on_train_start."),
    ("on_fit_start", "in `on_fit_start`", "move the call into on_train_start."),
    ("on_sanity_check_start", "in `on_sanity_check_start`", "move the call into on_train_start."),
    ("on_train_end", "in `on_train_end`", "move the call into on_train_epoch_end."),
    ("on_fit_end", "in `on_fit_end`", "move the call into on_train_epoch_end."),
    ("on_fit_epoch_end", "in `on_fit_epoch_end`", "move the call into on_train_epoch_end."),
    ("on_validation_end", "in `on_validation_end`", "move the call into on_validation_epoch_end."),
    ("teardown", "in `teardown`", "move the call into on_train_epoch_end."),
    (
        "configure_optimizers", "outside of a run",
        "move the call into one of these hooks, or self.logger.log_metrics({'x': value}).",
    ),
    (
        "prepare_data", "outside of a run",
        "move the call into one of these hooks, or self.logger.log_metrics({'x': value}).",
    ),
    (
        "configure_model", "outside of a run",
        "move the call into one of these hooks, or self.logger.log_metrics({'x': value}).",
    ),
]  # fmt: skip


class TestPlaces:
    """Where `self.log` has no meaning."""

    @pytest.mark.parametrize(("hook", "where", "fix"), PLACES)
    def test_of_a_module(self, hook, where, fix):
        module = with_methods(Validated, **{hook: lambda self, *args: self.log("x", 1.0)})
        with refused(LoggingError, f"self.log('x', …) was called {where}, where it has no meaning.", A_PLACE, fix):
            trainer().fit(module, loader(), loader())
        assert module.steps == (4 if hook in ("on_train_end", "on_fit_end", "on_fit_epoch_end", "teardown") else 0)

    @pytest.mark.parametrize(
        ("hook", "fix"),
        [("setup", "move the call into on_train_start."), ("on_fit_end", "move the call into on_train_epoch_end.")],
    )
    def test_of_a_callback(self, hook, fix):
        callback = Callback()
        setattr(callback, hook, lambda trainer, module, *args: module.log("x", 1.0))
        what = f"self.log('x', …) was called in `{hook}`, where it has no meaning."
        with refused(LoggingError, what, A_PLACE, fix):
            trainer(callbacks=callback).fit(Net(), loader())

    def test_prediction(self):
        module = with_methods(predict_step=lambda self, batch, batch_idx: self.log("x", 1.0))
        fix = "return the value from predict_step, or self.logger.log_metrics({'x': value})."
        with refused(
            LoggingError, "self.log('x', …) was called in `predict_step`, where it has no meaning.", A_PLACE, fix
        ):
            trainer().predict(module, loader())

    def test_after_the_run(self):
        module = Net()
        trainer().fit(module, loader())
        fix = "move the call into one of these hooks, or self.logger.log_metrics({'x': value})."
        with refused(
            LoggingError, "self.log('x', …) was called outside of a run, where it has no meaning.", A_PLACE, fix
        ):
            module.log("x", 1.0)

    def test_each_step_in_a_hook_of_the_epoch(self):
        module = with_methods(on_train_epoch_end=lambda self: self.log("x", 1.0, on_step=True))
        with refused(
            LoggingError,
            "self.log('x', on_step=True) was called in `on_train_epoch_end`, which is called once per epoch.",
            "on_step=False there.",
            "self.log('x', …, on_step=False, on_epoch=True)",
        ):
            trainer().fit(module, loader())


class TestMonitors:
    """Names that were never logged; the error lists those that were."""

    @pytest.mark.parametrize(
        ("module", "hint", "expected"),
        [
            (Validated, " Did you mean 'val_loss'?", "one of 'val_loss'."),
            (Net, "", "a logged metric, but no metric was logged at all."),
        ],
    )
    @pytest.mark.filterwarnings("ignore:.*the sanity check logged no such metric")
    @pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
    def test_of_a_callback(self, tmp_path, kind, module, hint, expected):
        callback = kind(monitor="val_los", **({"dirpath": tmp_path} if kind is ModelCheckpoint else {}))
        data = (loader(), loader()) if module is Validated else (loader(),)
        with refused(
            WRONG,
            f"{kind.__name__}(monitor='val_los'): this metric was never logged.{hint}",
            expected,
            "log it with self.log('val_los', …)***",
        ):
            trainer(callbacks=callback, enable_checkpointing=kind is ModelCheckpoint).fit(module(), *data)
        assert list(tmp_path.iterdir()) == []

    def test_of_a_learning_rate_monitor_without_a_logger(self):
        error = (
            WRONG,
            "LearningRateMonitor has nowhere to log to: the Trainer has no logger.",
            "a logger, or a callback such as History that defines `on_log`.",
            "Trainer(logger=True), callbacks=[History(), LearningRateMonitor(…)], or leave LearningRateMonitor out.",
        )
        refuses_fit(Net(), error=error, callbacks=LearningRateMonitor())
