"""In a folder that other users can write to, lightlib never writes through a link."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
import torch

from lightlib import safe_files
from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException
from lightlib.loggers import CSVLogger, TensorBoardLogger
from lightlib.loggers.event_files import sizes
from lightlib.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
REFUSED = "a symbolic link, which is not followed; remove it"
PRECIOUS = "precious"


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text(PRECIOUS)
    return path


@pytest.fixture
def shared(tmp_path):
    path = tmp_path / "shared"
    path.mkdir()
    return path


def plant(victim, *links):
    for link in links:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(victim)


def test_a_link_is_refused_and_a_file_is_opened(victim, shared):
    plant(victim, shared / "link")
    with pytest.raises(OSError, match=REFUSED):
        safe_files.descriptor(shared / "link", os.O_WRONLY | os.O_TRUNC)
    plant(shared / "not there", shared / "dangling")
    with pytest.raises(OSError, match=REFUSED):
        safe_files.descriptor(shared / "dangling", os.O_WRONLY | os.O_CREAT)
    assert not (shared / "not there").exists()
    handle = safe_files.descriptor(shared / "new", os.O_WRONLY | os.O_CREAT)
    assert not os.get_inheritable(handle)
    os.close(handle)
    assert victim.read_text() == PRECIOUS


def test_a_pipe_is_refused_without_waiting_for_its_other_end(shared):
    os.mkfifo(shared / "pipe")
    with pytest.raises(OSError, match="a pipe and not a file"):
        safe_files.descriptor(shared / "pipe", os.O_RDONLY)
    with pytest.raises(OSError, match="No such device"):  # no process reads
        safe_files.descriptor(shared / "pipe", os.O_WRONLY)


def test_a_file_is_replaced_together_with_the_links_in_its_way(victim, shared):
    plant(victim, shared / "a", shared / "a.part")
    safe_files.replace(shared / "a", b"new")
    assert (shared / "a").read_text() == "new"
    assert not (shared / "a").is_symlink()
    assert os.listdir(shared) == ["a"]
    assert victim.read_text() == PRECIOUS


def test_what_could_not_be_written_leaves_nothing(shared):
    (shared / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        safe_files.replace(shared / "a", b"new")
    assert os.listdir(shared) == ["a"]


def test_a_link_that_is_made_in_the_last_moment_is_not_followed(victim, shared, monkeypatch):
    unlink = os.unlink

    def and_link_again(path, *rest):
        unlink(path, *rest)
        os.symlink(victim, path)

    plant(victim, shared / "a.part")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", and_link_again)
        with pytest.raises(FileExistsError):
            safe_files.replace(shared / "a", b"new")
    assert victim.read_text() == PRECIOUS


def test_what_others_write_by_name_is_written_where_nobody_else_may(victim, shared):
    plant(victim, shared / "trace.json")
    with safe_files.exporting(shared / "trace.json") as place:
        assert stat.S_IMODE(os.stat(os.path.dirname(place)).st_mode) == 0o700
        Path(place).write_text("trace")
    assert (shared / "trace.json").read_text() == "trace"
    assert os.listdir(shared) == ["trace.json"]
    assert victim.read_text() == PRECIOUS


def test_the_lock_of_a_folder(victim, shared):
    plant(victim, shared / ".lightlib.lock")
    with pytest.raises(MisconfigurationException, match=REFUSED):
        filesystem.claim(shared)
    assert victim.read_text() == PRECIOUS


def test_the_files_of_the_csv_logger(victim, shared):
    folder = shared / "version_0"
    plant(victim, folder / "metrics.csv.part", folder / "hparams.yaml.part", folder / "hparams.yaml")
    logger = CSVLogger(shared, name="", version=0)
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"loss": 1.0}, 0)
    logger.save()
    assert (folder / "metrics.csv").read_text() == "step,loss\n0,1.0\n"
    assert (folder / "hparams.yaml").read_text() == "lr: 0.1\n"
    assert victim.read_text() == PRECIOUS
    assert sorted(os.listdir(folder)) == ["hparams.yaml", "metrics.csv"]


@pytest.mark.parametrize("when", ["before the first row", "later"])
def test_the_rows_of_the_csv_logger_neither_reach_nor_show_another_file(victim, shared, when):
    logger = CSVLogger(shared, name="", version=0, flush_logs_every_n_steps=1)
    metrics = shared / "version_0" / "metrics.csv"
    if when == "later":
        logger.log_metrics({"loss": 1.0}, 0)
        metrics.unlink()
    plant(victim, metrics)
    with pytest.raises(OSError, match=REFUSED):
        logger.log_metrics({"loss": 1.0}, 1)
    assert victim.read_text() == PRECIOUS


def test_an_event_file_is_not_cut_through_a_link(victim, shared):
    logger = TensorBoardLogger(shared, name="", version=0)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.save()
    state = logger.state_dict()
    logger.finalize("success")
    ((name, size),) = sizes(logger.log_dir).items()
    (shared / "version_0" / name).unlink()
    victim.write_bytes(b"x" * (size + 1))
    plant(victim, shared / "version_0" / name)
    with pytest.raises(OSError, match=REFUSED):
        TensorBoardLogger(shared, name="", version=0).load_state_dict(state)
    assert victim.stat().st_size == size + 1


def test_nobody_knows_the_name_of_an_event_file_before(shared):
    found = []
    for _ in range(2):
        logger = TensorBoardLogger(shared, name="", version=len(found), filename_suffix=".mine")
        logger.log_metrics({"loss": 1.0, "both": {"a": 1.0, "b": 2.0}}, 0)
        logger.finalize("success")
        names = {os.path.basename(name) for name in sizes(logger.log_dir)}
        assert len(sizes(logger.log_dir)) == 3
        found.append({re.search(r"\.([0-9a-f]{8})\.mine$", name)[1] for name in names})
    assert [len(tokens) for tokens in found] == [1, 1]
    assert found[0] != found[1]


def test_the_files_of_profilers(victim, shared):
    names = ["fit-simple.txt", "fit-cpu.txt", "fit-cpu-step.prof", "fit-ops.txt", "fit-ops-step0.trace.json"]
    plant(victim, *(shared / name for name in names))
    simple, cpu = SimpleProfiler(shared, "simple"), AdvancedProfiler(shared, "cpu", dump_stats=True)
    for profiler in (simple, cpu, PyTorchProfiler(shared, "ops", schedule=None)):
        profiler.setup("fit")
        with profiler.profile("step"):
            torch.ones(2).sum()
        profiler.describe()
        profiler.teardown("fit")
    assert sorted(os.listdir(shared)) == sorted(names)
    assert not [name for name in names if (shared / name).is_symlink()]
    assert victim.read_text() == PRECIOUS


def test_the_list_of_the_best_checkpoints(victim, shared):
    plant(victim, shared / "best_k_models.yaml")
    ModelCheckpoint(shared).to_yaml()
    assert (shared / "best_k_models.yaml").read_text() == "{}\n"
    assert victim.read_text() == PRECIOUS


def test_checkpoints_and_their_links(victim, shared):
    plant(victim, shared / "a.ckpt", shared / "last.ckpt")
    filesystem.write(shared / "a.ckpt", lambda file: file.write(b"new") and None)
    filesystem.link(shared / "a.ckpt", shared / "last.ckpt")
    assert (shared / "last.ckpt").read_text() == "new"
    filesystem.remove(shared / "last.ckpt")
    assert sorted(os.listdir(shared)) == ["a.ckpt"]
    assert victim.read_text() == PRECIOUS
