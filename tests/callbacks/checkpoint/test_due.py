"""`last.ckpt`, and a warning, in runs that would save after validations and have none."""

from __future__ import annotations

import pytest

from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint import load
from tests.runs.plain import Net, loader, quiet_trainer, same_weights

WARNING = "ModelCheckpoint saves after validations, and this run has none, so {} is saved."


class Validates(Net):
    def validation_step(self, batch, batch_idx):
        self.log("v", 1.0)


def fitted(folder, checkpoint, validates=False, resumed=None, **arguments):
    module = (Validates if validates else Net)()
    one = quiet_trainer(**{"max_epochs": 2, "enable_checkpointing": True, "callbacks": [checkpoint]} | arguments)
    one.fit(module, loader(20), *([loader(4)] if validates else []), ckpt_path=resumed)
    assert one.global_step == load(folder / "last.ckpt")["global_step"] if checkpoint.save_last else True
    return sorted(path.name for path in folder.glob("*")), module


NEVER = [
    (False, {}),
    (True, {"limit_val_batches": 0}),
    (True, {"check_val_every_n_epoch": 3}),
]


@pytest.mark.parametrize(("validates", "arguments"), NEVER)
@pytest.mark.parametrize("options", [{}, {"monitor": "v"}, {"save_top_k": -1}, {"every_n_epochs": 2}])
def test_only_last_is_saved_with_a_warning(tmp_path, validates, arguments, options):
    callback = ModelCheckpoint(tmp_path, save_last=True, save_on_train_epoch_end=False, **options)
    with pytest.warns(UserWarning, match=WARNING.format("only the last checkpoint")):
        assert fitted(tmp_path, callback, validates, **arguments)[0] == ["last.ckpt"]


@pytest.mark.parametrize(("validates", "arguments"), NEVER)
def test_nothing_is_saved_with_a_warning(tmp_path, validates, arguments):
    callback = ModelCheckpoint(tmp_path, save_on_train_epoch_end=False)
    with pytest.warns(UserWarning, match=WARNING.format("no checkpoint")):
        assert fitted(tmp_path, callback, validates, **arguments)[0] == []


def test_the_default_with_rare_validations(tmp_path):
    with pytest.warns(UserWarning, match=WARNING.format("no checkpoint")):
        assert fitted(tmp_path, ModelCheckpoint(tmp_path), True, check_val_every_n_epoch=3)[0] == []


def test_last_alone_needs_no_warning(tmp_path):
    callback = ModelCheckpoint(tmp_path, save_last=True, save_top_k=0, save_on_train_epoch_end=False)
    assert fitted(tmp_path, callback)[0] == ["last.ckpt"]


@pytest.mark.parametrize("arguments", [{"check_val_every_n_epoch": 2}, {"val_check_interval": 3}, {"max_steps": 7}])
@pytest.mark.parametrize("save_last", [True, "link"])
def test_last_is_the_end_of_training_after_the_last_validation(tmp_path, arguments, save_last):
    callback = ModelCheckpoint(tmp_path, "{epoch}", save_last=save_last, save_on_train_epoch_end=False)
    names, module = fitted(tmp_path, callback, True, max_epochs=3, **{"max_steps": -1} | arguments)
    assert "last.ckpt" in names
    saved = Validates()
    saved.load_state_dict(load(tmp_path / "last.ckpt")["state_dict"])
    assert same_weights(saved, module)


def test_the_last_epoch_is_in_its_name(tmp_path):
    class Named(ModelCheckpoint):
        CHECKPOINT_NAME_LAST = "{epoch}-last"

    callback = Named(tmp_path, save_last=True, save_top_k=0, save_on_train_epoch_end=False)
    quiet_trainer(max_epochs=3, check_val_every_n_epoch=2, enable_checkpointing=True, callbacks=[callback]).fit(
        Validates(), loader(8), loader(4)
    )
    assert [path.name for path in tmp_path.glob("*")] == ["epoch=2-last.ckpt"]


def test_a_longer_run_continues_from_it(tmp_path):
    def run(folder, epochs, resumed=None):
        callback = ModelCheckpoint(folder, save_last=True, save_top_k=0, save_on_train_epoch_end=False)
        return fitted(folder, callback, True, resumed, max_epochs=epochs, check_val_every_n_epoch=2)[1]

    longer = run(tmp_path / "longer", 5)
    run(tmp_path / "parts", 3)
    assert same_weights(longer, run(tmp_path / "parts", 5, tmp_path / "parts" / "last.ckpt"))
