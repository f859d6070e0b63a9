"""Callbacks of one class are restored each from its own state, in any order of the callbacks."""

from __future__ import annotations

import pytest
import torch

from lightlib.callbacks import Callback, EarlyStopping, ModelCheckpoint
from tests.runs.plain import Net, batches, quiet_trainer


class Adds(Callback):
    """Adds a number after each batch, and keeps the sum at the start of training."""

    not_in_checkpoint = ("first",)

    def __init__(self, number):
        super().__init__()
        self.number, self.sum, self.first = number, 0, None

    @property
    def state_key(self):
        return f"Adds-{self.number}"

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]

    def on_train_start(self, trainer, module):
        self.first = self.sum

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.sum += self.number


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_callbacks_of_the_users(tmp_path, kind):
    first = quiet_trainer(callbacks=[Adds(1), Adds(10)])
    first.fit(Net(), batches(6))
    first.save_checkpoint(tmp_path / "a.ckpt", format=kind)
    ten, hundred, one = Adds(10), Adds(100), Adds(1)
    quiet_trainer(max_epochs=2, callbacks=[ten, hundred, one]).fit(Net(), batches(6), ckpt_path=tmp_path / "a.ckpt")
    assert (one.first, ten.first, hundred.first) == (6, 60, 0)
    assert (one.sum, ten.sum, hundred.sum) == (12, 120, 600)


class Scores(Net):
    """Logs a score that grows with the epoch, and one that falls."""

    def validation_step(self, batch, batch_idx):
        epoch = float(self.current_epoch)
        self.log_dict({"up": epoch, "down": -epoch})


def test_callbacks_of_lightlib(tmp_path):
    def callbacks(reverse):
        stops = [EarlyStopping(name, mode="min", patience=9) for name in ("up", "down")]
        saves = [
            ModelCheckpoint(tmp_path / name, monitor=name, mode="min", filename="{epoch}") for name in ("up", "down")
        ]
        return [*stops, *saves][:: -1 if reverse else 1]

    first = quiet_trainer(max_epochs=3, callbacks=callbacks(False), enable_checkpointing=True)
    first.fit(Scores(), batches(2), batches(1))
    first.save_checkpoint(tmp_path / "a.ckpt")
    second = quiet_trainer(max_epochs=4, callbacks=callbacks(True), enable_checkpointing=True)
    second.fit(Scores(), batches(2), batches(1), ckpt_path=tmp_path / "a.ckpt")
    waited = {one.monitor: one.wait_count for one in second.callbacks if isinstance(one, EarlyStopping)}
    assert waited == {"up": 3, "down": 0}  # the first epoch was the best of `up`, the fourth is that of `down`
    best = {one.monitor: one.best_model_score.item() for one in second.checkpoint_callbacks}
    assert best == {"up": 0.0, "down": -3.0}
    assert torch.load(tmp_path / "up" / "epoch=0.ckpt")["epoch"] in (0, 1)
