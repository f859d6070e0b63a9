"""Runs that end within an epoch, resumed from a checkpoint that was written just before the end."""

from __future__ import annotations

import pytest

from lightlib.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from tests.runs.plain import Net, Rows, batches, quiet_trainer, same_weights


class Calls(Net):
    """Logs a mean of the epoch, and notes the calls around epochs."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("mean", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", float(self.global_step))

    def on_train_epoch_start(self):
        self.calls.append("epoch start")

    def on_train_epoch_end(self):
        self.calls.append("epoch end")

    def on_train_end(self):
        self.calls.append("train end")


WHOLE = ["epoch start", "epoch end", "epoch start", "epoch end", "train end"]  # four batches, and two of the next epoch


def fit(kind, *callbacks, **arguments):
    """Train for six steps, which an early stop or `max_steps` ends."""
    module, rows = Calls(), Rows()
    if kind == "early stop":
        callbacks = [EarlyStopping("val_loss", patience=2), *callbacks]
        options, val = {"max_epochs": 3, "val_check_interval": 2}, batches(1)
    else:
        options, val = {"max_epochs": -1, "max_steps": 6, "limit_val_batches": 0}, None
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    trainer = quiet_trainer(callbacks=callbacks, logger=rows, enable_checkpointing=saves, **options)
    trainer.fit(module, batches(4), val, **arguments)
    assert trainer.global_step == 6
    return module, [(step, values["mean"]) for step, values in rows.rows if "mean" in values]


@pytest.mark.parametrize("kind", ["early stop", "max_steps"])
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_end", "on_train_epoch_end", "on_train_end"])
def test_the_epoch_is_ended_once(tmp_path, hook, kind):
    if hook == "on_validation_end" and kind == "max_steps":
        pytest.skip("nothing is validated")

    def save(trainer, *args):
        if trainer.global_step == 6 and not trainer.sanity_checking:
            trainer.save_checkpoint(tmp_path / "file.ckpt")

    callback = LambdaCallback(**{hook: save})
    callback.priority = 0  # after EarlyStopping
    whole, rows = fit(kind, callback)
    assert whole.calls == WHOLE
    assert [step for step, _ in rows] == [4, 6]
    resumed, again = fit(kind, ckpt_path=tmp_path / "file.ckpt")
    assert resumed.calls == WHOLE
    assert again == ([] if hook == "on_train_end" else rows[1:])
    assert same_weights(whole.net, resumed.net)


def test_a_checkpoint_with_the_request_to_stop(tmp_path):
    """ModelCheckpoint saves after EarlyStopping has requested the stop, and before the epoch's end."""
    whole, rows = fit("early stop", ModelCheckpoint(tmp_path, monitor="val_loss", mode="max"))
    (path,) = tmp_path.iterdir()
    resumed, again = fit("early stop", ModelCheckpoint(tmp_path, monitor="val_loss", mode="max"), ckpt_path=path)
    assert (whole.calls, resumed.calls) == (WHOLE, WHOLE)
    assert again == rows[1:]


def test_a_second_fit_continues_within_the_epoch():
    """The first fit has ended its part of the epoch; the second does not repeat that before it trains."""
    module, trainer = Calls(), quiet_trainer(max_steps=6, max_epochs=-1, limit_val_batches=0)
    trainer.fit(module, batches(4))
    trainer.fit(module, batches(4))
    assert module.calls == WHOLE, "there was nothing to train"
    trainer.max_steps = 9
    trainer.fit(module, batches(4))
    assert module.calls == [*WHOLE, "epoch end", "epoch start", "epoch end", "train end"]
