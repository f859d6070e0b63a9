"""JSONLLogger passes the conformance tests, and a resumed run leaves an uninterrupted file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightlib_jsonl_logger import JSONLLogger

import lightlib as L
from lightlib import registry
from lightlib.testing import BoringModule, check_logger


def trainer(folder: Path, **options: Any) -> L.Trainer:
    """Return a Trainer that logs each step and saves only on request."""
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(
        accelerator="cpu", devices=1, logger=JSONLLogger(folder), log_every_n_steps=1, **{**quiet, **options}
    )


def test_it_conforms() -> None:
    """Every check of the kit passes."""
    check_logger(JSONLLogger)


def test_its_name_is_known() -> None:
    """The entry point of this package names the class."""
    assert registry.get("loggers", "one_jsonl") is JSONLLogger


def test_a_run_becomes_lines_of_json(tmp_path: Path) -> None:
    """Hyperparameters come first, then one line per logged step."""
    trainer(tmp_path, max_steps=2).fit(BoringModule(depth=1))
    text = (tmp_path / "lightning_logs" / "run" / "metrics.jsonl").read_text()
    first, *rest = map(json.loads, text.splitlines())
    assert first["hyperparameters"] == {"depth": 1, "lr": 0.01}
    assert [line["step"] for line in rest if "train_loss_step" in line] == [1, 2]


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    """NaN and infinity become strings, so that every line stays valid JSON."""
    logger = JSONLLogger(tmp_path)
    logger.prepare()
    logger.log_metrics({"loss": float("nan"), "best": float("-inf")}, step=3)
    logger.save()
    assert json.loads(logger.path.read_text()) == {"step": 3, "loss": "nan", "best": "-inf"}


@pytest.mark.parametrize("logged_after", [0, 2])
def test_a_resumed_run_leaves_the_lines_of_an_uninterrupted_one(tmp_path: Path, logged_after: int) -> None:
    """Lines that were written after the checkpoint are dropped, and written again by the resumed run."""
    L.seed_everything(1)
    trainer(tmp_path / "one", max_steps=6).fit(BoringModule())
    L.seed_everything(1)
    stopped = trainer(tmp_path / "two", max_steps=4)
    stopped.fit(BoringModule())
    stopped.save_checkpoint(tmp_path / "saved.ckpt")
    for step in range(logged_after):
        stopped.logger.log_metrics({"train_loss": 0.0}, step=4 + step)
    stopped.logger.save()
    trainer(tmp_path / "two", max_steps=6).fit(BoringModule(), ckpt_path=tmp_path / "saved.ckpt")
    one, two = (_steps(tmp_path / name) for name in ("one", "two"))
    assert one == two


def _steps(folder: Path) -> list[Any]:
    lines = map(json.loads, (folder / "lightning_logs" / "run" / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["train_loss_step"]) for line in lines if "train_loss_step" in line]
