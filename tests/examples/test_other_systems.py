"""The examples in the documentation of other trainers, written for lightlib, run as programs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from lightlib.command.main import main
from tests.processes import programs

SYSTEMS = Path(__file__).parent / "systems"


def run(name: str, *arguments: str, starts: int = 0) -> str:
    done = programs.run(SYSTEMS / f"{name}.py", *arguments, env=programs.environment(), starts=starts)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.processes
def test_mmengines_pipeline() -> None:
    assert len((SYSTEMS / "mmengine_digits.py").read_text(encoding="utf-8").splitlines()) <= 63
    said = run("mmengine_digits")
    lines = re.findall(
        r"^Epoch\(train\) \[(\d)\]\[(\d+)/45\]  lr: 5\.0000e-02  eta: \S+  time: \S+  data_time: ", said, re.MULTILINE
    )
    assert lines == [(str(epoch), str(batch)) for epoch in range(1, 6) for batch in (10, 20, 30, 40)]
    accuracies = re.findall(r"^Epoch\(val\) \[\d\]\[12/12\]  accuracy: (\d+\.\d{4})  ", said, re.MULTILINE)
    assert len(accuracies) == 5
    assert float(said.splitlines()[-1].removeprefix("accuracy: ")) == float(accuracies[-1]) > 95
    saved = Path("work_dir/lightning_logs/version_0/checkpoints")
    assert {path.name for path in saved.iterdir()} == {f"epoch={n}-step={45 * (n + 1)}.ckpt" for n in range(5)}


@pytest.mark.processes
def test_accelerated_transfer_learning() -> None:
    said = run("accelerated_transfer")
    first, second = re.findall(r"accuracy (0\.\d{3}|1\.000)$", said, re.MULTILINE)
    assert float(first) > 0.9
    assert float(second) > 0.85
    assert len(re.findall(r"^Epoch\(val\) \[\d\]\[73/73\]", said, re.MULTILINE)) == 2
    assert len(re.findall(r"^Epoch\(val\) \[1\]\[18/18\]", said, re.MULTILINE)) == 1


@pytest.mark.processes
def test_accelerated_progressive_resizing() -> None:
    said = run("accelerated_resizing")
    assert re.findall(r"^Training with image size (\d+)$", said, re.MULTILINE) == ["8", "16", "24"]
    assert "\n11 epochs, 275 steps\n" in said, "one history"
    (accuracies,) = re.findall(r"^accuracies: (.*)$", said, re.MULTILINE)
    values = [float(value) for value in accuracies.split()]
    assert len(values) == 11
    assert max(values) == float(said.rsplit("best: ", 1)[1]) > 0.8


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [(), ("--devices", "2", "--strategy", "ddp", "--precision", "32-true")])
def test_libais_two_lists_in_one_script(arguments: tuple[str, ...]) -> None:
    said = run("libai_lists", *arguments, starts=1 if arguments else 0)
    steps = 8 * 28 // (2 if arguments else 1)
    assert f"epochs: 8, steps: {steps}\n" in said
    assert f"rows with a loss: {steps // 5}\n" in said
    assert "rows with a valid_loss: 8\n" in said, "the resumed run continues the file"
    assert float(said.split("best accuracy: ")[1].split()[0]) > 0.8
    assert "predictions: 397" in said or arguments, "each rank has its own"


EPOCH = [
    "before_train_epoch", *["before_train_iter", "after_train_iter"] * 3, "after_train_epoch",
    "before_test", "before_test_epoch", *["before_test_iter", "after_test_iter"] * 3, "after_test_epoch", "after_test",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::lightlib.report.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore:CosineAnnealingLR is built for 1000 steps")
def test_colossalais_eight_hooks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "path", [str(SYSTEMS), *sys.path])
    monkeypatch.setattr(sys, "argv", ["lightlib"])
    config = ["fit", "--config", str(SYSTEMS / "colossalai.yaml")]
    try:
        assert main(config) == 0
        said = capsys.readouterr().out
        assert {path.name for path in Path("ckpt").iterdir()} == {f"epoch={n}.ckpt" for n in (4, 9, 14, 19)}
        points = Path("points.txt").read_text(encoding="utf-8").splitlines()
        assert points == ["before_train", *EPOCH * 20, "after_train"]
        assert len(set(points)) == 12
        assert len(re.findall(r"^Epoch\(val\) \[\d+\]\[3/3\]  accuracy: ", said, re.MULTILINE)) == 20
        Path("points.txt").unlink()
        assert main([*config, "--ckpt_path", "ckpt/epoch=19.ckpt", "--trainer.max_epochs", "22"]) == 0
    finally:
        sys.modules.pop("colossalai_model", None)
    assert Path("points.txt").read_text(encoding="utf-8").splitlines() == ["before_train", *EPOCH * 2, "after_train"]
    assert torch.load("ckpt/epoch=19.ckpt", weights_only=True)["epoch"] == 19
    (events,) = [path for path in Path("tfb_logs").rglob("events.out.tfevents.*") if "version_0" in str(path)][:1]
    assert b"accuracy" in events.read_bytes()
