"""Paths that mounts map: each kind of container path, read-only mounts, and checkpoints of a Trainer."""

from __future__ import annotations

import os

import pytest
import torch

from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint.storage import filesystem
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.paths import Mount, mounted, open_path, resolve
from tests.runs.plain import QUIET, Net, calling, loader, quiet_trainer, same_weights


@pytest.fixture
def host(tmp_path):
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    return folder


class TestContainerPaths:
    def test_another_absolute_path_is_mapped(self, host):
        with mounted(Mount(host, "/images")):
            assert resolve("/images/a.txt") == str(host / "a.txt")
            assert resolve("/images") == str(host)
            assert resolve("/images2/a.txt") == "/images2/a.txt"
            assert resolve("/images/../else") == "/images/../else"
            with open_path("/images/a.txt") as file:
                assert file.read() == "a"
            with open_path("/images/b.txt", "w") as file:
                file.write("b")
        assert (host / "b.txt").read_text() == "b"
        assert resolve("/images/a.txt") == "/images/a.txt"

    def test_a_relative_path_is_a_link_in_the_working_folder(self, host):
        with mounted({"host_path": str(host), "container_path": "data/images"}):
            assert os.path.islink("data/images")
            with open("data/images/a.txt") as file:
                assert file.read() == "a"
            with mounted(Mount(host, "data/../other")):
                assert os.path.islink("other")
            assert resolve("data/images/a.txt") == str(host / "a.txt")
        assert not os.path.lexists("data/images")
        assert not os.path.lexists("other")

    def test_in_another_folder(self, host, tmp_path):
        with mounted(Mount(host, "data"), folder=tmp_path / "run"):
            assert (tmp_path / "run" / "data" / "a.txt").read_text() == "a"

    def test_a_link_of_another_process_stays(self, host):
        os.symlink(host, "data")
        with mounted(Mount(host, "data")):
            assert os.path.islink("data")
        assert os.path.islink("data")

    def test_the_same_path_has_to_exist(self, host):
        with mounted(Mount(host, str(host))):
            assert resolve(host / "a.txt") == str(host / "a.txt")
        with (
            pytest.raises(MisconfigurationException, match="does not exist on this machine"),
            mounted(Mount("/absent/x", "/absent/x")),
        ):
            pass

    @pytest.mark.parametrize("path", [".", "./", "data/..", "..", "../data", "/"])
    def test_the_working_folder_cannot_be_replaced(self, path):
        with pytest.raises(MisconfigurationException, match="would replace the working folder"):
            Mount("/tmp", path)

    def test_the_innermost_of_several(self, host, tmp_path):
        with mounted([Mount(tmp_path, "/data"), {"host_path": host, "container_path": "/data/images"}]):
            assert resolve("/data/images/a.txt") == str(host / "a.txt")
            assert resolve("/data/other") == str(tmp_path / "other")
            assert resolve("s3://data/images") == "s3://data/images"


class TestReadOnly:
    @pytest.mark.parametrize("path", ["/images", "data", "same"])
    def test_writing_is_refused(self, host, path):
        path = str(host) if path == "same" else path
        with mounted(Mount(host, path, read_only=True)):
            with open_path(f"{path}/a.txt") as file:
                assert file.read() == "a"
            for mode in ("w", "a", "x", "r+"):
                with pytest.raises(MisconfigurationException, match="which is mounted read-only"):
                    open_path(f"{path}/a.txt", mode)
            with pytest.raises(MisconfigurationException, match="which is mounted read-only"):
                resolve(host / "b.txt", write=True)
            with pytest.raises(MisconfigurationException, match="which is mounted read-only"):
                filesystem.write(f"{path}/b.txt", lambda file: file.write(b"b"))
            with pytest.raises(MisconfigurationException, match="which is mounted read-only"):
                filesystem.remove(f"{path}/a.txt")
            with pytest.raises(MisconfigurationException, match="which is mounted read-only"):
                filesystem.rename(f"{path}/a.txt", f"{path}/c.txt")
        assert sorted(os.listdir(host)) == ["a.txt"]


class TestTrainer:
    def test_checkpoints_are_written_and_read_by_mapped_paths(self, host):
        def run(**arguments):
            module = Net()
            saves = ModelCheckpoint("/runs/checkpoints", save_last=True, save_top_k=0)
            trainer = quiet_trainer(
                limit_val_batches=0, enable_checkpointing=True, callbacks=[saves], max_epochs=arguments.pop("epochs")
            )
            torch.manual_seed(1)
            trainer.fit(module, loader(8, shuffle=True), **arguments)
            return module

        with mounted(Mount(host, "/runs")):
            run(epochs=1)
            resumed = run(epochs=2, ckpt_path="/runs/checkpoints/last.ckpt")
            torch.manual_seed(1)
        assert (host / "checkpoints" / "last.ckpt").exists()
        assert not os.path.exists("/runs")
        complete = Net()
        torch.manual_seed(1)
        quiet_trainer(limit_val_batches=0, max_epochs=2).fit(complete, loader(8, shuffle=True))
        assert same_weights(resumed, complete)

    def test_a_read_only_folder_for_checkpoints_is_refused_before_training(self, host):
        steps = []

        with mounted(Mount(host, "/runs", read_only=True)):
            trainer = quiet_trainer(
                limit_val_batches=0, enable_checkpointing=True, callbacks=[ModelCheckpoint("/runs/x")], max_epochs=1
            )
            with pytest.raises(MisconfigurationException, match="which is mounted read-only"):
                trainer.fit(calling(training_step=lambda self, batch, batch_idx: steps.append(batch_idx)), loader(8))
        assert not steps
        assert sorted(os.listdir(host)) == ["a.txt"]

    def test_the_folder_of_a_run(self, host):
        with mounted(Mount(host, "/runs")):
            assert Trainer(**{**QUIET, "default_root_dir": "/runs/one"}).default_root_dir == str(host / "one")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda host: Mount("", "/data"), MisconfigurationException, r"Mount\(host_path=''"),
        (lambda host: Mount(host, 5), ArgumentTypeError, r"Mount\(container_path=5"),
        (lambda host: Mount(host, "/data", "ro"), ArgumentTypeError, r"Mount\(read_only='ro'"),
        (lambda host: mounted({"host_path": host}).__enter__(), MisconfigurationException, "has no container_path"),
        (lambda host: mounted({"host": host}).__enter__(), UnknownNameError, "host"),
        (lambda host: mounted([5]).__enter__(), ArgumentTypeError, "mounted got 5"),
        (
            lambda host: mounted([Mount(host, "/a"), Mount(host, "/a")]).__enter__(),
            MisconfigurationException,
            "Two mounts have the container path /a",
        ),
        (
            lambda host: mounted([Mount("/tmp", os.path.dirname(host)), Mount(host, "/b")]).__enter__(),
            MisconfigurationException,
            "lies below .*, which is mapped to /tmp",
        ),
    ],
)
def test_errors(host, make, kind, text):
    with pytest.raises(kind, match=text):
        make(host)


def test_a_place_that_is_taken(host):
    os.makedirs("data")
    with (
        pytest.raises(MisconfigurationException, match="exists, and is no link to"),
        mounted(Mount(host, "data")),
    ):
        pass
    assert resolve("data") == "data"
