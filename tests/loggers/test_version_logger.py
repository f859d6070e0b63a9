"""The directory of a run, and that no two runs share one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import yaml

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import CSVLogger, TensorBoardLogger
from lightlib.report import rank_zero_only
from tests.processes import programs


def test_versions_count_up(tmp_path):
    assert CSVLogger(tmp_path, "a", None).version == 0
    assert CSVLogger(tmp_path, "a", None).version == 1
    (tmp_path / "a" / "version_7").mkdir()
    (tmp_path / "a" / "version_x").mkdir()
    directory = CSVLogger(tmp_path, "a", None)
    assert (directory.version, directory.version) == (8, 8)
    assert directory.log_dir == str(tmp_path / "a" / "version_8")
    assert Path(directory.log_dir).is_dir()


def test_names_of_versions(tmp_path):
    assert CSVLogger(tmp_path, "a", 3).log_dir == str(tmp_path / "a" / "version_3")
    assert CSVLogger(tmp_path, "a", "best").log_dir == str(tmp_path / "a" / "best")
    assert CSVLogger(tmp_path, "", "best").log_dir == str(tmp_path / "best")
    assert CSVLogger(tmp_path, None, "").log_dir == str(tmp_path)
    assert CSVLogger(str(tmp_path), "a/b", 0).log_dir == str(tmp_path / "a" / "b" / "version_0")
    assert CSVLogger("", "a", 0).log_dir == os.path.join(".", "a", "version_0")
    assert not (tmp_path / "a").exists()


def test_home_and_variables_are_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUNS", "runs")
    assert CSVLogger("~/$RUNS", "a", 0).log_dir == str(tmp_path / "runs" / "a" / "version_0")


@pytest.mark.processes
def test_processes_that_start_at_once_get_different_versions(tmp_path):
    code = """
import os, sys
from lightlib.loggers import CSVLogger
print("ready", flush=True)
while not os.path.exists("go"):
    pass
print([CSVLogger(sys.argv[1], "a", None).version for _ in range(20)])
"""
    processes = [programs.Program("-c", code, tmp_path) for _ in range(3)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    Path("go").touch()
    versions = [version for process in processes for version in yaml.safe_load(process.communicate()[0])]
    assert sorted(versions) == list(range(60))


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
@pytest.mark.parametrize("value", ["..", "a/../../b", "../a", "/etc", "..\\a", "C:\\a", "\\a"])
def test_names_cannot_lead_out_of_the_directory(kind, value, tmp_path):
    for argument in ("name", "version") + (("sub_dir",) if kind is TensorBoardLogger else ()):
        with pytest.raises(MisconfigurationException, match=rf"{argument} is .* leads out of save_dir"):
            kind(tmp_path, **{argument: value})
    assert kind(tmp_path, name="a..b", version="v..1").log_dir == str(tmp_path / "a..b" / "v..1")


@pytest.mark.parametrize("argument", ["name", "version"])
def test_names_with_a_nul_are_refused(argument, tmp_path):
    with pytest.raises(MisconfigurationException, match=rf"{argument} is 'a\\x00b', which holds(.|\n)*{argument}='ab'"):
        CSVLogger(tmp_path, **{argument: "a\0b"})


def test_arguments_of_the_wrong_type(tmp_path):
    with pytest.raises(ArgumentTypeError, match=r"version=1\.5 \(float\)"):
        CSVLogger(tmp_path, "a", 1.5)
    with pytest.raises(ArgumentTypeError, match=r"version=True \(bool\)"):
        CSVLogger(tmp_path, "a", True)
    with pytest.raises(ArgumentTypeError, match=r"CSVLogger\(save_dir=None \(NoneType\)\)"):
        CSVLogger(None, "a", 0)
    with pytest.raises(ArgumentTypeError, match=r"name is 3.*\n.*\n  Fix: use name='3'"):
        CSVLogger(tmp_path, 3, 0)


@pytest.mark.parametrize("version", [None, 0])
@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_a_directory_that_cannot_be_written(kind, version, tmp_path):
    (tmp_path / "file").write_text("")
    logger = kind(tmp_path / "file" / "logs", version=version)
    with pytest.raises(
        MisconfigurationException, match=r"The log directory .*file/logs.* cannot be written: .*\n  Exp"
    ):
        logger.prepare()


def test_a_directory_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(MisconfigurationException, match="no permission to write"):
        CSVLogger(tmp_path, "a", 0).prepare()


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_other_ranks_learn_the_version_and_write_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = kind(tmp_path)
    logger.prepare()
    logger.log_metrics({"a": 1.0}, 0)
    logger.log_hyperparams({"a": 1})
    logger.save()
    logger.finalize("success")
    assert (logger.version, logger.log_dir) == (None, None)
    assert list(tmp_path.iterdir()) == []
    logger.share(lambda value: 4)
    assert logger.log_dir == str(tmp_path / "lightning_logs" / "version_4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_loggers_can_be_pickled(kind, tmp_path):
    logger = kind(tmp_path)
    logger.log_metrics({"a": 1.0}, 0)
    copy = pickle.loads(pickle.dumps(logger))
    logger.finalize("success")
    assert copy.log_dir == logger.log_dir
    copy.log_metrics({"a": 1.0}, 1)
    copy.finalize("success")


def test_hparams_are_written_whole(tmp_path):
    CSVLogger(tmp_path, "a", 0).log_hyperparams({"ü": [1, {"x": None}], "inf": float("inf")})
    path = tmp_path / "a" / "version_0"
    assert yaml.safe_load((path / "hparams.yaml").read_text()) == {"ü": [1, {"x": None}], "inf": float("inf")}
    CSVLogger(tmp_path, "a", 0).log_hyperparams({"b": 1})
    assert yaml.safe_load((path / "hparams.yaml").read_text()) == {"b": 1}
    assert [file.name for file in path.iterdir()] == ["hparams.yaml"]


def test_versions_at_a_url(memory):
    first, second = CSVLogger("memory://runs", "a", None), CSVLogger("memory://runs/", "a", None)
    assert (first.version, second.version) == (0, 1)
    assert second.log_dir == "memory://runs/a/version_1"
    second.log_hyperparams({"lr": 0.1})
    assert yaml.safe_load(memory.cat_file("/runs/a/version_1/hparams.yaml")) == {"lr": 0.1}


def test_a_version_at_a_url_that_another_run_takes_meanwhile(memory, monkeypatch):
    CSVLogger("memory://runs", "a", 0).log_hyperparams({})
    monkeypatch.setattr(type(memory), "ls", lambda self, path, detail=True: [])
    assert CSVLogger("memory://runs", "a", None).version == 1


def test_an_unknown_protocol():
    with pytest.raises(MisconfigurationException, match=r"save_dir 'nope://x/.*\n.*\n  Fix: pip install s3fs"):
        CSVLogger("nope://x", "a", None).prepare()
