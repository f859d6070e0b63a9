"""JSONLLogger, read back with the json module."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightlib import registry
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import Fanout, JSONLLogger
from lightlib.report import LightlibWarning, rank_zero_only
from lightlib.testing import check_logger
from tests.processes import programs
from tests.runs.modules import LogsLoss
from tests.runs.plain import QUIET, Net, loader


def lines(logger):
    return [json.loads(line) for line in Path(logger.log_dir, "metrics.jsonl").read_text("utf-8").splitlines()]


def test_it_conforms():
    check_logger(JSONLLogger)


def test_one_object_a_line_written_at_once(tmp_path):
    logger = JSONLLogger(tmp_path, name="run", prefix="a")
    logger.log_metrics({"val/loss": torch.tensor(0.25), "größe": 2, "new\nline": 1.0}, 3)
    logger.log_metrics({"other": 0.1})
    assert lines(logger) == [
        {"step": 3, "a-val/loss": 0.25, "a-größe": 2.0, "a-new\nline": 1.0},
        {"step": 4, "a-other": 0.1},
    ]
    assert Path(logger.log_dir) == tmp_path / "run" / "version_0"
    assert sorted(path.name for path in Path(logger.log_dir).iterdir()) == ["hparams.yaml", "metrics.jsonl"]


def test_numbers_that_json_does_not_have(tmp_path):
    logger = JSONLLogger(tmp_path)
    logger.log_metrics({"a": math.nan, "b": math.inf, "c": -math.inf}, 0)
    text = Path(logger.log_dir, "metrics.jsonl").read_text()
    (row,) = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert math.isnan(float(row["a"]))
    assert (float(row["b"]), float(row["c"])) == (math.inf, -math.inf)


def test_lines_now_and_then(tmp_path):
    logger = JSONLLogger(tmp_path, flush_logs_every_n_steps=10)
    for step in range(15):
        logger.log_metrics({"x": 1.0}, step)
    assert [line["step"] for line in lines(logger)] == list(range(11))
    logger.finalize("failed")
    assert [line["step"] for line in lines(logger)] == list(range(15))


def test_its_short_name():
    assert registry.get("loggers", "jsonl") is JSONLLogger
    assert isinstance(Trainer(logger="jsonl").logger, JSONLLogger)


def test_wrong_arguments(tmp_path):
    with pytest.raises(MisconfigurationException, match=r"is 0\.(.|\n)*JSONLLogger\(\.\.\., flush_logs_every_n_st"):
        JSONLLogger(tmp_path, flush_logs_every_n_steps=0)
    with pytest.raises(MisconfigurationException, match="leads out of save_dir"):
        JSONLLogger(tmp_path, name="../other")
    with pytest.raises(ArgumentTypeError, match=r"The metric 'x' is 'high'\."):
        JSONLLogger(tmp_path).log_metrics({"x": "high"}, 0)


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = JSONLLogger(tmp_path)
    logger.log_metrics({"x": 1.0}, 0)
    logger.save()
    assert list(tmp_path.iterdir()) == []


def test_at_a_url(memory):
    logger = JSONLLogger("memory://runs", name="a")
    logger.prepare()
    logger.log_metrics({"x": 1.0}, 0)
    logger.log_metrics({"y": 2.0}, 1)
    assert memory.cat_file("/runs/a/version_0/metrics.jsonl") == b'{"step": 0, "x": 1.0}\n{"step": 1, "y": 2.0}\n'


rows = st.lists(st.tuples(st.integers(0, 5), st.dictionaries(st.sampled_from(["a", "b", 'q"u,o']), st.floats())))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(before=rows, lost=rows, after=rows, torn=st.booleans(), every=st.integers(1, 4))
def test_resumed_the_file_is_that_of_an_unbroken_run(tmp_path_factory, before, lost, after, torn, every):
    tmp_path = tmp_path_factory.mktemp("logs")

    def log(logger, several):
        for step, metrics in several:
            logger.log_metrics(metrics, step)

    def new(folder):
        return JSONLLogger(tmp_path / folder, flush_logs_every_n_steps=every)

    whole = new("whole")
    whole.prepare()
    log(whole, before)
    Fanout([whole]).save()
    log(whole, after)
    whole.finalize("success")
    killed = new("cut")
    killed.prepare()
    log(killed, before)
    killed.save()
    states = json.loads(json.dumps(Fanout([killed]).state_dict()))
    log(killed, lost)
    killed.save()
    file = Path(killed.log_dir, "metrics.jsonl")
    if torn and file.exists():
        file.write_bytes(file.read_bytes() + b'{"step": 1, "lo')
    again = new("cut")
    Fanout([again]).load_state_dict(states)
    again.prepare()
    log(again, after)
    again.finalize("success")
    assert again.version == 0
    expected = Path(whole.log_dir, "metrics.jsonl")
    assert file.exists() == expected.exists() == bool(before or after)
    if file.exists():
        assert file.read_bytes() == expected.read_bytes()


def test_without_a_checkpoint_a_torn_line_is_dropped(tmp_path):
    logger = JSONLLogger(tmp_path, version=0)
    logger.log_metrics({"x": 1.0}, 0)
    with Path(logger.log_dir, "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')
    again = JSONLLogger(tmp_path, version=0)
    with pytest.warns(LightlibWarning, match="was never finished and is dropped"):
        again.log_metrics({"x": 2.0}, 1)
    assert lines(again) == [{"step": 0, "x": 1.0}, {"step": 1, "x": 2.0}]


@pytest.mark.processes
def test_a_killed_process_leaves_every_line(tmp_path):
    code = """
import os, signal, sys
from lightlib.loggers import JSONLLogger
logger = JSONLLogger(sys.argv[1], version=0)
for step in range(25):
    logger.log_metrics({"x": step / 3}, step)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert programs.run("-c", code, tmp_path).returncode == -signal.SIGKILL
    assert lines(JSONLLogger(tmp_path, version=0)) == [{"step": step, "x": step / 3} for step in range(25)]


def test_the_losses_are_those_of_a_plain_loop(tmp_path):
    torch.manual_seed(1)
    model, data = LogsLoss(), loader(20)
    plain = Net()
    plain.load_state_dict(model.state_dict())
    (optimizer,) = [plain.configure_optimizers()]
    expected = []
    for batch in data:
        loss = plain.training_step(batch, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    logger = JSONLLogger(tmp_path)
    Trainer(**{**QUIET, "logger": logger}, max_epochs=1, log_every_n_steps=1).fit(model, data)
    assert [(line["step"], line["loss"]) for line in lines(logger)] == list(enumerate(expected, 1))
