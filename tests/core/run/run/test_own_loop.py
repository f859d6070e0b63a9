"""A loop of the user's in 20 lines, with callbacks, loggers, checkpoints and resume."""

from __future__ import annotations

import csv
import inspect
import io
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from lightlib.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightlib.core.run.loop import evaluate
from lightlib.core.run.parts import VALIDATION
from lightlib.core.trainer import Trainer
from lightlib.loggers import CSVLogger
from tests.runs.plain import QUIET, Net, batches, momentum, network, same_weights


class Twice(Trainer):
    """Lets the module step with each batch as it likes, and validates after each epoch."""

    def run_training(self, run):
        hooks, data, progress = run.hooks, run.train_data, run.progress
        hooks.on_train_start()
        run.begin_training()
        while not run.plan.done(progress) and not run.stopping():
            run.begin_epoch()
            while not data.exhausted:
                batch, i = next(data), progress.epoch_batch
                hooks.on_train_batch_start(batch, i)
                loss = run.module.step(*batch, run.optimization.optimizers[0])
                progress.end_batch(True)
                hooks.on_train_batch_end({"loss": loss}, batch, i)
                run.logs.write_step()
                run.saver.serve_requests()
            evaluate(run, VALIDATION)
            run.end_validation()
            hooks.on_train_epoch_end()
            run.logs.write_epoch()
            progress.end_epoch()
            data.end_epoch()
        run.end_training()


class Stepped(Net):
    """Its step, which the loop calls, makes two optimizer steps with each batch."""

    def __init__(self):
        super().__init__(momentum)

    def step(self, x, y, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            loss = cross_entropy(self.net(x), y)
            loss.backward()
            optimizer.step()
        return loss.detach()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("loss", outputs["loss"])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


def by_hand(data, epochs):
    net = network()
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(epochs):
        for x, y in data:
            for _ in range(2):
                optimizer.zero_grad()
                loss = cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
    return net, losses


def trainer(folder, *callbacks, **arguments):
    saves = ModelCheckpoint(Path(folder, "saved"), "{step}", every_n_train_steps=2, save_top_k=-1)
    options = {**QUIET, "logger": CSVLogger(folder), "enable_checkpointing": True, "log_every_n_steps": 1}
    return Twice(**options, **{"max_epochs": 3, "callbacks": [saves, LearningRateMonitor(), *callbacks], **arguments})


def test_it_has_twenty_lines():
    lines = inspect.getsource(Twice.run_training).splitlines()
    assert len(lines) - 1 <= 20


def test_callbacks_loggers_and_checkpoints(tmp_path):
    module, data = Stepped(), batches(3)
    own = trainer(tmp_path)
    own.fit(module, data, batches(2, seed=3))
    net, losses = by_hand(data, 3)
    assert same_weights(module.net, net)
    assert (own.global_step, own.current_epoch) == (9, 3)
    rows = list(csv.DictReader(io.StringIO(Path(own.log_dir, "metrics.csv").read_text())))
    assert [float(row["loss"]) for row in rows if row["loss"]] == losses
    assert sum(bool(row["val_loss"]) for row in rows) == 3
    assert sum(bool(row["lr-SGD"]) for row in rows) == 9
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [f"step={i}.ckpt" for i in (2, 4, 6, 8)]


def test_it_resumes_bit_for_bit(tmp_path):
    data, resumed = batches(3), Stepped()
    trainer(tmp_path).fit(Stepped(), data, batches(2, seed=3))
    trainer(tmp_path / "other").fit(resumed, data, batches(2, seed=3), ckpt_path=tmp_path / "saved" / "step=4.ckpt")
    assert same_weights(resumed.net, by_hand(data, 3)[0])


def test_a_callback_stops_it(tmp_path):
    stops = EarlyStopping("val_loss", patience=1, min_delta=100.0)
    own = trainer(tmp_path, stops, max_epochs=9)
    own.fit(Stepped(), batches(3), batches(2, seed=3))
    assert own.current_epoch == 2
