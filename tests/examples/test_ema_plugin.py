"""The package lightlib-ema: found by its entry point, its own tests, and EMA over processes."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib as L
from lightlib import registry
from tests.distributed.test_state import QUIET
from tests.distributed.user import BATCH, built, data
from tests.processes import programs
from tests.processes.ranks import ranks

PACKAGE = Path(__file__).parents[2] / "examples" / "plugins" / "lightlib-ema"
STEPS, DECAY = 7, 0.8


def declared() -> configparser.ConfigParser:
    """Return the entry points in the package's pyproject.toml, in the form of an installed package."""
    text = (PACKAGE / "pyproject.toml").read_text(encoding="utf-8")
    points = re.findall(r'^\[project\.entry-points\."(.+)"\]\n((?:\w+ = ".+"\n)+)', text, re.MULTILINE)
    parser = configparser.ConfigParser()
    parser.optionxform = str  # names keep their case
    for group, lines in points:
        parser.read_string(f"[{group}]\n{lines.replace(chr(34), '')}")
    return parser


def test_its_name_is_found_when_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "lightlib_ema-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lightlib-ema\nVersion: 0.1.0\n")
    with (info / "entry_points.txt").open("w") as file:
        declared().write(file)
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        found = registry.get("callbacks", "EMA")
        assert found is sys.modules["lightlib_ema"].EMA
        assert "EMA" in registry.names("callbacks")
    finally:
        sys.modules.pop("lightlib_ema", None)


@pytest.mark.processes
def test_its_own_tests_pass() -> None:
    done = programs.run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=PACKAGE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[5-9] passed", done.stdout)


def trained(rank: int, strategy: str, before: Path | None = None, after: Path | None = None) -> Any:
    """Train with validations; return the logged validation losses, the average and the weights, in full."""
    sys.path.insert(0, str(PACKAGE))
    from lightlib_ema import EMA  # from a folder that is not installed

    ema, size = EMA(DECAY), 2 if strategy == "fsdp" else 1
    trainer = L.Trainer(
        **QUIET | {"limit_val_batches": 1.0},
        strategy=strategy,
        max_epochs=1,
        max_steps=-1 if after is None else 4,
        val_check_interval=2,
        callbacks=ema,
        **({"devices": 1} if strategy == "auto" else {}),
    )
    loader = DataLoader(data(), BATCH // size)
    trainer.fit(built(), loader, loader, ckpt_path=before)
    if after is not None:
        trainer.save_checkpoint(after)
    loss = trainer.callback_metrics.get("val_loss")
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    sys.path.remove(str(PACKAGE))
    return loss, trainer.strategy.parameter_tensors(ema.average), weights


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:The checkpoint was written by")
def test_it_averages_sharded_weights(tmp_path: Path) -> None:
    """Under FSDP it matches one device, also when it resumes a checkpoint of one device."""
    path = tmp_path / "one.ckpt"
    loss, average, weights = ranks(1, trained, "auto")[0]
    ranks(1, trained, "auto", None, path)
    for found in (ranks(2, trained, "fsdp")[0], ranks(2, trained, "fsdp", path)[0]):
        torch.testing.assert_close(found[0], loss, rtol=1e-4, atol=1e-6)
        assert list(found[1]) == list(average)
        for name, value in average.items():
            torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found[2][name], weights[name], rtol=1e-4, atol=1e-5)
