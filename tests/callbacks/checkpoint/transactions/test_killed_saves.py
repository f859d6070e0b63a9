"""A run that is killed at any file operation and restarted keeps the very same checkpoints."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from lightlib.callbacks import Callback, CheckpointGC, ModelCheckpoint
from tests.callbacks.killed import Death, Files, command, outcome

KINDS = {
    "latest and last": lambda: [ModelCheckpoint(save_last=True)],
    "best two and last": lambda: [ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True)],
    "link": lambda: [ModelCheckpoint(monitor="val_loss", save_top_k=1, save_last="link")],
    "two callbacks": lambda: [
        ModelCheckpoint(monitor="val_loss", filename="best-{epoch}", save_top_k=1),
        ModelCheckpoint(every_n_train_steps=2, save_last=True, filename="step-{step}"),
    ],
    "one name for two": lambda: [
        ModelCheckpoint(monitor="val_loss", mode="max"),
        ModelCheckpoint(monitor="val_loss", save_last=True),
    ],
    "in the background": lambda: [ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True, async_save=True)],
    "directories": lambda: [ModelCheckpoint(monitor="val_loss", save_last=True, format="directory")],
    "at a step, by its validation": lambda: [
        ModelCheckpoint(monitor="val_loss", every_n_train_steps=3, save_last=True, filename="{step}-{val_loss}")
    ],
    "newest two and last": lambda: [ModelCheckpoint(keep_last=2, save_last=True)],
    "newest two of steps, in the background": lambda: [
        ModelCheckpoint(keep_last=2, every_n_train_steps=2, save_begin=3, async_save=True, filename="{step}")
    ],
    "swept": lambda: [
        ModelCheckpoint(every_n_train_steps=1, save_top_k=-1, save_last=True),
        CheckpointGC(save_trial_best=1, save_trial_latest=2, monitor="val_loss"),
    ],
}


def at_places(count, number=5):
    """Return some of `count` operations, with the first and the last; campaigns cover all of them."""
    return sorted({round(1 + place * (count - 1) / (number - 1)) for place in range(number)})


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_a_file_operation(tmp_path, kind):
    callbacks = KINDS[kind]
    with Files() as files:
        _, made = command(tmp_path / "whole", callbacks)
    expected = outcome(tmp_path / "whole", made)
    for k in at_places(files.count):
        folder = tmp_path / str(k)
        with pytest.raises(Death), Files(dies_at=k):
            command(folder, callbacks)
        _, made = command(folder, callbacks)
        assert outcome(folder, made) == expected, f"killed at operation {k} of {files.count}"


@pytest.mark.parametrize("kind", ["best two and last", "two callbacks", "in the background"])
def test_goes_on_from_the_last_one_although_there_may_be_a_newer(tmp_path, kind):
    callbacks = KINDS[kind]
    with Files() as files:
        _, made = command(tmp_path / "whole", callbacks)
    expected = outcome(tmp_path / "whole", made)
    for k in at_places(files.count, number=6):
        folder = tmp_path / str(k)
        with pytest.raises(Death), Files(dies_at=k):
            command(folder, callbacks)
        last = list(folder.rglob("last*.ckpt"))
        _, made = command(folder, callbacks, ckpt="last" if last else "auto")
        assert outcome(folder, made) == expected, f"killed at operation {k} of {files.count}"


@pytest.mark.parametrize("kind", ["best two and last", "two callbacks", "in the background"])
def test_killed_again_and_again(tmp_path, kind):
    callbacks = KINDS[kind]
    _, made = command(tmp_path / "whole", callbacks)
    expected = outcome(tmp_path / "whole", made)
    for k in (9, 14, 3, 7, 1, 11):
        with contextlib.suppress(Death), Files(dies_at=k):
            command(tmp_path / "killed", callbacks)
    _, made = command(tmp_path / "killed", callbacks)
    assert outcome(tmp_path / "killed", made) == expected


class Interrupt(Callback):
    """Ctrl-C, at one moment."""

    not_in_checkpoint = ("batch",)

    def __init__(self, hook, batch):
        setattr(self, hook, self.press)
        self.batch = batch

    def press(self, trainer, *_):
        if trainer.progress.batch == self.batch and not trainer.sanity_checking:
            self.batch = None
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("kind", ["link", "two callbacks", "in the background", "at a step, by its validation"])
@pytest.mark.parametrize(
    ("hook", "batch"),
    [
        ("on_train_batch_end", 1),
        ("on_train_batch_end", 3),
        ("on_train_batch_end", 9),
        ("on_validation_batch_end", 6),
        ("on_train_epoch_end", 6),
    ],
)
def test_interrupted(tmp_path, kind, hook, batch):
    _, made = command(tmp_path / "whole", KINDS[kind])
    expected = outcome(tmp_path / "whole", made)
    with pytest.raises(SystemExit):
        command(tmp_path / "stopped", lambda: [*KINDS[kind](), Interrupt(hook, batch)])
    assert list((tmp_path / "stopped").rglob("interrupted.ckpt"))
    _, made = command(tmp_path / "stopped", KINDS[kind])
    assert outcome(tmp_path / "stopped", made) == expected
