"""Limits that a hook has set: a resumed run has them, although the hook is not called again."""

from __future__ import annotations

import pytest
import torch

from lightlib.callbacks import Callback
from tests.runs.plain import Net, loader, quiet_trainer, same_weights
from tests.runs.saves_at import SavesAt


class Validates(Net):
    """Logs the step of each validation, and draws random numbers there."""

    def __init__(self):
        super().__init__(dropout=0.5)
        self.validated, self.steps = [], []

    def training_step(self, batch, batch_idx):
        self.steps.append((self.trainer.current_epoch, batch_idx, self.trainer.global_step))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.validated.append((self.trainer.current_epoch, self.trainer.global_step))


class Sets(Callback):
    """Sets attributes of the Trainer in a hook of an epoch."""

    def __init__(self, hook, epoch, **values):
        def set_values(trainer, *args):
            if trainer.current_epoch == epoch:
                for name, value in values.items():
                    setattr(trainer, name, value)

        setattr(self, hook, set_values)


CHANGES = [
    {"val_check_interval": 0.25},
    {"val_check_interval": 3},
    {"check_val_every_n_epoch": 2},
    {"max_epochs": 2},
    {"max_epochs": 4},
    {"max_steps": 13},
    {"accumulate_grad_batches": 2},
    {"log_every_n_steps": 1, "val_check_at_end": True, "max_epochs": 2},
]


def run(hook, changes, resumed=None, save=None, **arguments):
    torch.manual_seed(3 if resumed is None else 4)
    module = Validates()
    saves = [SavesAt(path, step) for path, step in save or ()]
    trainer = quiet_trainer(**{"max_epochs": 3, "callbacks": [Sets(hook, 1, **changes), *saves]} | arguments)
    trainer.fit(module, loader(32), loader(4), ckpt_path=resumed)
    return module, trainer


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("hook", ["on_train_epoch_start", "on_train_epoch_end"])
def test_a_resumed_run_has_them(tmp_path, changes, hook):
    whole, trainer = run(hook, changes)
    points = [(tmp_path / f"{step}.ckpt", step) for step in range(6, trainer.global_step)]
    run(hook, changes, save=points)
    for path, step in points:
        resumed, again = run(hook, changes, resumed=path)
        assert resumed.validated == whole.validated, step  # a checkpoint holds what was noted before
        assert resumed.steps == whole.steps, step
        assert same_weights(resumed, whole), step
        for name in changes:
            assert getattr(again, name) == getattr(trainer, name), step


def test_a_resumed_run_saves_them_again(tmp_path):
    whole, _ = run("on_train_epoch_start", {"val_check_interval": 0.25})
    run("on_train_epoch_start", {"val_check_interval": 0.25}, save=[(tmp_path / "a.ckpt", 10)])
    run("on_fit_end", {}, resumed=tmp_path / "a.ckpt", save=[(tmp_path / "b.ckpt", 12)])
    resumed, _ = run("on_fit_end", {}, resumed=tmp_path / "b.ckpt")
    assert resumed.validated == whole.validated


def test_the_programs_own_change_counts(tmp_path, caplog):
    changes = {"val_check_interval": 0.25, "max_epochs": 4}
    run("on_train_epoch_start", changes, save=[(tmp_path / "a.ckpt", 12)])
    with caplog.at_level("INFO", logger="lightlib"):
        resumed, trainer = run("on_fit_end", {}, resumed=tmp_path / "a.ckpt", val_check_interval=0.5)
    assert (trainer.val_check_interval, trainer.max_epochs) == (0.5, 4)
    assert resumed.validated[-4:] == [(2, 20), (2, 24), (3, 28), (3, 32)]
    text = (
        "trainer.val_check_interval was 1.0 when the saved run began and 0.25 in the checkpoint; this program has 0.5"
    )
    assert text in caplog.text


def test_a_hook_of_the_start_is_called_again_and_does_not_undo_a_later_one(tmp_path):
    def both(**arguments):
        module = Validates()
        sets = [Sets("on_train_start", 0, val_check_interval=0.5), Sets("on_train_start", 1, val_check_interval=0.5)]
        later = Sets("on_train_epoch_start", 1, val_check_interval=0.25)
        saves = [SavesAt(tmp_path / "a.ckpt", 10)] if not arguments else []
        quiet_trainer(max_epochs=3, callbacks=[*sets, later, *saves]).fit(module, loader(32), loader(4), **arguments)
        return module

    assert both().validated == both(ckpt_path=tmp_path / "a.ckpt").validated
