"""Needs of a trial: shared memory, mounts, ports, and its command line."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.machine.containers import INSIDE
from lightlib.experiment.machine.needs import check_machine, command_of
from tests.experiment.work.small import config


def test_shared_memory_that_is_not_there_warns():
    with pytest.warns(match=r"is 1\.1e\+12.* GiB, and .* GiB of shared memory"):
        check_machine(config(resources={"shm_size": "1048576P"}))


def test_a_mount_without_a_container_that_should_be_read_only_warns(tmp_path, monkeypatch, recwarn):
    mounts = config(bind_mounts=[{"host_path": str(tmp_path), "container_path": "x", "read_only": True}])
    with pytest.warns(match=rf"read_only' is true, and nothing .* from writing to '{tmp_path}'.*Fix: environment"):
        check_machine(mounts)
    check_machine(mounts, contained=True)
    monkeypatch.setattr("os.access", lambda path, mode: (path, mode) != (str(tmp_path), os.W_OK))
    check_machine(mounts)
    assert list(recwarn) == []


def test_ports_need_no_proxy_on_this_machine(caplog, monkeypatch):
    ports = config(environment={"proxy_ports": [8080, {"proxy_port": 9000, "proxy_tcp": True}]})
    with caplog.at_level("INFO", "lightlib"):
        check_machine(ports)
        assert "'environment.proxy_ports': no proxy is needed" in caplog.text
        assert "so 8080, 9000 can be reached there" in caplog.text
        caplog.clear()
        monkeypatch.setenv(INSIDE, "1")  # in a pod, the manifest names them
        check_machine(ports)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [
        ("python3 train.py", ("python3", "train.py")),
        (
            "python3 -m determined.launch.torch_distributed train.py",
            ("python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"),
        ),
        (None, ()),
    ],
)
def test_command_lines(entrypoint, command):
    assert command_of(config(entrypoint=entrypoint), 2) == command
