"""The content of a checkpoint file, how it is written, and resuming from a file of Lightning."""

from __future__ import annotations

import enum
import os
import stat
import threading
from dataclasses import replace

import pytest
import torch

from lightlib.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightlib.checkpoint import formats
from lightlib.checkpoint.file import archive
from lightlib.checkpoint.storage.label import Label
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.loading import _present_device
from lightlib.core.resume.run_state import LIGHTNING_VERSION
from lightlib.errors import CheckpointError, CheckpointWriteError
from tests.runs.plain import Net, batches, momentum, quiet_trainer, same_weights, with_methods

COUNTS = {"ready", "completed"}
WITH_STARTED = COUNTS | {"started"}
ALL_COUNTS = WITH_STARTED | {"processed"}
# Lightning 2.6's entries below `loops`, with the names of the counts.
LOOPS = {
    "fit_loop": {
        "state_dict": {},
        "epoch_loop.state_dict": {"_batches_that_stepped"},
        "epoch_loop.batch_progress": {"total": ALL_COUNTS, "current": ALL_COUNTS, "is_last_batch": bool},
        "epoch_loop.scheduler_progress": {"total": COUNTS, "current": COUNTS},
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {
                "step": {"total": COUNTS, "current": COUNTS},
                "zero_grad": {"total": WITH_STARTED, "current": WITH_STARTED},
            }
        },
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": {"total": COUNTS, "current": COUNTS},
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": {"total": ALL_COUNTS, "current": ALL_COUNTS, "is_last_batch": bool},
        "epoch_progress": {"total": ALL_COUNTS, "current": ALL_COUNTS},
    },
    "validate_loop": {
        "state_dict": {},
        "batch_progress": {"total": ALL_COUNTS, "current": ALL_COUNTS, "is_last_batch": bool},
    },
    "test_loop": {
        "state_dict": {},
        "batch_progress": {"total": ALL_COUNTS, "current": ALL_COUNTS, "is_last_batch": bool},
    },
    "predict_loop": {"state_dict": {}, "batch_progress": {"total": ALL_COUNTS, "current": ALL_COUNTS}},
}


def same_layout(found, wanted):
    """Whether nested dicts have the same keys; a set stands for counts, a type for a value of it."""
    if isinstance(wanted, type):
        return isinstance(found, wanted)
    if isinstance(wanted, set):
        return set(found) == wanted and all(isinstance(value, int) for value in found.values())
    return found.keys() == wanted.keys() and all(same_layout(found[key], wanted[key]) for key in wanted)


class Data(DataModule):
    """Has a state and a hyperparameter."""

    def __init__(self, size=4):
        super().__init__()
        self.save_hyperparameters()
        self.asked = 0

    def train_dataloader(self):
        self.asked += 1
        return batches(4, self.hparams.size)

    def val_dataloader(self):
        return batches(1)

    def state_dict(self):
        return {"asked": self.asked}

    def load_state_dict(self, state_dict):
        self.loaded = state_dict["asked"]


class Scheduled(Net):
    """With momentum, a schedule, and a hyperparameter."""

    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()

    def validation_step(self, batch, batch_idx):
        self.log("vl", 1.0)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Extra(Callback):
    """Adds to the file and has a state."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["extra"] = 5

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        self.extra = checkpoint["extra"]

    def state_dict(self):
        return {"x": 1}

    def load_state_dict(self, state_dict):
        self.x = state_dict["x"]


def saved(path, module=None, weights_only=None, data=None, **arguments):
    """Fit for two epochs, save, and return the content of the file."""
    trainer = quiet_trainer(**{"max_epochs": 2, **arguments})
    trainer.fit(module or Scheduled(), datamodule=data or Data())
    trainer.save_checkpoint(path, weights_only)
    return torch.load(path, weights_only=True)


class TestContent:
    def test_lightnings_keys_and_ours_beside_them(self, tmp_path):
        content = saved(tmp_path / "a.ckpt", callbacks=[EarlyStopping("vl", patience=9), Extra()])
        assert set(content) == {
            "epoch", "global_step", "pytorch-lightning_version", "state_dict", "loops", "callbacks", "optimizer_states",
            "lr_schedulers", "hparams_name", "hyper_parameters", "datamodule_hparams_name",
            "datamodule_hyper_parameters",
            "Data", "extra", "lightlib",
        }  # fmt: skip
        assert (content["epoch"], content["global_step"]) == (1, 8)
        assert content["pytorch-lightning_version"] == LIGHTNING_VERSION
        assert (content["hparams_name"], content["hyper_parameters"]) == ("kwargs", {"lr": 0.1})
        assert (content["datamodule_hparams_name"], content["datamodule_hyper_parameters"]) == ("kwargs", {"size": 4})
        assert content["Data"] == {"asked": 1}
        assert sorted(content["callbacks"]) == ["EarlyStopping{'monitor': 'vl', 'mode': 'min'}", "Extra"]
        assert sorted(content["optimizer_states"][0]) == ["param_groups", "state"]
        assert content["lr_schedulers"][0]["last_epoch"] == 2

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    def test_the_scaler_has_lightnings_name(self, tmp_path):
        content = saved(tmp_path / "a.ckpt", precision="16-mixed")
        assert content["MixedPrecision"]["_growth_tracker"] == 8

    def test_the_layout_of_the_loops(self, tmp_path):
        content = saved(tmp_path / "a.ckpt")
        assert same_layout(content["loops"], LOOPS)

    def test_the_numbers_in_the_loops_at_the_end(self, tmp_path):
        fit = saved(tmp_path / "a.ckpt")["loops"]["fit_loop"]
        assert fit["epoch_progress"]["total"]["completed"] == 2
        assert fit["epoch_loop.batch_progress"]["total"]["completed"] == 8
        assert fit["epoch_loop.state_dict"] == {"_batches_that_stepped": 8}
        step = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
        assert step["total"] == {"ready": 8, "completed": 8}

    def test_the_numbers_in_the_loops_within_an_epoch(self, tmp_path):
        content = saved(tmp_path / "a.ckpt", max_steps=6, max_epochs=-1, limit_val_batches=0)
        fit = content["loops"]["fit_loop"]
        assert (content["epoch"], content["global_step"]) == (1, 6)
        assert fit["epoch_progress"]["current"] == {"ready": 2, "completed": 1, "started": 2, "processed": 1}
        batch = fit["epoch_loop.batch_progress"]
        assert (batch["current"]["completed"], batch["total"]["completed"], batch["is_last_batch"]) == (2, 6, False)

    def test_weights_only(self, tmp_path):
        content = saved(tmp_path / "a.ckpt", weights_only=True, callbacks=[Extra()])
        assert not {"optimizer_states", "lr_schedulers", "callbacks", "Data"} & set(content)
        assert {"state_dict", "loops", "hyper_parameters", "epoch", "global_step", "extra"} <= set(content)
        assert "rng" not in content["lightlib"]

    def test_without_hyperparameters(self, tmp_path):
        trainer = quiet_trainer()
        trainer.fit(Net(), batches(1))
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        assert not {"hyper_parameters", "hparams_name"} & set(torch.load(tmp_path / "a.ckpt", weights_only=True))

    def test_a_change_of_the_hyperparameters_is_saved(self, tmp_path):
        module = Scheduled()
        module.hparams.note = "x"
        assert saved(tmp_path / "a.ckpt", module)["hyper_parameters"] == {"lr": 0.1, "note": "x"}

    def test_everybody_gets_their_own_back(self, tmp_path):
        saved(tmp_path / "a.ckpt", callbacks=[Extra()])
        extra, data, seen = Extra(), Data(), []

        def on_load_checkpoint(self, checkpoint):
            seen.append(sorted(checkpoint["state_dict"]))

        trainer = quiet_trainer(max_epochs=3, callbacks=[extra])
        trainer.fit(with_methods(Scheduled, on_load_checkpoint), datamodule=data, ckpt_path=tmp_path / "a.ckpt")
        assert (extra.extra, extra.x, data.loaded) == (5, 1, 1)
        assert seen == [sorted(Net().state_dict())]
        assert trainer.global_step == 12

    def test_the_module_has_the_last_word_before_writing(self, tmp_path):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = checkpoint["extra"] + 1

        assert saved(tmp_path / "a.ckpt", with_methods(Scheduled, on_save_checkpoint), callbacks=[Extra()])["mine"] == 6

    def test_a_callback_that_is_gone_is_said(self, tmp_path):
        saved(tmp_path / "a.ckpt", callbacks=[Extra()])
        with pytest.warns(UserWarning, match="state of a callback that this run does not have: Extra"):
            quiet_trainer(max_epochs=3).fit(Scheduled(), datamodule=Data(), ckpt_path=tmp_path / "a.ckpt")


class TestWhen:
    def test_outside_of_hooks_at_once(self, tmp_path):
        trainer = quiet_trainer()
        trainer.fit(Net(), batches(2))
        trainer.save_checkpoint(tmp_path / "new" / "folder" / "a.ckpt")
        assert torch.load(tmp_path / "new" / "folder" / "a.ckpt", weights_only=True)["global_step"] == 2

    def test_after_an_evaluation_the_training_is_still_whole(self, tmp_path):
        module, trainer = Scheduled(), quiet_trainer(max_epochs=2)
        trainer.fit(module, datamodule=Data())
        trainer.validate(module, datamodule=Data(), verbose=False)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        resumed, whole = Scheduled(), Scheduled()
        quiet_trainer(max_epochs=4).fit(resumed, datamodule=Data(), ckpt_path=tmp_path / "a.ckpt")
        quiet_trainer(max_epochs=4).fit(whole, datamodule=Data())
        assert same_weights(resumed, whole)

    def test_within_an_accumulation_window(self, tmp_path):
        class Saves(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                if batch_idx == 0:
                    trainer.save_checkpoint(tmp_path / "a.ckpt")
                    assert os.path.exists(tmp_path / "a.ckpt")

        quiet_trainer(accumulate_grad_batches=2, callbacks=[Saves()]).fit(Net(), batches(4))
        content = torch.load(tmp_path / "a.ckpt", weights_only=True)
        assert (content["global_step"], content["lightlib"]["progress"]["epoch_batch"]) == (0, 1)

    def test_at_the_end_of_an_epoch(self, tmp_path):
        class Saves(Callback):
            def on_train_epoch_end(self, trainer, pl_module):
                trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")

        quiet_trainer(max_epochs=2, callbacks=[Saves()]).fit(Net(), batches(2))
        content = torch.load(tmp_path / "0.ckpt", weights_only=True)
        progress = content["lightlib"]["progress"]
        assert (content["epoch"], progress["epoch"], progress["epoch_batch"]) == (0, 0, 2)

    @pytest.mark.parametrize("hook", ["on_fit_start", "on_train_end", "on_fit_end"])
    def test_in_other_hooks_at_once(self, tmp_path, hook):
        class Saves(Callback):
            pass

        def save(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "a.ckpt")
            assert os.path.exists(tmp_path / "a.ckpt")

        setattr(Saves, hook, save)
        quiet_trainer(callbacks=[Saves()]).fit(Net(), batches(1))

    def test_written_is_told_with_the_path(self, tmp_path):
        class Told(Callback):
            def on_checkpoint_written(self, trainer, pl_module, path):
                told.append((path, os.path.exists(path)))

        told = []
        trainer = quiet_trainer(callbacks=[Told()])
        trainer.fit(Net(), batches(1))
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        assert told == [(str(tmp_path / "a.ckpt"), True)]


class TestWriting:
    @pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
    @pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
    def test_permissions_follow_the_umask(self, tmp_path, mask):
        before = os.umask(mask)
        try:
            archive.save({"state_dict": {}}, str(tmp_path / "a.ckpt"), Label())
            assert os.umask(mask) == mask
        finally:
            os.umask(before)
        assert stat.S_IMODE(os.stat(tmp_path / "a.ckpt").st_mode) == 0o666 & ~mask

    @pytest.mark.parametrize(
        "error", [OSError(28, "No space left on device"), RuntimeError("disk"), KeyboardInterrupt()]
    )
    def test_whole_or_not_at_all(self, tmp_path, monkeypatch, error):
        archive.save({"state_dict": {}, "which": "old"}, str(tmp_path / "a.ckpt"), Label())

        def half(content, file, **options):
            file.write(b"half")
            raise error

        monkeypatch.setattr(torch, "save", half)
        with pytest.raises(CheckpointWriteError if isinstance(error, Exception) else KeyboardInterrupt):
            archive.save({"state_dict": {}, "which": "new"}, str(tmp_path / "a.ckpt"), Label())
        assert os.listdir(tmp_path) == ["a.ckpt"]
        assert archive.load(tmp_path / "a.ckpt")["which"] == "old"

    def test_what_cannot_be_pickled(self, tmp_path):
        with pytest.raises(CheckpointWriteError, match="cannot be pickled"):
            archive.save({"state_dict": {}, "lock": threading.Lock()}, str(tmp_path / "a.ckpt"), Label())
        assert os.listdir(tmp_path) == []

    def test_nobody_sees_a_part_of_it(self, tmp_path, monkeypatch):
        seen, save = [], torch.save

        def watched(content, file, **options):
            file.write(b"")
            seen.append([name for name in os.listdir(tmp_path) if not name.startswith(".")])
            save(content, file, **options)

        monkeypatch.setattr(torch, "save", watched)
        archive.save({"state_dict": {}}, str(tmp_path / "a.ckpt"), Label())
        assert seen == [[]]
        assert os.listdir(tmp_path) == ["a.ckpt"]

    def test_a_failing_write_in_a_run_leaves_the_earlier_ones(self, tmp_path, monkeypatch):
        checkpoint, save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1), torch.save

        def full(content, file, **options):
            if content["epoch"] == 1:
                raise OSError(28, "No space left on device")
            save(content, file, **options)

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(
            CheckpointWriteError, match=r"epoch=1.ckpt' could not be written.*No space[\s\S]*free some space"
        ):
            quiet_trainer(max_epochs=3, enable_checkpointing=True, callbacks=[checkpoint]).fit(Net(), batches(1))
        assert os.listdir(tmp_path) == ["epoch=0.ckpt"]


class TestPath:
    def trained(self, tmp_path, **arguments):
        module, trainer = (
            Net(),
            quiet_trainer(max_epochs=2, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path, **arguments)]),
        )
        trainer.fit(module, batches(2))
        return module, trainer

    def test_last_is_the_newest(self, tmp_path):
        self.trained(tmp_path, save_last=True)
        trainer = quiet_trainer(max_epochs=3, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path)])
        trainer.fit(Net(), batches(2), ckpt_path="last")
        assert trainer.global_step == 6
        content = torch.load(tmp_path / "last.ckpt", weights_only=True)
        content["lightlib"]["progress"]["step"] = 40
        label = replace(formats.label_of(tmp_path / "last.ckpt"), batch=50)
        formats.save(content, str(tmp_path / "interrupted.ckpt"), label)
        os.utime(tmp_path / "interrupted.ckpt", (0, 0))
        trainer = quiet_trainer(max_epochs=3, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path)])
        trainer.fit(Net(), batches(2), ckpt_path="last")
        assert trainer.global_step == 42

    def test_best_of_this_trainer(self, tmp_path):
        module, trainer = self.trained(tmp_path)
        whole = Net()
        trainer.max_epochs = 3
        trainer.fit(module, batches(2), ckpt_path="best")
        quiet_trainer(max_epochs=3).fit(whole, batches(2))
        assert same_weights(module, whole)

    @pytest.mark.parametrize(
        ("name", "text"), [("best", "no best checkpoint is known"), ("last", "there is no last checkpoint")]
    )
    def test_there_is_none(self, tmp_path, name, text):
        with pytest.raises(CheckpointError, match=text):
            quiet_trainer(enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path)]).fit(
                Net(), batches(1), ckpt_path=name
            )

    def test_set_on_the_trainer(self, tmp_path):
        self.trained(tmp_path)
        trainer = quiet_trainer(max_epochs=3, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path)])
        trainer.ckpt_path = tmp_path / "epoch=1-step=4.ckpt"
        trainer.fit(Net(), batches(2))
        assert trainer.global_step == 6


def of_lightning(module, *, epochs, batches_done, is_last_batch, steps, ended=False):
    """Return a checkpoint in Lightning 2.6's layout, after `batches_done` batches of the last epoch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def counts(number, *names, total=None):
        return {
            "total": dict.fromkeys(names, number if total is None else total),
            "current": dict.fromkeys(names, number),
        }

    every = ("ready", "completed", "started", "processed")
    begun = {
        "ready": epochs,
        "started": epochs,
        "processed": epochs - (not is_last_batch),
        "completed": epochs - (not ended),
    }
    fit = {
        "state_dict": {},
        "epoch_loop.state_dict": {"_batches_that_stepped": steps},
        "epoch_loop.batch_progress": {**counts(batches_done, *every, total=steps), "is_last_batch": is_last_batch},
        "epoch_loop.scheduler_progress": counts(epochs, "ready", "completed"),
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {
                "step": counts(steps, "ready", "completed"),
                "zero_grad": counts(steps, "ready", "completed", "started"),
            }
        },
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": counts(0, "ready", "completed"),
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": {**counts(0, *every), "is_last_batch": False},
        "epoch_progress": {"total": begun, "current": begun},
    }
    idle = {"state_dict": {}, "batch_progress": {**counts(0, *every), "is_last_batch": False}}
    return {
        "epoch": epochs - 1,
        "global_step": steps,
        "pytorch-lightning_version": "2.6.0",
        "state_dict": module.state_dict(),
        "loops": {"fit_loop": fit, "validate_loop": idle, "test_loop": idle, "predict_loop": idle},
        "callbacks": {},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
    }, optimizer


class TestOfLightning:
    """Three epochs of four batches; the first part is trained by hand and saved as Lightning saves it."""

    @pytest.mark.parametrize(
        ("steps", "position"),
        [
            (4, {"epochs": 1, "batches_done": 4, "is_last_batch": True}),  # ModelCheckpoint at the end of an epoch
            (6, {"epochs": 2, "batches_done": 2, "is_last_batch": False}),  # within the second epoch
            (8, {"epochs": 2, "batches_done": 4, "is_last_batch": True, "ended": True}),  # after fit
        ],
    )
    def test_goes_on_where_it_was(self, tmp_path, steps, position):
        data, half = batches(4), Net(momentum)
        content, optimizer = of_lightning(half, steps=steps, **position)
        for i in range(steps):
            optimizer.zero_grad()
            half.training_step(data[i % 4], i).backward()
            optimizer.step()
        content["state_dict"], content["optimizer_states"] = half.state_dict(), [optimizer.state_dict()]
        torch.save(content, tmp_path / "theirs.ckpt")
        resumed, whole, seen = Net(momentum), Net(momentum), []

        class Sees(Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                seen.append((trainer.current_epoch, batch_idx, trainer.global_step))

        trainer = quiet_trainer(max_epochs=3, callbacks=[Sees()])
        trainer.fit(resumed, data, ckpt_path=tmp_path / "theirs.ckpt")
        quiet_trainer(max_epochs=3).fit(whole, data)
        assert seen[0] == (steps // 4, steps % 4, steps)
        assert len(seen) == 12 - steps
        assert (trainer.current_epoch, trainer.global_step) == (3, 12)
        assert same_weights(resumed, whole)

    def test_its_weights_and_hyperparameters(self, tmp_path):
        module = Scheduled()
        content, _ = of_lightning(module, epochs=1, batches_done=4, is_last_batch=True, steps=4)
        torch.save({**content, "hparams_name": "kwargs", "hyper_parameters": {"lr": 0.25}}, tmp_path / "theirs.ckpt")
        loaded = Scheduled.load_from_checkpoint(tmp_path / "theirs.ckpt")
        assert loaded.hparams == {"lr": 0.25}
        assert same_weights(loaded, module)


def test_objects_need_trust(tmp_path):
    torch.save({"state_dict": {}, "object": Data}, tmp_path / "a.ckpt")
    with pytest.raises(
        CheckpointError, match=r"Data[\s\S]*weights_only=False to fit and load_from_checkpoint; it may run any code"
    ):
        archive.load(tmp_path / "a.ckpt")
    assert archive.load(tmp_path / "a.ckpt", trust=True)["object"] is Data


# Regressions
@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestRegressions:
    def test_hyperparameters_that_are_kinds_of_strings(self, tmp_path):
        numpy = pytest.importorskip("numpy")

        class Kind(str, enum.Enum):
            SMALL = "small"

        class Configured(Net):
            def __init__(self, kind=Kind.SMALL, name="x", table=None):
                super().__init__()
                self.save_hyperparameters()

        trainer = quiet_trainer()
        trainer.fit(Configured(name=numpy.str_("x"), table={Kind.SMALL: 1}), batches(1))
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        found = torch.load(tmp_path / "a.ckpt", weights_only=True)["hyper_parameters"]
        assert found == {"kind": "small", "name": "x", "table": {"small": 1}}

    @pytest.mark.parametrize("location", ["cuda:99", "cpu"])
    def test_storages_of_absent_devices_go_to_the_cpu(self, location):
        assert _present_device("storage", location) == "storage"

    def test_storages_of_other_kinds_of_devices_are_left_to_torch(self):
        assert _present_device("storage", "xpu:0") is None
