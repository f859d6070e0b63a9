"""The examples run from YAML alone, and the folder to copy works as its README describes."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from lightlib.command.main import main
from tests.processes import programs

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = EXAMPLES / "configs"
OF_THE_FOLDER = ["README.md", "config.yaml", "data.py", "debug.yaml", "gpu.yaml", "main.py", "model.py"]
QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
CSV = ["--trainer.logger=csv", "--trainer.log_every_n_steps=1"]

pytestmark = pytest.mark.filterwarnings("ignore:The dataloader:lightlib.report.PossibleUserWarning")


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import the programs of the examples for one test, under the names that they have when run."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.setattr(sys, "argv", ["lightlib"])
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield
    for name in {path.stem for path in EXAMPLES.rglob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the folder as a user would, and go there."""
    copy = Path("my_project").resolve()
    shutil.copytree(EXAMPLES / "cli", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(EXAMPLES)])
    return copy


def fit(name: str, *words: str) -> dict[str, list[float]]:
    """Train an example from its configuration and return its logged values by name."""
    assert main(["fit", "--config", str(CONFIGS / f"{name}.yaml"), *QUIET, *CSV, *words]) == 0
    return logged()


def logged() -> dict[str, list[float]]:
    newest = max(Path("lightning_logs").iterdir(), key=lambda path: int(path.name.removeprefix("version_")))
    with (newest / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


def commands(text: str) -> list[list[str]]:
    """Return the command lines of a file, without the program's name."""
    return [line.split()[1:] for line in re.findall(r"^(?:#   )?(lightlib .*)$", text, re.MULTILINE)]


# files
def test_each_example_has_a_configuration() -> None:
    # Programs that are started again, without a Trainer, with several runs, and that begin with the weights of another.
    without = {"killed", "fabric", "fine_tuning", "ray_train", "search", "sft", "dpo", "grpo"}
    examples = {path.stem for path in EXAMPLES.glob("*.py")} - without
    assert sorted(path.stem for path in CONFIGS.iterdir()) == sorted(examples)


@pytest.mark.parametrize("path", sorted(CONFIGS.iterdir()), ids=lambda path: path.stem)
def test_a_configuration_says_how_to_run_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    told = commands(path.read_text(encoding="utf-8"))
    assert ["fit", "--config", f"configs/{path.name}"] in told
    for words in told:
        with pytest.raises(SystemExit) as end:  # parses, and prints what it would do
            main([*words, "--print_config"])
        assert end.value.code == 0


def test_the_folder_to_copy_is_small() -> None:
    here = [path for path in (EXAMPLES / "cli").iterdir() if path.is_file()]
    assert sorted(path.name for path in here) == OF_THE_FOLDER
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 150 for path in here)


# runs
def test_digits_learns() -> None:
    values = fit("digits", "--trainer.max_epochs=2")
    assert values["train_loss"][0] > 1.5
    assert values["train_loss"][-1] < 0.5
    assert values["val_accuracy"][-1] > 0.8
    best = "lightning_logs/version_0/checkpoints/best.ckpt"
    assert main(["test", "--config", str(CONFIGS / "digits.yaml"), "--ckpt_path", best, *QUIET, *CSV]) == 0
    assert logged()["test_accuracy"][0] > 0.8


def test_image_classifier_learns_from_the_data_of_another_example() -> None:
    values = fit("image_classifier", "--trainer.max_epochs=2", "--model.width=8")
    assert values["accuracy"][-1] > 0.6  # one of ten is 0.1


def test_gan_paints() -> None:
    values = fit("gan", "--trainer.max_epochs=2", "--trainer.callbacks.path=pictures/some.png")
    assert values["discriminator_loss"][-1] < values["discriminator_loss"][0]
    assert Path("pictures/some.png").read_bytes().startswith(b"\x89PNG")


def test_gpt_learns() -> None:
    values = fit("gpt", "--trainer.max_steps=20", "--trainer.val_check_interval=20", "--model.width=32")
    assert values["train_loss"][-1] < values["train_loss"][0] - 0.5
    assert values["val_loss"][0] < 4.4  # an untrained model has log(128) = 4.9
    assert "lr-AdamW" in values


def test_segmentation_paints_masks() -> None:
    values = fit("segmentation", "--trainer.max_epochs=1", "--data.images=64", "--model.width=4")
    assert values["train_loss_step"][-1] < values["train_loss_step"][0]
    assert 0 < values["val_iou"][0] < 1
    assert [path.name for path in Path("masks").iterdir()] == ["epoch_00.png"]


def test_progressive_resizing_goes_on_with_larger_images() -> None:
    fit("progressive_resizing", "--trainer.max_epochs=2")
    values = fit("progressive_resizing", "--data.size=6", "--trainer.max_epochs=4", "--ckpt_path=last")
    assert [path.name for path in Path("lightning_logs").iterdir()] == ["version_0"]  # one history
    assert len(values["val_accuracy"]) == 4
    assert values["val_accuracy"][-1] > values["val_accuracy"][0]
    assert torch.load("resized/last.ckpt", weights_only=True)["global_step"] == 4 * 23


# the folder to copy
def test_every_command_of_the_readme_is_understood(folder: Path, capsys: pytest.CaptureFixture) -> None:
    told = commands(Path("README.md").read_text(encoding="utf-8"))
    assert len(told) >= 7
    Path("lightning_logs/version_0").mkdir(parents=True)
    shutil.copy("config.yaml", "lightning_logs/version_0/config.yaml")
    for words in told:
        if words[0] in ("fit", "test") and "--help" not in words and "configs/gan.yaml" not in words:
            words = [word.replace("best.ckpt", "last.ckpt") for word in words]  # noqa: PLW2901
            with pytest.raises(SystemExit) as end:
                main([*words, "--print_config"])
            assert end.value.code == 0, capsys.readouterr().err


def test_a_run_of_the_folder_is_repeated_bit_for_bit(folder: Path) -> None:
    small = ["--config", "debug.yaml", "--trainer.limit_train_batches=5", "--trainer.logger=csv"]
    assert main(["fit", "--config", "config.yaml", *small, *QUIET]) == 0
    assert logged()["train_loss"][-1] < logged()["train_loss"][0]
    saved = yaml.safe_load(Path("lightning_logs/version_0/config.yaml").read_text(encoding="utf-8"))
    assert saved["trainer"]["max_epochs"] == 1
    assert saved["optimizer"]["class_path"] == "torch.optim.AdamW"
    assert main(["fit", "--config", "lightning_logs/version_0/config.yaml"]) == 0
    first, second = (
        torch.load(f"lightning_logs/version_{run}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for run in (0, 1)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.processes
def test_the_script_of_the_folder_links_the_number_of_classes(folder: Path) -> None:
    words = ["fit", "--config=config.yaml", "--config=debug.yaml", "--data.classes=5", *QUIET]
    done = programs.run("main.py", *words, "--model.width=4")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^test accuracy 0\.\d{4}$", done.stdout, re.MULTILINE)
    weights = torch.load("lightning_logs/version_0/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert weights["net.9.weight"].shape == (5, 128)
