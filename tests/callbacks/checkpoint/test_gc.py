"""CheckpointGC: the checkpoints that remain of a run, and of an experiment."""

from __future__ import annotations

import json
import os

import pytest
import torch

from lightlib.callbacks import CheckpointGC, ModelCheckpoint
from lightlib.callbacks.checkpoint.gc import sweep
from lightlib.checkpoint.storage import filesystem
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.callbacks.line import Line
from tests.runs.modules import Validated
from tests.runs.plain import batches, loader, quiet_trainer


def run(folder, *callbacks, losses, epochs=None, **arguments):
    trainer = Trainer(
        max_epochs=epochs or len(losses),
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **arguments,
    )
    trainer.fit(Line(losses))
    return trainer


def names(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(".ckpt"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"save_trial_best": 1}, r"monitor=None\) with save_experiment_best=0 and save_trial_best=1"),
        ({"save_experiment_best": 1, "monitor": "a"}, r"root=None(.|\n)*CheckpointGC\(root="),
        ({"save_trial_latest": -1, "monitor": "a"}, r"save_trial_latest=-1"),
    ],
)
def test_refused(arguments, text):
    with pytest.raises(MisconfigurationException, match=text):
        CheckpointGC(**arguments)


@pytest.mark.parametrize("value", [True, 1.5, "1"])
def test_wrong_type(value):
    with pytest.raises(ArgumentTypeError, match="an int >= 0"):
        CheckpointGC(save_trial_best=value, monitor="a")


@pytest.mark.parametrize("background", [False, True])
def test_the_best_and_the_latest_of_a_run(tmp_path, background):
    saver = ModelCheckpoint(tmp_path / "kept", save_top_k=-1, save_last=True, async_save=background)
    run(tmp_path, saver, CheckpointGC(save_trial_best=2, monitor="val_loss"), losses=[3, 1, 4, 0, 5, 9])
    assert names(saver.dirpath) == ["epoch=1-step=8.ckpt", "epoch=3-step=16.ckpt", "epoch=5-step=24.ckpt", "last.ckpt"]


def test_while_it_trains_the_newest_is_kept(tmp_path):
    saver = ModelCheckpoint(tmp_path / "kept", save_top_k=-1)
    seen = []

    class Look(CheckpointGC):
        def on_train_batch_start(self, trainer, *args):
            super().on_train_batch_start(trainer, *args)
            seen.append(names(saver.dirpath) if os.path.isdir(saver.dirpath) else [])

    run(tmp_path, saver, Look(0, 0, 0), losses=[3, 2])
    assert seen[0] == []
    assert seen[-1] == ["epoch=0-step=4.ckpt"]
    assert names(tmp_path) == []
    assert not (tmp_path / "kept").exists() or names(saver.dirpath) == []


def test_the_list_of_the_best_knows(tmp_path):
    saver = ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_top_k=-1)
    run(tmp_path, saver, CheckpointGC(save_trial_best=1, save_trial_latest=1, monitor="val_loss"), losses=[3, 1, 4, 5])
    assert sorted(os.path.basename(path) for path in saver.best_k_models) == names(saver.dirpath)
    assert os.path.basename(saver.best_model_path) == "epoch=1-step=8.ckpt"


def test_files_of_others_stay(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "epoch=9-step=9.ckpt").write_text("another run's")
    saver = ModelCheckpoint(tmp_path / "kept", save_top_k=-1)

    class Save(CheckpointGC):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "kept" / "by hand.ckpt")

    run(tmp_path, saver, Save(save_trial_best=0), losses=[3, 1])
    assert names(saver.dirpath) == ["by hand.ckpt", "epoch=1-step=8.ckpt", "epoch=9-step=9.ckpt"]


def test_the_target_of_a_link_stays(tmp_path):
    saver = ModelCheckpoint(tmp_path / "kept", save_top_k=-1, save_last="link")
    run(tmp_path, saver, CheckpointGC(0, 0, 0), losses=[3, 1])
    assert names(saver.dirpath) == ["epoch=1-step=8.ckpt", "last.ckpt"]


def test_a_checkpoint_without_its_own_validation_is_only_among_the_latest(tmp_path):
    saver = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=2, save_top_k=-1)
    run(tmp_path, saver, CheckpointGC(save_trial_best=9, monitor="val_loss"), losses=[3, 1], max_steps=6)
    assert names(saver.dirpath) == ["epoch=0-step=4.ckpt", "epoch=1-step=6.ckpt"]


def test_a_checkpoint_without_a_value_of_the_loader_is_only_among_the_latest(tmp_path):
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    trainer = quiet_trainer(
        max_epochs=5, enable_checkpointing=True, check_val_every_n_epoch={"noisy": 2},
        callbacks=[saver, CheckpointGC(save_trial_best=9, monitor="val_loss/noisy")],
    )  # fmt: skip
    trainer.fit(Validated(), batches(2), {"clean": loader(4), "noisy": loader(4)})
    assert names(tmp_path) == ["epoch=1.ckpt", "epoch=3.ckpt", "epoch=4.ckpt"]


def test_without_validation_the_metric_is_that_of_the_epoch(tmp_path):
    saver = ModelCheckpoint(tmp_path / "kept", save_top_k=-1)
    gc = CheckpointGC(save_trial_best=1, save_trial_latest=0, monitor="train_loss", mode="max")
    run(tmp_path, saver, gc, losses=[1, 1, 1], limit_val_batches=0)
    assert names(saver.dirpath) == ["epoch=0-step=4.ckpt"]


def test_nobody_saves_or_logs(tmp_path):
    with pytest.raises(MisconfigurationException, match="CheckpointGC without a ModelCheckpoint"):
        run(tmp_path, CheckpointGC(save_trial_best=0), losses=[1], enable_checkpointing=False)
    with pytest.raises(MisconfigurationException, match=r"CheckpointGC\(monitor='val_los'\).*Did you mean 'val_loss'"):
        run(tmp_path, ModelCheckpoint(save_top_k=-1), CheckpointGC(monitor="val_los"), losses=[1])


def test_state_is_plain(tmp_path):
    gc = CheckpointGC(monitor="val_loss")
    run(tmp_path, ModelCheckpoint(save_top_k=-1), gc, losses=[3, 1, 4])
    torch.save(gc.state_dict(), tmp_path / "state.pt")
    other = CheckpointGC(monitor="val_loss")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.state_dict() == gc.state_dict()
    assert gc.state_key == "CheckpointGC{'monitor': 'val_loss', 'mode': 'min'}"


class TestExperiment:
    def runs(self, root, **numbers):
        for name, losses in (("one", [6, 5, 4]), ("two", [2, 3, 9])):
            saver = ModelCheckpoint(root / name, save_top_k=-1)
            run(root, saver, CheckpointGC(**numbers, monitor="val_loss", root=root), losses=losses)

    def test_each_run_removes_its_own(self, tmp_path):
        self.runs(tmp_path, save_experiment_best=2, save_trial_best=0, save_trial_latest=0)
        assert names(tmp_path / "one") == ["epoch=1-step=8.ckpt", "epoch=2-step=12.ckpt"]  # nothing was better then
        assert names(tmp_path / "two") == ["epoch=0-step=4.ckpt", "epoch=1-step=8.ckpt"]

    def test_sweep_afterwards(self, tmp_path):
        self.runs(tmp_path, save_experiment_best=2, save_trial_best=1, save_trial_latest=1)
        removed = sweep(tmp_path, 2, 1, 0)
        assert names(tmp_path / "one") == ["epoch=2-step=12.ckpt"]
        assert names(tmp_path / "two") == ["epoch=0-step=4.ckpt", "epoch=1-step=8.ckpt"]
        assert all(str(tmp_path) in path for path in removed)

    def with_mode(self, root, name, mode):
        saver = ModelCheckpoint(root / name, save_top_k=-1)
        gc = CheckpointGC(save_trial_best=1, save_trial_latest=9, monitor="val_loss", mode=mode, root=root)
        run(root, saver, gc, losses=[6, 9, 4] if name == "one" else [2, 3, 1])

    def test_sweep_keeps_the_best_by_the_mode_of_the_runs(self, tmp_path):
        for name in ("one", "two"):
            self.with_mode(tmp_path, name, "max")
        sweep(tmp_path, 1, 0, 0)
        assert (names(tmp_path / "one"), names(tmp_path / "two")) == (["epoch=1-step=8.ckpt"], [])

    def test_sweep_of_runs_with_two_modes(self, tmp_path):
        self.with_mode(tmp_path, "one", "max")
        self.with_mode(tmp_path, "two", "min")
        before = names(tmp_path / "one"), names(tmp_path / "two")
        with pytest.raises(MisconfigurationException, match=r"by different modes: max, min(.|\n)*mode=\"max\""):
            sweep(tmp_path, 1, 0, 0)
        assert (names(tmp_path / "one"), names(tmp_path / "two")) == before
        sweep(tmp_path, 1, 0, 0, mode="min")
        assert (names(tmp_path / "one"), names(tmp_path / "two")) == ([], ["epoch=2-step=12.ckpt"])
        with pytest.raises(UnknownNameError, match="'best'"):
            sweep(tmp_path, 1, 0, 0, mode="best")

    def test_a_list_leads_nowhere_else(self, tmp_path):
        self.runs(tmp_path / "runs", save_experiment_best=2, save_trial_best=1, save_trial_latest=1)
        listed = tmp_path / "runs" / "one" / "checkpoints.json"
        told = json.loads(listed.read_text())
        name = names(listed.parent)[0]
        os.rename(tmp_path / "runs" / "one" / name, tmp_path / "outside.ckpt")
        (tmp_path / "runs" / "one" / "foreign.ckpt").write_text("another's")
        told["checkpoints"] |= {
            "../../outside.ckpt": told["checkpoints"][name],
            "foreign.ckpt": {"age": [1, 1], "metric": 1},
        }
        told["checkpoints"][str(tmp_path / "outside.ckpt")] = told["checkpoints"][name]
        listed.write_text(json.dumps(told))
        sweep(tmp_path / "runs", 0, 0, 0)
        assert names(tmp_path / "runs" / "one") == ["foreign.ckpt"]
        assert (tmp_path / "outside.ckpt").exists()

    @pytest.mark.parametrize(
        "text", ["", "[]", '{"run": 3, "checkpoints": [1]}', '{"checkpoints": {"a": 1}, "run": ""}']
    )
    def test_a_file_that_is_no_list(self, tmp_path, text):
        (tmp_path / "checkpoints.json").write_text(text)
        with pytest.warns(UserWarning, match="is not a list of checkpoints"):
            assert sweep(tmp_path) == []

    def test_a_run_that_is_alive_is_left_alone(self, tmp_path, monkeypatch):
        self.runs(tmp_path, save_experiment_best=2, save_trial_best=1, save_trial_latest=1)

        def held(folder):
            raise MisconfigurationException("Another run writes")

        monkeypatch.setattr(filesystem, "claim", held)
        with pytest.warns(UserWarning, match="has not ended"):
            assert sweep(tmp_path, 0, 0, 0) == []
