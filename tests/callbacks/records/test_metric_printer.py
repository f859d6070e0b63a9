"""MetricPrinter: lines at the right batches, with the numbers of a plain loop."""

from __future__ import annotations

import re

import numpy
import pytest
import torch

from lightlib.callbacks import MetricPrinter
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.runs.modules import Validated
from tests.runs.plain import QUIET, Net, calling, loader, with_methods
from tests.runs.saves_at import SavesAt

NUMBER = r"-?\d+\.\d{4}"
TRAIN = re.compile(
    r"(Epoch\(train\) \[\d+\]|Iter\(train\) )\[(\d+)/(\d+|\?)\]  lr: (\d\.\d{4}e-\d\d)  eta: (\d\d:\d\d:\d\d|\?)  "
    rf"time: {NUMBER}  data_time: {NUMBER}  ips: \d+\.\d  memory: \d+  loss: ({NUMBER})(?:  (.*))?"
)


class Two(Net):
    """Returns two numbers and scores, and logs for the epoch."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train/mean", loss, on_step=False, on_epoch=True)
        return {"loss": loss, "twice": loss * 2, "scores": torch.zeros(4, 3), "index": batch_idx}

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]


class Validates(Two):
    def validation_step(self, batch, batch_idx):
        self.log("val/loss", Net.training_step(self, batch, batch_idx))

    test_step = validation_step


def plain_losses(data, epochs):
    """The losses and the learning rates of a plain loop."""
    model = Two()
    (optimizer,), (schedule,) = model.configure_optimizers()
    losses, rates = [], []
    for _ in range(epochs):
        for x, y in data:
            loss = torch.nn.functional.cross_entropy(model.net(x), y)
            optimizer.zero_grad()
            loss.backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule["scheduler"].step()
            losses.append(loss.item())
    return losses, rates


def lines_of(capsys, printer, module, *loaders, **settings):
    run = Trainer(**QUIET, callbacks=[printer], **{"max_epochs": 2, **settings})
    run.fit(module, *loaders)
    return capsys.readouterr().out.splitlines()


def parsed(lines):
    found = [TRAIN.fullmatch(line) for line in lines]
    assert all(found), lines
    return [match.groups() for match in found]


@pytest.mark.parametrize("arguments", [{"accumulate_grad_batches": 4}, {"global_batch_size": 16}])
def test_the_number_of_steps_where_batches_are_accumulated(capsys, arguments):
    printer = MetricPrinter(10, by_epoch=False)
    lines = lines_of(capsys, printer, Two(), loader(400), max_steps=10, max_epochs=-1, **arguments)  # batches of 4
    beginnings = [line.split("  lr:")[0] for line in lines if "  lr:" in line]
    assert beginnings == [f"Iter(train) [{n}/40]  step: {n // 4}" for n in (10, 20, 30, 40)]


def test_lines_by_epoch(capsys):
    data = loader(100)  # 25 batches
    lines = lines_of(capsys, MetricPrinter(window=3), Two(), data)
    losses, rates = plain_losses(data, 2)
    steps = [line for line in lines if "train/mean" not in line]
    expected = [(epoch, batch) for epoch in (1, 2) for batch in (10, 20)]
    assert [match[:3] for match in parsed(steps)] == [(f"Epoch(train) [{e}]", f"{b}", "25") for e, b in expected]
    for (epoch, batch), match in zip(expected, parsed(steps), strict=True):
        end = (epoch - 1) * 25 + batch
        assert float(match[3]) == pytest.approx(rates[end - 1], rel=1e-4)
        mean = numpy.mean(losses[end - 3 : end])
        assert match[5] == f"{mean:.4f}"
        assert match[6] == f"twice: {2 * mean:.4f}  index: {batch - 2:.4f}"
    means = [f"{numpy.mean(losses[start : start + 25]):.4f}" for start in (0, 25)]
    assert [lines[2], lines[5]] == [
        f"Epoch(train) [{epoch}][25/25]  train/mean: {mean}" for epoch, mean in zip((1, 2), means, strict=True)
    ]
    assert len(lines) == 6


def test_lines_by_batches_of_the_run(capsys):
    lines = lines_of(capsys, MetricPrinter(20, by_epoch=False), Two(), loader(100))
    places = [line.split("  ")[0] for line in lines]
    assert places == [f"Iter(train) [{done}/50]" for done in (20, 25, 45, 50)]
    lines = lines_of(capsys, MetricPrinter(5, by_epoch=False), Two(), loader(100), max_steps=7, max_epochs=-1)
    assert [line.split("  ")[0] for line in lines] == ["Iter(train) [5/7]", "Iter(train) [7/7]"]


@pytest.mark.parametrize(
    ("window", "method", "begin"), [("epoch", "median", 25), ("global", "max", 0), (4, "min", 41), (1, "latest", 44)]
)
def test_windows_and_methods(capsys, window, method, begin):
    data = loader(100)
    printer = MetricPrinter(20, window=window, smoothing={"loss": method}, digits=4)
    lines = lines_of(capsys, printer, Two(), data)
    losses, _ = plain_losses(data, 2)
    function = {"median": numpy.median, "max": max, "min": min, "latest": lambda values: values[-1]}[method]
    assert parsed([lines[2]])[0][5] == f"{function(losses[begin:45]):.4f}"


def test_names_of_loaders_stay(capsys):
    data = {"clean": loader(8), "noisy": loader(8)}
    Trainer(**QUIET, callbacks=[MetricPrinter(hierarchy=False)]).validate(Validated(), data, verbose=False)
    assert re.search(rf"\]  val_loss/clean: {NUMBER}  val_loss/noisy: {NUMBER}  time", capsys.readouterr().out)


def test_validation_and_test(capsys):
    printer = MetricPrinter(hierarchy=False)
    run = Trainer(**QUIET, callbacks=[printer], max_epochs=2)
    module, data = Validates(), loader(48)
    run.fit(module, data, data)
    lines = capsys.readouterr().out.splitlines()
    times = rf"  time: {NUMBER}  data_time: {NUMBER}"
    patterns = [
        pattern
        for epoch in (1, 2)
        for pattern in (
            rf"Epoch\(train\) \[{epoch}\]\[10/12\]  .*",
            rf"Epoch\(val\) \[{epoch}\]\[10/12\]  eta: 00:00:0\d{times}  memory: \d+",
            rf"Epoch\(val\) \[{epoch}\]\[12/12\]  loss: ({NUMBER}){times}",
            rf"Epoch\(train\) \[{epoch}\]\[12/12\]  mean: {NUMBER}",
        )
    ]
    found = [re.fullmatch(pattern, line) for pattern, line in zip(patterns, lines, strict=True)]
    assert all(found), lines
    assert found[6][1] == f"{run.callback_metrics['val/loss']:.4f}"
    run.test(module, data, verbose=False)
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"Epoch\(test\) \[12/12\]  loss: {NUMBER}{times}", lines[-1]), lines
    assert len(lines) == 2


def test_the_sanity_check_prints_nothing(capsys):
    settings = {**QUIET, "num_sanity_val_steps": 2, "limit_train_batches": 1, "max_epochs": 1}
    Trainer(**settings, callbacks=[MetricPrinter()]).fit(Validates(), loader(8), loader(8))
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "Epoch(val) [1][2/2]",
        "Epoch(train) [1][1/1]",
    ]


def test_the_remaining_time_falls(capsys, monkeypatch):
    """Each batch takes ten seconds of a clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr("lightlib.callbacks.records.metric_printer.monotonic", lambda: now[0])

    def training_step(self, batch, batch_idx):
        now[0] += 10

    lines = lines_of(capsys, MetricPrinter(), calling(Two, training_step), loader(100))
    found = parsed([line for line in lines if "eta" in line])
    assert [match[4] for match in found] == ["00:06:40", "00:05:00", "00:02:30", "00:00:50"]
    assert "time: 10.0000  data_time" in lines[0]


def test_a_resumed_run_prints_the_same_values(capsys, tmp_path):
    def printed(resumed=None):
        torch.manual_seed(0)
        callbacks = [MetricPrinter(5, window=20), *([SavesAt(tmp_path / "saved.ckpt", 28)] if resumed is None else [])]
        Trainer(**QUIET, callbacks=callbacks, max_epochs=2).fit(Two(), loader(100), ckpt_path=resumed)
        lines = capsys.readouterr().out.splitlines()
        return [re.sub(r"eta: .*  memory: \d+", "", line) for line in lines]

    whole = printed()
    again = printed(tmp_path / "saved.ckpt")
    assert again == whole[-len(again) :]
    assert len(again) == 6
    assert "twice" in again[0]


def test_small_values_keep_their_digits(capsys):
    small = with_methods(training_step=lambda self, batch, batch_idx: self.loss(batch) * 1e-6)
    (line,) = lines_of(capsys, MetricPrinter(digits=2), small, loader(40), max_epochs=1)
    assert re.search(r"loss: \d\.\d\de-0[67]$", line), line


def test_bad_input():
    with pytest.raises(
        MisconfigurationException, match=r"every_n_batches=0\)(.|\n)*MetricPrinter\(every_n_batches=10\)"
    ):
        MetricPrinter(0)
    with pytest.raises(ArgumentTypeError, match=r"every_n_batches=2\.5"):
        MetricPrinter(2.5)
    with pytest.raises(UnknownNameError, match=r"Unknown window of MetricPrinter 'epochs'\. Did you mean 'epoch'"):
        MetricPrinter(window="epochs")
    with pytest.raises(UnknownNameError, match=r"Unknown method of MetricPrinter 'avg'"):
        MetricPrinter(smoothing={"loss": "avg"})
    with pytest.raises(ArgumentTypeError, match=r"smoothing='median'(.|\n)*a dict"):
        MetricPrinter(smoothing="median")
    with pytest.raises(MisconfigurationException, match=r"digits=-1\)"):
        MetricPrinter(digits=-1)
