"""The checkpoint that `ckpt_path` selects: by labels, in all folders that a run may have used."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightlib.checkpoint import formats
from lightlib.checkpoint.storage.label import Label
from lightlib.core.progress.states import TrainerFn
from lightlib.core.resume.find import FoundCheckpoint, after_damage, newest_of_callbacks, resolve_path
from lightlib.errors import CheckpointError
from lightlib.loggers import CSVLogger
from lightlib.report import LightlibWarning, PossibleUserWarning
from lightlib.strategies.extension import Extension

FIT, TEST = TrainerFn.FITTING, TrainerFn.TESTING


def write(path, run="r", serial=1, batch=1, time=None, **more):
    """Write a checkpoint with a label and, if given, a modification time; return its path."""
    content = {"state_dict": {"w": torch.ones(2)}, "lightlib": {"format": 2}}
    formats.save(content, str(path), Label(run=run, serial=serial, batch=batch, step=batch, **more))
    if time is not None:
        os.utime(path, (time, time))
    return str(path)


def unlabelled(path, time):
    """A checkpoint of Lightning, or of a version before labels."""
    torch.save({"state_dict": {}, "epoch": 0}, path)
    os.utime(path, (time, time))
    return str(path)


def damage(path, keep=None):
    data = Path(path).read_bytes()
    half = len(data) // 2
    Path(path).write_bytes(data[:keep] if keep else data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :])
    return path


def callback(folder, **more):
    known = {"last_model_path": "", "best_model_path": "", "CHECKPOINT_NAME_LAST": "last", **more}
    return SimpleNamespace(dirpath=None if folder is None else str(folder), **known)


def trainer(*folders, logger=None):
    several = [one if isinstance(one, SimpleNamespace) else callback(one) for one in folders]
    strategy = SimpleNamespace(extension=Extension())
    return SimpleNamespace(checkpoint_callbacks=several, logger=logger, default_root_dir=".", strategy=strategy)


def find(given, *folders, fn=FIT, logger=None):
    return resolve_path(trainer(*folders, logger=logger), fn, False, given)


def paths(found):
    return [os.path.basename(one.path) for one in (found, *found.fallbacks)]


class TestAuto:
    def test_newest_by_label_and_not_by_time(self, tmp_path):
        write(tmp_path / "epoch=2.ckpt", serial=4, batch=30, time=100)
        write(tmp_path / "last.ckpt", serial=5, batch=30, time=90)
        write(tmp_path / "interrupted.ckpt", serial=3, batch=25, time=900)
        write(tmp_path / "epoch=0.ckpt", serial=1, batch=10, time=2e9)
        found = find("auto", tmp_path)
        assert paths(found) == ["last.ckpt", "epoch=2.ckpt", "interrupted.ckpt", "epoch=0.ckpt"]
        assert (found.continues, found.skips, found.label.serial) == (True, True, 5)
        assert all(one.continues and one.skips for one in found.fallbacks)

    def test_between_runs_the_one_that_wrote_last(self, tmp_path):
        write(tmp_path / "a2.ckpt", run="a", batch=500, time=100)
        write(tmp_path / "a1.ckpt", run="a", batch=400, time=300)
        write(tmp_path / "b1.ckpt", run="b", batch=5, time=150)
        write(tmp_path / "b2.ckpt", run="b", batch=9, time=200)
        assert paths(find("auto", tmp_path)) == ["b2.ckpt", "b1.ckpt", "a2.ckpt", "a1.ckpt"]

    def test_files_without_label_come_last_by_time(self, tmp_path):
        unlabelled(tmp_path / "old.ckpt", 100)
        unlabelled(tmp_path / "new.ckpt", 2e9)
        write(tmp_path / "ours.ckpt", time=150)
        assert paths(find("auto", tmp_path)) == ["ours.ckpt", "new.ckpt", "old.ckpt"]

    def test_all_callbacks_folders_and_names(self, tmp_path):
        write(tmp_path / "one" / "epoch=1" / "loss=0.5.ckpt", batch=3)
        write(tmp_path / "two" / "on_exception.ckpt", batch=4)
        write(tmp_path / "two" / "weights.ckpt", batch=9, weights_only=True)
        write(tmp_path / "two" / ".last.ckpt.x.part", batch=9)
        (tmp_path / "two" / "notes.txt").write_text("mine")
        assert paths(find("auto", tmp_path / "one", tmp_path / "two")) == ["on_exception.ckpt", "loss=0.5.ckpt"]
        assert paths(find("auto", tmp_path / "two", fn=TEST))[0] == "weights.ckpt"

    @pytest.mark.parametrize("keep", [None, 40, -7])
    def test_a_damaged_newest_is_said_and_skipped(self, tmp_path, keep):
        """A flipped bit leaves the label readable, so reading detects it; a truncated end has no label."""
        write(tmp_path / "old.ckpt", batch=1, time=100)
        new = damage(write(tmp_path / "new.ckpt", batch=2, time=200), keep)
        os.utime(new, (200, 200))
        if keep is None:
            found = find("auto", tmp_path)
            assert paths(found) == ["new.ckpt", "old.ckpt"]
            with pytest.raises(CheckpointError) as caught:
                formats.load(found.path)
            with pytest.warns(LightlibWarning, match=r"ckpt_path='auto': .*new.ckpt' is skipped: .*new\.ckpt"):
                found = after_damage(found, caught.value)
        else:
            with pytest.warns(LightlibWarning, match=r"ckpt_path='auto': .*new.ckpt' is skipped: .*new\.ckpt"):
                found = find("auto", tmp_path)
        assert paths(found) == ["old.ckpt"]
        assert found.continues
        assert found.skips

    def test_when_all_are_damaged_it_is_an_error(self, tmp_path):
        """A new run would begin next to the files of the old one, perhaps weeks of work."""
        damage(write(tmp_path / "one.ckpt"))
        found = find("auto", tmp_path)
        text = rf"none of the checkpoints can be loaded, '.*one.ckpt' being.*\n.*\n.*move them out of '{tmp_path}'"
        with pytest.raises(CheckpointError, match=text), pytest.warns(LightlibWarning, match="is skipped: torn"):
            after_damage(found, CheckpointError("torn"))
        assert os.listdir(tmp_path) == ["one.ckpt"]

    @pytest.mark.parametrize("folders", [0, 1, 5])
    def test_none_is_no_error(self, tmp_path, folders, caplog):
        with caplog.at_level("INFO", logger="lightlib"):
            found = find("auto", *[tmp_path / str(n) for n in range(folders)])
        assert found == FoundCheckpoint(skips=True)
        assert "there is no checkpoint" in caplog.text
        assert ("and 2 more" in caplog.text) == (folders == 5)

    def test_the_choice_is_said(self, tmp_path, caplog):
        write(tmp_path / "a.ckpt", batch=7, epoch=2)
        with caplog.at_level("INFO", logger="lightlib"):
            find("auto", tmp_path)
        assert f"the newest checkpoint is {str(tmp_path / 'a.ckpt')!r} (epoch 2, step 7)." in caplog.text

    def test_at_a_url(self):
        import fsspec

        for batch in (1, 2):
            write(f"memory://resume/{batch}.ckpt", batch=batch)
        write("memory://resume/other.ckpt", run="other", batch=1)
        try:
            assert paths(find("auto", "memory://resume")) == ["other.ckpt", "2.ckpt", "1.ckpt"]
            assert find("memory://resume/1.ckpt").continues is False
            assert find("memory://resume/2.ckpt").continues is True
        finally:
            fsspec.filesystem("memory").rm("/resume", recursive=True)

    def test_a_link_to_nothing(self, tmp_path):
        write(tmp_path / "a.ckpt", time=100)
        os.symlink(tmp_path / "gone.ckpt", tmp_path / "last.ckpt")
        with pytest.warns(LightlibWarning, match=r"last\.ckpt' is skipped"):
            found = find("auto", tmp_path)
        assert paths(found) == ["a.ckpt"]
        os.remove(tmp_path / "a.ckpt")
        with pytest.warns(LightlibWarning, match=r"last\.ckpt' is skipped"):
            assert find("auto", tmp_path) == FoundCheckpoint(skips=True)

    def test_a_store_that_cannot_be_reached_is_an_error(self):
        with pytest.raises(
            CheckpointError, match=r"'nowhere://bucket' cannot be accessed: Protocol not known: nowhere"
        ):
            find("auto", "nowhere://bucket")


class TestLast:
    def test_newest_of_last_and_interrupted(self, tmp_path):
        write(tmp_path / "epoch=9.ckpt", batch=90)
        write(tmp_path / "last.ckpt", serial=3, batch=20, time=2e9)
        write(tmp_path / "last-v1.ckpt", serial=4, batch=20, time=100)
        found = find("last", tmp_path)
        assert (paths(found), found.continues, found.skips) == (["last-v1.ckpt"], True, False)
        write(tmp_path / "interrupted.ckpt", serial=5, batch=21, time=50)
        assert paths(find("last", tmp_path)) == ["interrupted.ckpt"]
        assert find("last", tmp_path, fn=TEST).continues is False

    def test_one_that_is_known_from_before(self, tmp_path):
        path = write(tmp_path / "elsewhere" / "final.ckpt")
        assert paths(find("last", callback(tmp_path, last_model_path=path))) == ["final.ckpt"]
        gone = callback(tmp_path, last_model_path=str(tmp_path / "gone.ckpt"))
        with pytest.raises(CheckpointError, match="there is no last checkpoint in"):
            find("last", gone)

    def test_a_damaged_newest_is_not_passed_over(self, tmp_path):
        write(tmp_path / "interrupted.ckpt", batch=1, time=100)
        path = damage(write(tmp_path / "last.ckpt", batch=2), keep=60)
        assert find("last", tmp_path).path == path
        with pytest.raises(CheckpointError):
            formats.load(path)

    def test_none_is_an_error_unless_a_launcher_starts_again(self, tmp_path, monkeypatch):
        for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
            monkeypatch.delenv(name, raising=False)
        text = rf"ckpt_path='last', but there is no last checkpoint in '{tmp_path}'\.\n.*\n.*ckpt_path='auto' to start"
        with pytest.raises(CheckpointError, match=text):
            find("last", tmp_path)
        monkeypatch.setenv("SLURM_JOB_ID", "3")
        assert find("last", tmp_path) == FoundCheckpoint(skips=True)
        with pytest.raises(CheckpointError):
            find("last", tmp_path, fn=TEST)

    def test_weights_alone_are_taken_when_there_is_nothing_else(self, tmp_path):
        path = write(tmp_path / "last.ckpt", batch=9, weights_only=True)
        assert find("last", tmp_path).path == path, "reading it raises the reason"
        write(tmp_path / "interrupted.ckpt", batch=1)
        assert paths(find("last", tmp_path)) == ["interrupted.ckpt"]


class TestBest:
    """Of a Trainer in another process: the newest checkpoint of its folders knows which was the best."""

    @staticmethod
    def knows(folder, state_key="key"):
        return callback(folder, state_key=state_key)

    @staticmethod
    def write(path, best, serial=1):
        content = {"state_dict": {}, "callbacks": {"key": {"best_model_path": str(best)}}}
        formats.save(content, str(path), Label(run="r", serial=serial, batch=serial))

    def test_the_newest_says_it(self, tmp_path, caplog):
        caplog.set_level("INFO", "lightlib")
        one, two, three = (tmp_path / f"{name}.ckpt" for name in ("one", "two", "three"))
        self.write(one, one, 1)
        self.write(two, two, 2)
        self.write(three, one, 3)
        assert find("best", self.knows(tmp_path), fn=TEST).path == str(one)
        assert caplog.messages == [f"ckpt_path='best': {str(one)!r}, named by {str(three)!r}."]

    def test_the_folder_was_moved(self, tmp_path):
        self.write(tmp_path / "a.ckpt", "/elsewhere/a.ckpt")
        assert find("best", self.knows(tmp_path), fn=TEST).path == str(tmp_path / "a.ckpt")

    def test_a_damaged_one_is_not_asked(self, tmp_path):
        self.write(tmp_path / "a.ckpt", tmp_path / "a.ckpt", 1)
        self.write(tmp_path / "b.ckpt", tmp_path / "b.ckpt", 2)
        damage(tmp_path / "b.ckpt")
        assert find("best", self.knows(tmp_path), fn=TEST).path == str(tmp_path / "a.ckpt")

    def test_of_another_callback(self, tmp_path):
        self.write(tmp_path / "a.ckpt", tmp_path / "a.ckpt")
        with pytest.raises(CheckpointError, match="no best checkpoint is known to "):
            find("best", self.knows(tmp_path, "another"), fn=TEST)


class TestPath:
    def test_the_newest_goes_on_and_an_older_one_branches(self, tmp_path):
        old, new = write(tmp_path / "old.ckpt", batch=1), write(tmp_path / "new.ckpt", serial=2, batch=2)
        write(tmp_path / "last.ckpt", serial=3, batch=2)
        write(tmp_path / "weights.ckpt", serial=4, batch=3, weights_only=True)
        write(tmp_path / "other.ckpt", run="other", batch=99)
        assert (find(old).continues, find(Path(new)).continues) == (False, True)
        assert find(new, fn=TEST).continues is False
        assert find(new).label.batch == 2

    def test_without_label_it_branches(self, tmp_path):
        assert find(unlabelled(tmp_path / "a.ckpt", 1)) == FoundCheckpoint(str(tmp_path / "a.ckpt"), by_path=True)

    def test_a_relative_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write("a.ckpt", batch=1)
        assert find("a.ckpt").continues
        write("b.ckpt", batch=2)
        assert not find("a.ckpt").continues

    def test_best(self, tmp_path):
        path = write(tmp_path / "best.ckpt")
        found = find("best", callback(tmp_path, best_model_path=path))
        assert (found.path, found.continues, found.by_path) == (path, True, False)
        with pytest.warns(PossibleUserWarning, match=r"trainer\.test\(\) got neither a model nor a ckpt_path"):
            assert resolve_path(trainer(callback(tmp_path, best_model_path=path)), TEST, True, None).path == path


class TestFoldersBesideTheLogs:
    """Without `dirpath` every run has a folder of its own: the logger's next version."""

    def callback(self, logger):
        made = callback(None)
        made.folder = lambda trainer: os.path.join(logger.log_dir, "checkpoints")
        return made

    def test_all_versions_are_searched_and_none_is_taken(self, tmp_path):
        for number in range(3):
            folder = tmp_path / "lightning_logs" / f"version_{number}"
            folder.mkdir(parents=True)
            if number < 2:
                write(folder / "checkpoints" / "last.ckpt", run=str(number), time=100 * number)
        logger = CSVLogger(tmp_path)
        for given in ("auto", "last"):
            found = find(given, self.callback(logger), logger=logger)
            assert found.path == str(tmp_path / "lightning_logs" / "version_1" / "checkpoints" / "last.ckpt")
        assert len(os.listdir(tmp_path / "lightning_logs")) == 3

    def test_a_version_that_was_asked_for(self, tmp_path):
        write(tmp_path / "lightning_logs" / "version_0" / "checkpoints" / "last.ckpt")
        logger = CSVLogger(tmp_path, version=1)
        assert find("auto", self.callback(logger), logger=logger).path is None
        logger = CSVLogger(tmp_path, version=0)
        assert find("auto", self.callback(logger), logger=logger).path is not None


def test_newest_known(tmp_path):
    best, last = write(tmp_path / "best.ckpt", batch=1, time=2e9), write(tmp_path / "last.ckpt", batch=2)
    assert newest_of_callbacks(trainer(callback(tmp_path, best_model_path=best, last_model_path=last))) == last
    assert newest_of_callbacks(trainer(callback(tmp_path, best_model_path=best, last_model_path="gone"))) == best
    assert newest_of_callbacks(trainer(callback(tmp_path))) == ""


class TestWeightsAlone:
    def test_auto_names_the_checkpoints_that_hold_weights_alone(self, tmp_path):
        write(tmp_path / "one.ckpt", serial=1, weights_only=True)
        newest = write(tmp_path / "two.ckpt", serial=2, weights_only=True)
        with pytest.warns(LightlibWarning, match="because the 2 checkpoints in .* hold weights alone") as warned:
            assert find("auto", tmp_path).path is None
        assert repr(newest) in str(warned[0].message)
        assert find("auto", tmp_path, fn=TEST).path == newest

    def test_auto_is_warned_of_when_the_run_saves_weights_alone(self, tmp_path):
        weights, whole = (callback(tmp_path, save_weights_only=only) for only in (True, False))
        with pytest.warns(LightlibWarning, match="together with save_weights_only=True.*begins again from epoch 0"):
            find("auto", weights)
        assert find("auto", weights, whole).path is None
        assert find("auto", weights, fn=TEST).path is None
