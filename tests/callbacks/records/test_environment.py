"""EnvironmentRecord: each fact once, and no secret."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lightlib
from lightlib.callbacks import EnvironmentRecord, LambdaCallback, Timer
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError
from lightlib.loggers import CSVLogger
from tests.runs.plain import QUIET, Net, loader
from tests.runs.saves_at import SavesAt

pytestmark = pytest.mark.processes  # it calls git


def record_of(tmp_path, *callbacks, **arguments):
    logger = CSVLogger(tmp_path / "logs")
    callbacks = [EnvironmentRecord(verbose=False, **arguments), *callbacks]
    Trainer(**{**QUIET, "logger": logger}, max_epochs=1, callbacks=callbacks).fit(Net(), loader(4))
    (file,) = Path(logger.log_dir, "media", "environment").iterdir()
    assert file.name == "00000000.txt"
    return file.read_text()


def repository(folder):
    """Make a repository with one commit, and return its hash."""
    options = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (folder / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], [*options, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_each_fact_stands_there_once(tmp_path, monkeypatch):
    commit = repository(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.5"])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    text = record_of(tmp_path, Timer(), LambdaCallback())
    for pattern in (
        rf"^  Python +{re.escape(sys.version.split()[0])} \(.*\)$",
        rf"^  torch +{re.escape(torch.__version__)}, CUDA .*$",
        rf"^  lightlib +{re.escape(lightlib.__version__)}$",
        r"^  Devices +cpu( \(.*\))?$",
        r"^  Processes +1, strategy SingleDeviceStrategy$",
        r"^  Precision +32-true$",
        r"^  Command +train\.py --lr 0\.5$",
        rf"^  Git +{commit}$",
        r"^  \$OMP_NUM_THREADS +3$",
        r"^  1\. EnvironmentRecord\(verbose=False\)$",
        r"^  2\. Timer\(\)$",
        r"^  3\. LambdaCallback\(\)$",
    ):
        assert len(re.findall(pattern, text, re.MULTILINE)) == 1, (pattern, text)
    (tmp_path / "file").write_text("2")
    assert f"{commit} with changes in 1 files" in record_of(tmp_path / "second")


def test_without_a_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert re.search(r"^  Git +no commit$", record_of(tmp_path), re.MULTILINE)


def test_callbacks_stand_in_the_order_of_their_calls(tmp_path):
    class Late(LambdaCallback):
        priority = "lowest"

    class Early(LambdaCallback):
        priority = "highest"

    text = record_of(tmp_path, Late(), Early())
    assert re.findall(r"^  \d\. (\w+)", text, re.MULTILINE) == ["Early", "EnvironmentRecord", "Late"]


def test_no_secret_is_written(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdef123")
    monkeypatch.setenv("NCCL_SECRET", "nccl-secret")
    monkeypatch.setenv("MY_API_KEY", "key-4711")
    monkeypatch.setenv("TORCH_INDEX", "https://user:hunter22@host/simple")
    words = ["train.py", "--hf_token", "hidden", "--db.password=pw1", "--url", "s3://key-4711/x", "--max_tokens", "512"]
    monkeypatch.setattr(sys, "argv", words)
    text = record_of(tmp_path, variables=["MY_API_KEY", "HF_TOKEN"])
    for secret in ("hf_abcdef123", "nccl-secret", "key-4711", "hidden", "pw1", "hunter22"):
        assert secret not in text
    assert "--hf_token *** --db.password=*** --url s3://***/x --max_tokens 512" in text
    assert "$TORCH_INDEX" in text
    written = [path.read_text() for path in (tmp_path / "logs").rglob("*.*")]
    assert not any("hunter22" in each or "key-4711" in each for each in written)


def test_it_is_printed_once(caplog, monkeypatch):
    monkeypatch.setattr("lightlib.report.log.propagate", True)
    monkeypatch.setattr("lightlib.report.log.handlers", [])  # pytest adds its own where nothing is propagated
    caplog.set_level("INFO", "lightlib")
    Trainer(**QUIET, max_epochs=2, callbacks=[EnvironmentRecord()]).fit(Net(), loader(4))
    assert caplog.text.count("Callbacks in the order of their calls") == 1


def test_a_resumed_run_records_its_environment_too(tmp_path):
    def fit(path=None, **more):
        settings = {**QUIET, "logger": CSVLogger(tmp_path), "max_epochs": 2}
        callbacks = [EnvironmentRecord(verbose=False), SavesAt(tmp_path / "saved.ckpt", 1)]
        Trainer(**settings, callbacks=callbacks).fit(Net(), loader(8), ckpt_path=path)

    fit()
    fit(tmp_path / "saved.ckpt")
    assert sorted(path.name for path in tmp_path.rglob("environment/*")) == ["00000000.txt", "00000001.txt"]


def test_bad_input():
    with pytest.raises(ArgumentTypeError, match=r"variables='PATH' \(str\)\)\.\n  Expected: a list of names"):
        EnvironmentRecord(variables="PATH")
