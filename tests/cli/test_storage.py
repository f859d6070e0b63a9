"""Stores as mappings in the configuration of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lightlib.cli import LightningCLI
from lightlib.errors import MisconfigurationException
from tests.cli.parts import QUIET, PointsOfLine, SteepLine


def fitted(dirpath, **trainer):
    saver = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": dirpath, "keep_last": 2, "save_begin": 1}}
    Path("c.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [saver], **trainer}}))
    words = [word for word in QUIET if "enable_checkpointing" not in word]
    return LightningCLI(SteepLine, PointsOfLine, args=["fit", *words, "--config=c.yaml"])


def test_of_a_callback_and_of_the_trainer(tmp_path):
    root = {"type": "directory", "container_path": str(tmp_path / "root")}
    cli = fitted({"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "runs/1"}, default_root_dir=root)
    assert list((tmp_path / "runs" / "1").glob("*.ckpt"))
    assert cli.trainer.default_root_dir == str((tmp_path / "root").resolve())


def test_a_path_stays_a_path(tmp_path):
    fitted(str(tmp_path / "plain"))
    assert list((tmp_path / "plain").glob("*.ckpt"))


def test_a_wrong_key_has_its_place(tmp_path):
    with pytest.raises(MisconfigurationException, match=r"(?s)the key 'host_pat'.*'host_path'.*c\.yaml"):
        fitted({"type": "shared_fs", "host_pat": str(tmp_path)})
