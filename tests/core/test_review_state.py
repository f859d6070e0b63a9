"""Bugs that a review found in what is logged and in what a Trainer says of its state."""

from __future__ import annotations

import logging
import sys

import pytest
import torch
import torchmetrics

from lightlib.core.trainer import Trainer
from lightlib.errors import LoggingError
from tests.core.plain import Net, batches, quiet_trainer
from tests.processes import programs

pytestmark = pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")


class TestLogging:
    def test_a_metric_of_several_numbers(self):
        class Validating(Net):
            def __init__(self):
                super().__init__()
                self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="none")

            def validation_step(self, batch, batch_idx):
                self.accuracy(self.net(batch[0]), batch[1])
                self.log("accuracy", self.accuracy)

        with pytest.raises(LoggingError, match=r"'accuracy', …\) got a metric whose value is a tensor of shape \(3,\)"):
            quiet_trainer().fit(Validating(), batches(1), batches(2))

    def test_the_logger_can_be_used_in_a_fast_dev_run(self):
        class Drawing(Net):
            def on_train_start(self):
                self.logger.experiment.add_image("input", torch.rand(1, 2, 2), 0)

        settings = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
        Trainer(fast_dev_run=True, **settings).fit(Drawing(), batches(2))
        assert Trainer(fast_dev_run=True, logger=False, **settings).loggers == []


class TestState:
    def test_stage(self):
        stages = []

        class Net2(Net):
            def on_train_start(self):
                self.note()

            def training_step(self, batch, batch_idx):
                self.note()
                return super().training_step(batch, batch_idx)

            def validation_step(self, batch, batch_idx):
                self.note()

            def note(self):
                stages.append((self.trainer.state.fn, self.trainer.state.stage, self.trainer.training))

        trainer = quiet_trainer(num_sanity_val_steps=1)
        trainer.fit(Net2(), batches(1), batches(1))
        training, validating = ("fit", "train", True), ("fit", "validate", False)
        assert stages == [("fit", "sanity_check", False), training, training, validating]
        assert trainer.state.stage is None

    @pytest.mark.processes
    def test_the_handler_of_messages_suits_python_3_10(self, monkeypatch):
        monkeypatch.delattr(logging.StreamHandler, "__class_getitem__", raising=False)
        code = "import logging; del logging.StreamHandler.__class_getitem__; import lightlib.report"
        if sys.version_info < (3, 11):
            code = "import lightlib.report"
        done = programs.interpreter("-c", code)
        assert done.returncode == 0, done.stderr
