"""Shared by several tests: a module with all steps, a data module, a logger and a schedule."""

from __future__ import annotations

from lightlib.callbacks import LambdaCallback
from lightlib.core.module.datamodule import DataModule
from lightlib.loggers import Logger
from tests.runs.plain import Net, batches


class Steps(Net):
    """All four steps; `validation_step` logs the batch's mean."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("x", batch[0].mean(), batch_size=1)

    test_step = validation_step

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.net(batch[0])


class Data(DataModule):
    def __init__(self):
        super().__init__()
        self.stages = []

    def setup(self, stage):
        self.stages.append(stage)

    def train_dataloader(self):
        return batches(2)

    def val_dataloader(self):
        return batches(2, seed=3)

    def test_dataloader(self):
        return batches(1, seed=4)

    def predict_dataloader(self):
        return batches(3, seed=5)


class Keeps(Logger):
    """Remembers the numbers it was given."""

    name, version = "keeps", 0

    def __init__(self):
        self.given = []

    def log_metrics(self, metrics, step=None):
        self.given.append((step, dict(metrics)))

    def log_hyperparams(self, params, *args, **kwargs):
        pass


def on(**hooks):
    return LambdaCallback(**hooks)


class OwnSchedule:
    """A schedule that is no LRScheduler: it has a step and a state."""

    def __init__(self, optimizer=None):
        self.count = 0

    def step(self, *values):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Counts(Steps):
    """Counts the calls of its steps."""

    def __init__(self, configure=None):
        super().__init__(configure)
        self.calls = dict.fromkeys(("train", "sanity", "val", "test", "predict"), 0)

    def training_step(self, batch, batch_idx):
        self.calls["train"] += 1
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.calls["sanity" if self.trainer.sanity_checking else "val"] += 1

    def test_step(self, batch, batch_idx):
        self.calls["test"] += 1

    def predict_step(self, batch, batch_idx):
        self.calls["predict"] += 1
