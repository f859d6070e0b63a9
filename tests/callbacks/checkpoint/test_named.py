"""Folders with many checkpoints and versions: a save or a search looks at each one once."""

from __future__ import annotations

import os
import shutil
import threading

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib as L
from lightlib import report
from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint.file import archive
from lightlib.checkpoint.storage import filesystem, retries, store
from lightlib.checkpoint.storage.label import Label
from lightlib.core.resume import checkpoint_list
from lightlib.loggers import CSVLogger
from tests.checkpoint.directory.writers import Calls
from tests.runs.modules import Seen


def fill(folder, count, name="step={}.ckpt"):
    """Write so many checkpoints of one run."""
    os.makedirs(folder, exist_ok=True)
    for number in range(count):
        archive.save({"state_dict": {}}, f"{folder}/{name.format(number)}", Label("run", number, batch=number))


def counted(work):
    calls = Calls()
    calls.begin(0)
    with calls.counted():
        result = work()
    return calls.of_rank[0], result


def trainer_of(folder, **options):
    saver = ModelCheckpoint(folder, **options)
    trainer = L.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[saver], default_root_dir=folder,
    )  # fmt: skip
    return trainer, saver


def calls_of_saves(folder, **options):
    """Return the calls of three saves, and the names of their files."""
    trainer, saver = trainer_of(folder, every_n_train_steps=1, save_top_k=-1, **options)
    data = DataLoader(torch.rand(3, 2), batch_size=1)
    before = set(os.listdir(folder))
    calls, saves = Calls(), saver._save

    def save(*args):
        calls.begin(0)
        saves(*args)
        total.append(calls.of_rank[0].total())
        calls.begin(1)

    total = []
    saver._save = save
    with calls.counted():
        trainer.fit(Seen(), data)
    return total, sorted(set(os.listdir(folder)) - before)


@pytest.mark.parametrize("filename", ["{step}", "model"])
def test_a_save_makes_as_many_calls_among_many_files_as_among_few(filename, tmp_path):
    found = {}
    for count in (0, 20, 80):
        folder = tmp_path / str(count)
        fill(folder, count, "other-{}.ckpt")
        fill(folder, min(count, 1), "model.ckpt")
        for number in range(1, count):
            shutil.copy(folder / "model.ckpt", folder / f"model-v{number}.ckpt")
        found[count], names = calls_of_saves(folder, filename=filename)
        if filename == "model" and count:
            assert names == [f"model-v{count + number}.ckpt" for number in range(3)]
    assert found[20] == found[80]
    assert max(found[80]) <= max(found[0])  # its second and third save find "model.ckpt", too


def test_a_search_reads_each_checkpoint_once(tmp_path):
    each = {}
    for count in (50, 200):
        fill(tmp_path / str(count), count)
        trainer, _ = trainer_of(tmp_path / str(count))
        folders = checkpoint_list.folders_of(trainer)
        calls, found = counted(
            lambda folders=folders, trainer=trainer: checkpoint_list.checkpoints_in(folders, trainer)
        )
        assert checkpoint_list.newest_first(found)[0].path.endswith(f"step={count - 1}.ckpt")
        each[count] = calls
    assert each[200]["listdir"] == each[50]["listdir"] == 1
    assert each[200]["open"] == each[200]["stat"] == 200
    assert each[200].total() - each[50].total() == 2 * 150


def test_the_versions_of_a_logger_are_listed_once(tmp_path):
    totals = []
    for count in (30, 300):
        for number in range(count):
            os.makedirs(tmp_path / "logs" / f"version_{number}", exist_ok=True)
        calls, version = counted(lambda: CSVLogger(tmp_path, name="logs").version)
        assert version == count
        assert calls["listdir"] == 1
        totals.append(calls.total())
        shutil.rmtree(tmp_path / "logs" / f"version_{count}")
    assert totals[0] == totals[1]


class TestStore:
    @pytest.fixture
    def requests(self, monkeypatch):
        """Return the requests to a store in memory, and the largest number at the same time."""
        fsspec = pytest.importorskip("fsspec", reason="an optional library")
        memory = fsspec.filesystem("memory")
        made, lock = {"count": 0, "open": 0, "most": 0}, threading.Lock()
        together = threading.Barrier(4, timeout=60)

        def wrapped(name):
            call = getattr(type(memory), name)

            def request(self, *args, **kwargs):
                with lock:
                    made["count"] += 1
                    made["open"] += 1
                    made["most"] = max(made["most"], made["open"])
                try:
                    if name == "cat_file" and not made.get("met"):
                        together.wait()  # of requests one after the other, the first would wait in vain
                        made["met"] = 1
                    return call(self, *args, **kwargs)
                finally:
                    with lock:
                        made["open"] -= 1

            return request

        for name in ("info", "ls", "cat_file"):
            monkeypatch.setattr(type(memory), name, wrapped(name))
        yield made
        memory.store.clear()

    def test_labels_are_read_in_parallel(self, requests):
        for number in range(20):
            archive.save({"state_dict": {}}, f"memory://runs/{number}.ckpt", Label("run", number, batch=number))
        trainer, _ = trainer_of("memory://runs")
        requests.update(count=0, most=0)
        found = checkpoint_list.checkpoints_in(["memory://runs"], trainer)
        assert [one.label.batch for one in checkpoint_list.newest_first(found)] == list(range(19, -1, -1))
        assert 4 <= requests["most"] <= store.REQUESTS
        assert requests["count"] < 20 * 8

    def test_a_slow_store_is_reported_while_it_is_slow(self, monkeypatch):
        said = threading.Event()
        messages = []
        monkeypatch.setattr(retries, "SLOW", 0.01)
        monkeypatch.setattr(report, "info", lambda text: (messages.append(text), said.set()))
        assert filesystem.with_retries("listing 's3://models'", lambda: said.wait(60))
        assert messages[0].startswith("listing 's3://models': the store has taken 0 s so far")

    def test_a_fast_store_is_not(self, monkeypatch):
        messages = []
        monkeypatch.setattr(report, "info", messages.append)
        before = threading.active_count()
        assert filesystem.with_retries("listing", lambda: 3) == 3
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join(60)
        assert messages == []
        assert threading.active_count() <= before
