"""CSVLogger, read back with the csv module."""

from __future__ import annotations

import builtins
import csv
import sys
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import CSVLogger
from lightlib.loggers.csv import ExperimentWriter
from lightlib.report import LightlibWarning
from tests.processes import programs


def rows(logger):
    with open(f"{logger.log_dir}/metrics.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_and_names(tmp_path):
    logger = CSVLogger(tmp_path, name="run", flush_logs_every_n_steps=1)
    names = ["val/loss", "größe", "a{b}", 'with "quotes", and comma', "../x", "new\nline"]
    logger.log_metrics(dict.fromkeys(names, 0.5), 3)
    logger.log_metrics({"val/loss": torch.tensor(0.25), "n": 2}, 4)
    first, second = rows(logger)
    assert first == {"step": "3", **dict.fromkeys(names, "0.5"), "n": ""}
    assert second == {"step": "4", **dict.fromkeys(names, ""), "val/loss": "0.25", "n": "2"}
    written = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert written == [logger.experiment.NAME_HPARAMS_FILE, logger.experiment.NAME_METRICS_FILE]
    assert (logger.name, logger.version, logger.save_dir) == ("run", 0, str(tmp_path))
    assert (logger.root_dir, logger.log_dir) == (str(tmp_path / "run"), str(tmp_path / "run" / "version_0"))


def test_hparams_are_there_without_any_and_those_of_an_earlier_run_stay(tmp_path):
    logger = CSVLogger(tmp_path, version=0)
    logger.log_hyperparams()
    assert (tmp_path / "lightning_logs" / "version_0" / "hparams.yaml").read_text() == "{}\n"
    logger.log_hyperparams({"lr": 1})
    again = CSVLogger(tmp_path, version=0)
    again.prepare()
    again.save()
    assert (tmp_path / "lightning_logs" / "version_0" / "hparams.yaml").read_text() == "lr: 1\n"


def test_the_writer_counts_the_steps_that_nobody_gives(tmp_path):
    writer = ExperimentWriter(str(tmp_path))
    writer.log_metrics({"x": 1.0})
    writer.save()
    writer.log_metrics({"x": 1.0})
    writer.log_metrics({"x": 1.0}, 7)
    assert [row["step"] for row in writer.metrics] == [1, 7]


def test_a_subclass_says_where_it_writes(tmp_path):
    class Mine(CSVLogger):
        @property
        def name(self):
            return "mine"

        @property
        def version(self):
            return "today"

    logger = Mine(tmp_path)
    logger.log_metrics({"x": 1.0})
    logger.share(lambda value: pytest.fail("every process knows the version"))
    assert logger.log_dir == str(tmp_path / "mine" / "today")
    assert sorted(path.name for path in (tmp_path / "mine" / "today").iterdir()) == ["hparams.yaml", "metrics.csv"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert logger.state_dict()["version"] == "today"
    assert logger.earlier_log_dirs == []


def test_what_it_is_can_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = CSVLogger("logs", flush_logs_every_n_steps=5)
    assert repr(logger) == "CSVLogger(save_dir='logs')"
    assert list(tmp_path.iterdir()) == []  # to be read, it takes no version
    assert (logger.version, repr(logger)) == (0, "CSVLogger(save_dir='logs', version=0)")


def test_a_float_is_written_exactly(tmp_path):
    logger = CSVLogger(tmp_path)
    values = [0.1 + 0.2, 1e-300, float("nan"), float("inf"), -0.0]
    for step, value in enumerate(values):
        logger.log_metrics({"x": value}, step)
    logger.save()
    assert [repr(float(row["x"])) for row in rows(logger)] == [repr(value) for value in values]


def test_prefix_and_steps(tmp_path):
    logger = CSVLogger(tmp_path, prefix="p", flush_logs_every_n_steps=1)
    logger.log_metrics({"x": 1.0})
    logger.log_metrics({"x": 1.0}, 9)
    logger.log_metrics({"x": 1.0})
    assert [(row["step"], row["p-x"]) for row in rows(logger)] == [("0", "1.0"), ("9", "1.0"), ("10", "1.0")]


def test_every_row_is_written_at_once_if_asked_for(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    logger.log_metrics({"x": 1.0}, 0)
    logger.log_metrics({"y": 2.0}, 0)
    assert [(row["x"], row["y"]) for row in rows(logger)] == [("1.0", ""), ("", "2.0")]


def test_when_rows_are_written(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=100)
    written = []
    for step in range(49, 400, 50):
        logger.log_metrics({"x": 1.0}, step)
        written.append(len(rows(logger)))
    assert written == [1, 1, 3, 3, 5, 5, 7, 7]
    logger.finalize("failed")
    assert len(rows(logger)) == 8
    with pytest.raises(MisconfigurationException, match="flush_logs_every_n_steps is 0"):
        CSVLogger(tmp_path, flush_logs_every_n_steps=0)


_CHARACTERS = st.characters(exclude_characters="\0" * (sys.version_info < (3, 11)), codec="utf-8")  # for its csv
_NAMES = st.text(_CHARACTERS, min_size=1, max_size=5)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.dictionaries(_NAMES, st.floats(), max_size=4), st.booleans())))
def test_no_row_is_ever_lost(tmp_path, calls):
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    logger = CSVLogger(directory, version=0, flush_logs_every_n_steps=3)
    with warnings.catch_warnings(record=True):
        for step, (metrics, again) in enumerate(calls):
            metrics.pop("step", None)
            logger.log_metrics(metrics, step)
            if again:
                logger.finalize("success")
                logger = CSVLogger(directory, version=0, flush_logs_every_n_steps=3)
        logger.save()
    if calls:
        found = rows(logger)
        assert [row["step"] for row in found] == [str(step) for step in range(len(calls))]
        for row, (metrics, _) in zip(found, calls, strict=True):
            given_values = {name: repr(value) for name, value in metrics.items()}
            assert {name: value for name, value in row.items() if value and name != "step"} == given_values


def test_a_resumed_run_is_appended_to(tmp_path):
    first = CSVLogger(tmp_path, version="v")
    first.log_metrics({"loss": 1.0, "epoch": 0}, 0)
    first.finalize("success")
    second = CSVLogger(tmp_path, version="v")
    second.log_metrics({"epoch": 1, "accuracy": 0.5}, 1)
    second.finalize("success")
    assert rows(second) == [
        {"step": "0", "loss": "1.0", "epoch": "0", "accuracy": ""},
        {"step": "1", "loss": "", "epoch": "1", "accuracy": "0.5"},
    ]


def test_a_file_in_another_dialect_is_continued(tmp_path):
    path = tmp_path / "lightning_logs" / "v" / "metrics.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"epoch,step,loss\r\n0,0,1.5\r\n")
    logger = CSVLogger(tmp_path, version="v")
    logger.log_metrics({"loss": 0.5, "epoch": 1}, 1)
    logger.save()
    assert [(row["step"], float(row["loss"])) for row in rows(logger)] == [("0", 1.5), ("1", 0.5)]


def test_a_line_that_was_never_finished_is_dropped_and_shown(tmp_path):
    path = tmp_path / "lightning_logs" / "v" / "metrics.csv"
    path.parent.mkdir(parents=True)
    path.write_text("step,loss\n0,1.5\n1,0.")
    logger = CSVLogger(tmp_path, version="v")
    with pytest.warns(LightlibWarning, match=r"never finished and is dropped: '1,0\.'"):
        logger.log_metrics({"loss": 0.5}, 2)
    assert [(row["step"], row["loss"]) for row in rows(logger)] == [("0", "1.5"), ("2", "0.5")]


def test_rows_survive_a_write_that_failed(tmp_path, monkeypatch):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    logger.log_metrics({"loss": 1.0}, 0)
    writer = logger.experiment
    real, writer.metrics_file_path = writer.metrics_file_path, str(tmp_path / "missing" / "metrics.csv")
    with pytest.raises(OSError, match="missing"):
        logger.log_metrics({"loss": 2.0}, 1)
    writer.metrics_file_path = real
    logger.log_metrics({"loss": 3.0}, 2)
    assert [row["loss"] for row in rows(logger)] == ["1.0", "2.0", "3.0"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.experiment.metrics_file_path = "/dev/full"
    logger.log_metrics({"loss": 1.0}, 1)
    with pytest.raises(OSError, match="No space left"):
        logger.save()
    assert len(logger.experiment.metrics) == 1


def test_half_a_write_is_taken_back(tmp_path, monkeypatch):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    logger.log_metrics({"loss": 1.0}, 0)
    path = logger.experiment.metrics_file_path

    class Half:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            return self.file.write(data[:3])

        def __getattr__(self, name):
            return getattr(self.file, name)

    opened = builtins.open
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", lambda *args, **kwargs: Half(opened(*args, **kwargs)))
        with pytest.raises(OSError, match="No space left"):
            logger.log_metrics({"loss": 2.0}, 1)
    assert Path(path).read_text() == "step,loss\n0,1.0\n"
    logger.save()
    assert [row["loss"] for row in rows(logger)] == ["1.0", "2.0"]


def test_hparams(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams({"lr": 0.1, "data": {"password": "x", "betas": (0.9, 0.99)}})
    logger.log_hyperparams({"width": 3})
    written = yaml.safe_load(Path(logger.log_dir, "hparams.yaml").read_text())
    assert written == {"lr": 0.1, "data": {"password": "***", "betas": [0.9, 0.99]}, "width": 3}


def test_what_is_no_number(tmp_path):
    with pytest.raises(ArgumentTypeError, match="The metric 'x' is 'text'"):
        CSVLogger(tmp_path).log_metrics({"x": "text"}, 0)


def test_a_name_that_is_no_valid_text(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"\ud800": 1.0}, 0)
    assert rows(logger) == [{"step": "0", "\\ud800": "1.0"}]


def test_at_a_url(memory):
    logger = CSVLogger("memory://runs", name="a", flush_logs_every_n_steps=1)
    logger.prepare()
    logger.log_metrics({"x": 1.0}, 0)
    logger.log_metrics({"x": 2.0, "y": 3.0}, 1)
    logger.log_hyperparams({"lr": 0.1})
    again = CSVLogger("memory://runs", name="a", version=0)
    again.log_metrics({"y": 4.0}, 2)
    again.finalize("success")
    assert memory.cat_file("/runs/a/version_0/metrics.csv") == b"step,x,y\n0,1.0,\n1,2.0,3.0\n2,,4.0\n"
    assert logger.log_dir == "memory://runs/a/version_0"


@pytest.mark.processes
def test_a_killed_process_leaves_what_was_flushed(tmp_path):
    code = """
import os, sys
from lightlib.loggers import CSVLogger
logger = CSVLogger(sys.argv[1], version=0, flush_logs_every_n_steps=10)
for step in range(25):
    logger.log_metrics({"x": 1.0}, step)
os._exit(1)
"""
    assert programs.run("-c", code, tmp_path).returncode == 1
    assert len(rows(CSVLogger(tmp_path, version=0))) == 21
