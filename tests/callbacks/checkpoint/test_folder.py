"""The folder of a resumed run: the files that it adopts, removes, and never touches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightlib.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import MisconfigurationException
from tests.callbacks.fake_trainer import FakeTrainer
from tests.callbacks.killed import Death, Files, command, outcome
from tests.processes import programs

HOLDER = """
import os, sys, time
from lightlib.checkpoint.storage.claims import claim
from lightlib.checkpoint.storage.filesystem import make_folder
make_folder(sys.argv[1])
with claim(sys.argv[1]):
    print("held", flush=True)
    while not os.path.exists("enough"):
        time.sleep(0.01)
"""


def names(folder):
    return sorted(os.listdir(folder))


def written(folder, name):
    """Return the label of a checkpoint in a folder."""
    return formats.label_of(os.path.join(folder, name))


class Fail(Callback):
    def __init__(self, batch, error=RuntimeError):
        self.batch, self.error = batch, error

    def on_train_batch_end(self, trainer, *_):
        if trainer.progress.batch == self.batch:
            raise self.error("a bad batch")


def latest(**arguments):
    return lambda *more: [ModelCheckpoint(save_last=True, **arguments), *more]


class TestWhatAFileSays:
    def states(self, folder):
        found = {}
        for path in sorted(Path(folder).rglob("*.ckpt")):
            (state,) = [s for key, s in formats.load(path)["callbacks"].items() if key.startswith("ModelCheckpoint")]
            found[path.name] = state["lightlib"] | {"last": os.path.basename(state["last_model_path"])}
        return found

    def test_what_is_still_to_do(self, tmp_path):
        with pytest.raises(RuntimeError):
            command(tmp_path, lambda: latest()(Fail(7)))
        states = self.states(tmp_path)
        first, last = states["epoch=1-step=6.ckpt"], states["last.ckpt"]
        assert [first["pending"], last["pending"]] == ["last", ""]
        evicted = [[os.path.basename(path) for path in state["evicted"]] for state in (first, last)]
        assert evicted == [["epoch=0-step=3.ckpt"], ["epoch=0-step=3.ckpt"]]
        assert first["last"] == last["last"] == "last.ckpt"
        assert first["epoch"] == 1
        assert first["saved_at_batch"] == last["saved_at_batch"] == 6

    def test_another_callback_that_comes_later(self, tmp_path):
        def callbacks():
            return [
                ModelCheckpoint(filename="a-{step}", save_top_k=-1),
                ModelCheckpoint(filename="b-{step}-{val_loss:.1f}", monitor="val_loss", save_top_k=-1),
            ]

        command(tmp_path, callbacks, max_epochs=1)
        content = formats.load(tmp_path / "checkpoints" / "a-step=3.ckpt")
        (state,) = [state for state in content["callbacks"].values() if state["monitor"] == "val_loss"]
        assert state["lightlib"]["pending"] == "all"
        assert state["lightlib"]["candidates"]["val_loss"] == 3.0


class TestOfAnotherTime:
    def test_files_of_other_runs_stay(self, tmp_path):
        command(tmp_path, latest())  # one run
        others = {name: written(tmp_path / "checkpoints", name) for name in names(tmp_path / "checkpoints")}

        def again(folder, kill=None):
            with Files(dies_at=kill):
                command(folder, latest(), ckpt=None)

        with pytest.raises(Death):
            again(tmp_path, kill=14)
        newest = max(
            (written(tmp_path / "checkpoints", name) for name in names(tmp_path / "checkpoints") if name[0] != "."),
            key=lambda label: (label.run not in {one.run for one in others.values()}, label.age),
        )
        assert newest.run not in {one.run for one in others.values()}
        path = next(p for p in (tmp_path / "checkpoints").glob("*.ckpt") if formats.label_of(p) == newest)
        command(tmp_path, latest(), ckpt=path)
        assert names(tmp_path / "checkpoints") == [
            "epoch=2-step=9-v1.ckpt",
            "epoch=2-step=9.ckpt",
            "last-v1.ckpt",
            "last.ckpt",
        ]
        assert {name: written(tmp_path / "checkpoints", name) for name in others} == others

    def test_what_the_user_has_saved_stays(self, tmp_path):
        trainer, _ = command(tmp_path, latest(), max_epochs=2)
        trainer.save_checkpoint(tmp_path / "checkpoints" / "final.ckpt")
        newest = tmp_path / "checkpoints" / "last.ckpt"
        command(tmp_path, latest(), ckpt=newest)
        assert names(tmp_path / "checkpoints") == ["epoch=2-step=9.ckpt", "final.ckpt", "last.ckpt"]

    def test_files_from_after_the_place_are_written_again(self, tmp_path):
        _, made = command(tmp_path / "whole", latest(save_top_k=-1))
        whole = outcome(tmp_path / "whole", made)
        with pytest.raises(RuntimeError):
            command(tmp_path / "killed", lambda: latest(save_top_k=-1)(Fail(8)))
        folder = tmp_path / "killed" / "checkpoints"
        filesystem.copy(folder / "epoch=0-step=3.ckpt", folder / "last.ckpt")  # as if `last` had not been reached since
        os.remove(folder / "epoch=1-step=6.ckpt")
        with pytest.raises(RuntimeError):
            command(tmp_path / "killed", lambda: latest(save_top_k=-1)(Fail(8)))
        filesystem.copy(folder / "epoch=0-step=3.ckpt", folder / "last.ckpt")
        _, made = command(tmp_path / "killed", latest(save_top_k=-1), ckpt="last")
        assert outcome(tmp_path / "killed", made) == whole

    def test_what_is_not_written_again_goes_in_the_end(self, tmp_path):
        folder = tmp_path / "checkpoints"
        command(tmp_path, latest(save_top_k=-1))
        filesystem.copy(folder / "epoch=0-step=3.ckpt", folder / "last.ckpt")
        command(tmp_path, latest(save_top_k=-1), ckpt="last", max_epochs=2)
        assert names(folder) == ["epoch=0-step=3.ckpt", "epoch=1-step=6.ckpt", "last.ckpt"]

    def test_a_branch_touches_nothing(self, tmp_path):
        folder = tmp_path / "checkpoints"
        command(tmp_path, latest(save_top_k=-1))
        before = {name: written(folder, name) for name in names(folder)}
        _, (callback,) = command(tmp_path, latest(), ckpt=folder / "epoch=0-step=3.ckpt")
        assert {name: written(folder, name) for name in before} == before
        assert set(names(folder)) - set(before) == {"epoch=2-step=9-v1.ckpt", "last-v1.ckpt"}
        assert callback.last_model_path.endswith("last-v1.ckpt")

    @pytest.mark.processes
    def test_half_written_files_of_dead_processes_go(self, tmp_path):
        folder = tmp_path / "checkpoints"
        folder.mkdir()
        dead = programs.Program("-c", "")
        dead.communicate()
        for name in (f".last.ckpt.{dead.pid}-0123abcd.part", f".last.ckpt.{os.getppid()}-0123abcd.part", ".mine.part"):
            (folder / name).write_text("half")
        command(tmp_path, latest())
        assert names(folder)[:2] == [f".last.ckpt.{os.getppid()}-0123abcd.part", ".mine.part"]
        assert len(names(folder)) == 4


class TestExceptions:
    def test_what_was_saved_for_an_exception_goes_when_the_run_goes_on(self, tmp_path):
        callbacks = latest(save_on_exception=True)
        _, made = command(tmp_path / "whole", callbacks)
        with pytest.raises(RuntimeError):
            command(tmp_path / "failed", lambda: callbacks(Fail(5)))
        assert names(tmp_path / "failed" / "checkpoints") == [
            "epoch=0-step=3.ckpt",
            "epoch=1-step=5.ckpt",
            "last.ckpt",
        ]
        _, again = command(tmp_path / "failed", callbacks)
        assert outcome(tmp_path / "failed", again) == outcome(tmp_path / "whole", made)

    def test_of_this_run_goes_at_a_good_end_and_that_of_another_stays(self, tmp_path):
        path = tmp_path / "on_exception.ckpt"
        with pytest.raises(RuntimeError):
            command(tmp_path, lambda: [OnExceptionCheckpoint(tmp_path), ModelCheckpoint(), Fail(5)])
        assert path.exists()
        command(tmp_path, lambda: [OnExceptionCheckpoint(tmp_path), ModelCheckpoint()], ckpt=path)
        assert not path.exists()
        command(tmp_path / "other", lambda: [ModelCheckpoint(tmp_path, filename="on_exception")], ckpt=None)
        command(tmp_path / "third", lambda: [OnExceptionCheckpoint(tmp_path), ModelCheckpoint()], ckpt=None)
        assert path.exists()


class TestClaim:
    @pytest.mark.processes
    def test_another_live_run(self, tmp_path):
        folder = tmp_path / "checkpoints"
        holder = programs.Program("-c", HOLDER, folder)
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(MisconfigurationException, match=rf"Another run writes .*process {holder.pid} on '"):
                command(tmp_path, latest(), ckpt=None)
        finally:
            Path("enough").touch()
            holder.communicate()
        command(tmp_path, latest(), ckpt=None)
        assert names(folder) == ["epoch=2-step=9.ckpt", "last.ckpt"]

    def test_is_held_while_training_and_shared(self, tmp_path):
        seen = []

        class Look(Callback):
            def on_train_start(self, trainer, pl_module):
                seen.extend(names(tmp_path / "checkpoints"))

        command(tmp_path, lambda: [ModelCheckpoint(), ModelCheckpoint(filename="b", monitor="val_loss"), Look()])
        assert seen == [".lightlib.lock"]
        assert names(tmp_path / "checkpoints") == ["b.ckpt", "epoch=2-step=9.ckpt"]

    @pytest.mark.parametrize("error", [None, RuntimeError])
    def test_leaves_no_folder_when_nothing_was_saved(self, tmp_path, error):
        def callbacks():
            return [ModelCheckpoint(tmp_path / "a" / "b", every_n_epochs=9), *([Fail(2)] if error else [])]

        if error:
            with pytest.raises(error):
                command(tmp_path, callbacks, ckpt=None)
        else:
            command(tmp_path, callbacks, ckpt=None)
        assert not (tmp_path / "a").exists()


class TestFolders:
    def test_names_with_folders_are_found_as_well(self, tmp_path):
        callbacks = latest(filename="of {epoch}/{step}")
        _, made = command(tmp_path / "whole", callbacks)
        with pytest.raises(RuntimeError):
            command(tmp_path / "killed", lambda: callbacks(Fail(8)))
        folder = tmp_path / "killed" / "checkpoints"
        callback = ModelCheckpoint(folder, filename="of {epoch}/{step}")
        trainer = FakeTrainer(
            folder, continues=True, resumed_label=Label("x"), run_id=written(folder, "of epoch=1/step=6.ckpt").run
        )
        callback.setup(trainer, None, "fit")
        assert callback._folder.future == {str(folder / "last.ckpt"), str(folder / "of epoch=1" / "step=6.ckpt")}
        callback.teardown(trainer, None, "fit")
        _, again = command(tmp_path / "killed", callbacks, ckpt="last")
        assert set(outcome(tmp_path / "killed", again)[0]) == set(outcome(tmp_path / "whole", made)[0])


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_on_a_store(tmp_path, kind):
    files = pytest.importorskip("fsspec").filesystem("memory")

    def callbacks(name, *more):
        return lambda: [ModelCheckpoint(f"memory://{name}", monitor="val_loss", save_last=True, format=kind), *more]

    def there(name):
        return sorted(path.split("/", 2)[2] for path in files.find(f"/{name}") if "shard-" not in path)

    try:
        command(tmp_path, callbacks("whole"), ckpt=None)
        with pytest.raises(RuntimeError):
            command(tmp_path, callbacks("killed", Fail(7)), ckpt=None)
        if kind == "directory":
            files.pipe("/killed/epoch=2-step=9.ckpt/shard-0123", b"half")  # as if it had been killed right there
        command(tmp_path, callbacks("killed"), ckpt="memory://killed/last.ckpt")
        assert there("killed") == there("whole")
        assert not files.exists("/killed/epoch=2-step=9.ckpt/shard-0123")
        assert len(there("whole")) == 2
    finally:
        for name in ("whole", "killed"):
            files.rm(f"/{name}", recursive=True)
