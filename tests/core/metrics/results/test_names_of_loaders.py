"""One name logged from several loaders is one value over all their samples, and numbers stay exact."""

from __future__ import annotations

import math
import warnings

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from lightlib.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightlib.core.metrics.results import exact_tensor, to_floats
from lightlib.errors import LoggingError
from lightlib.loggers import CSVLogger
from lightlib.report import PossibleUserWarning
from tests.runs.plain import Net, batches, quiet_trainer, subclass, with_methods

FIRST, SECOND = torch.arange(8.0), torch.arange(5.0) + 100
REDUCTIONS = {
    "mean": torch.cat([FIRST, SECOND]).mean().item(),
    "sum": torch.cat([FIRST, SECOND]).sum().item(),
    "min": 0.0,
    "max": 104.0,
}


def loaders(size=4):
    return [DataLoader(TensorDataset(data), batch_size=size) for data in (FIRST, SECOND)]


class Shared(Net):
    """Logs one name with each of several loaders."""

    def __init__(self, reduction="mean", **options):
        super().__init__()
        self.reduction, self.options = reduction, options

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        value = getattr(batch[0], self.reduction)()
        self.log("v", value, reduce_fx=self.reduction, add_dataloader_idx=False, **self.options)

    test_step = validation_step


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("stage", ["validate", "test"])
def test_a_value_over_all_loaders(stage, reduction):
    trainer = quiet_trainer()
    found = getattr(trainer, stage)(Shared(reduction), loaders(), verbose=False)
    assert found == [{"v": pytest.approx(REDUCTIONS[reduction])}] * 2
    assert trainer.callback_metrics["v"].item() == pytest.approx(REDUCTIONS[reduction])


def test_the_monitor_compares_that_value(tmp_path):
    saver = ModelCheckpoint(tmp_path, monitor="v")
    stopping = EarlyStopping("v")
    trainer = quiet_trainer(callbacks=[saver, stopping], enable_checkpointing=True)
    trainer.fit(Shared(), batches(2), loaders())
    assert saver.best_model_score.item() == pytest.approx(REDUCTIONS["mean"])
    assert stopping.best_score.item() == pytest.approx(REDUCTIONS["mean"])


def test_a_metric_object_over_all_loaders():
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.mean.update(batch[0])
        self.log("v", self.mean, add_dataloader_idx=False)

    module = with_methods(Net, validation_step)
    module.mean = MeanMetric()
    found = quiet_trainer().validate(module, loaders(), verbose=False)
    assert found == [{"v": pytest.approx(REDUCTIONS["mean"])}] * 2


def test_a_metric_object_for_each_loader_is_refused():
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.means[dataloader_idx].update(batch[0])
        self.log("v", self.means[dataloader_idx], add_dataloader_idx=False)

    module = with_methods(Net, validation_step)
    module.means = torch.nn.ModuleList([MeanMetric(), MeanMetric()])
    with pytest.raises(LoggingError, match="leave out add_dataloader_idx=False, or log one metric object"):
        quiet_trainer().validate(module, loaders(), verbose=False)


def test_only_the_loaders_that_log_it_have_it():
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        if dataloader_idx == 1:
            self.log("v", batch[0].mean(), add_dataloader_idx=False)
        self.log("each", batch[0].mean())

    first, second = quiet_trainer().validate(with_methods(Net, validation_step), loaders(), verbose=False)
    assert first == {"each/dataloader_idx_0": pytest.approx(FIRST.mean().item())}
    expected = pytest.approx(SECOND.mean().item())
    assert second == {"v": expected, "each/dataloader_idx_1": expected}


InTwoHooks = subclass(
    Net,
    validation_step=lambda self, batch, batch_idx: self.log("v", 1.0),
    on_validation_epoch_end=lambda self: self.log("v", 5.0),
)


class LogsToo(Callback):
    def on_validation_batch_end(self, trainer, module, *args):
        module.log("v", 9.0)


@pytest.mark.parametrize(
    ("module", "callbacks", "second", "value"),
    [
        (InTwoHooks, [], "on_validation_epoch_end", 5.0),
        (Shared, [LogsToo()], "on_validation_batch_end", 9.0),
    ],
)
def test_one_name_in_two_hooks_is_a_warning(module, callbacks, second, value):
    with pytest.warns(PossibleUserWarning, match=rf"'v'.*`validation_step` and in `{second}`(.|\n)*another name"):
        found = quiet_trainer(callbacks=callbacks).validate(module(), loaders()[0], verbose=False)
    assert found == [{"v": value}]


def test_names_that_do_not_meet_are_no_warning():
    def training_step(self, batch, batch_idx):
        loss = Net.training_step(self, batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=False)
        return loss

    def on_train_epoch_end(self):
        self.log("loss_of_epoch", 1.0)

    def validation_step(self, batch, batch_idx):
        self.log("loss", 2.0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = with_methods(Net, training_step, on_train_epoch_end, validation_step)
        quiet_trainer(max_epochs=2).fit(module, batches(2), loaders()[0])


# exact numbers
VALUES = {
    "big": 16777217,
    "bigger": 123456789012,
    "biggest": 2**53 + 1,
    "of_numpy": numpy.int64(16777219),
    "of_torch": torch.tensor(16777221),
    "double": torch.tensor(0.1, dtype=torch.float64),
    "double_of_numpy": numpy.float64(0.1),
    "float": 0.1,
    "flag": True,
}


class Logs(Net):
    def training_step(self, batch, batch_idx):
        for name, value in VALUES.items():
            self.log(name, value, on_step=True, on_epoch=False)
        self.log("tokens", 16777216 if batch_idx == 0 else 1, on_step=False, on_epoch=True, reduce_fx="sum")
        return super().training_step(batch, batch_idx)


def test_whole_numbers_and_doubles_stay_exact(tmp_path):
    logger = CSVLogger(tmp_path, "", "")
    trainer = quiet_trainer(logger=logger, log_every_n_steps=1)
    with pytest.warns(UserWarning, match="got an integer tensor"):
        trainer.fit(Logs(), batches(3))
    for name, value in VALUES.items():
        kept = trainer.callback_metrics[name].item()
        assert kept == (value if isinstance(value, int) else pytest.approx(float(value), rel=1e-7)), name
    assert trainer.callback_metrics["double"].item() == 0.1
    assert trainer.callback_metrics["tokens"].item() == 16777218
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    assert [row["epoch"] for row in rows] == ["0"] * 4
    for name, value in VALUES.items():
        written = rows[0][name]
        assert (int(float(written)) if name == "of_torch" else float(written)) == float(value), name
    assert rows[0]["biggest"] == str(2**53 + 1)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, torch.float32),
        (2**40, torch.int64),
        (0.5, torch.float32),
        (2.0**40, torch.float64),
        (math.inf, torch.float32),
    ],
)
def test_the_type_that_holds_a_number(value, dtype):
    tensor = exact_tensor(value)
    assert (tensor.dtype, tensor.item()) == (dtype, value)


def test_floats_but_for_large_whole_numbers():
    assert to_floats({"n": 3, "large": 2**60 + 1, "t": torch.tensor(2)}) == {"n": 3.0, "large": 2**60 + 1, "t": 2.0}
