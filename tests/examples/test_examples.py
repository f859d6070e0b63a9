"""Each example is one short file, uses only the public API, and works as its docstring describes."""

from __future__ import annotations

import ast
import json
import re
import signal
from pathlib import Path

import pytest

from lightlib import optional, registry
from tests.processes import programs

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = {"image_classifier": 80, "gpt": 180}
PUBLIC = {
    "lightlib",
    "lightlib.callbacks",
    "lightlib.experiment",
    "lightlib.loggers",
    "lightlib.losses",
    "lightlib.strategies",
}
ALWAYS = ("ddp", "fsdp", "pipeline")  # the other strategies take `make slow`
STRATEGIES = [name for name in registry.BUILT_IN["strategies"] if name != "single_device" and "find" not in name]
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted((EXAMPLES / "notebooks").iterdir())
RUN_NOTEBOOK = Path(__file__).with_name("notebook.py")


def run(name: str, *arguments: str, starts: int = 0) -> str:
    """Run an example in the current folder, as a user would; return its output; `starts`: other ranks."""
    path = EXAMPLES / f"{name}.py"
    done = programs.run(path, *arguments, env=programs.environment(MPLBACKEND="Agg"), starts=starts)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def number_after(words: str, text: str) -> float:
    found = re.search(rf"{re.escape(words)}\s+([0-9.]+)", text)
    assert found, text
    return float(found[1].rstrip("."))


# files
def test_all_examples_are_here() -> None:
    assert NAMES == [
        "digits", "dpo", "fabric", "fine_tuning", "gan", "gpt", "grpo", "image_classifier", "killed", "parallel_gpt",
        "progressive_resizing", "ray_train", "search", "segmentation", "sft",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES.get(name, 150)
    assert f"    python examples/{name}.py\n" in (ast.get_docstring(ast.parse(text), clean=False) or "")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_uses_only_what_is_public(name: str) -> None:
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {module for module in imported if module.split(".")[0] == "lightlib"} <= PUBLIC
    private = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    assert private <= {"__init__", "__file__"}


# runs
@pytest.mark.processes
def test_digits_reaches_its_accuracy_and_says_where_everything_is() -> None:
    said = run("digits")
    assert number_after("test accuracy", said) >= 0.97
    checkpoint = re.search(r"best checkpoint\s+(\S+)", said)
    assert checkpoint
    assert Path(checkpoint[1]).is_file()
    assert re.fullmatch(r"epoch=\d-val_accuracy=0\.\d{3}\.ckpt", Path(checkpoint[1]).name)
    logs = re.search(r"logs\s+(\S+)", said)
    assert logs
    assert list(Path(logs[1]).glob("events.out.tfevents.*"))


@pytest.mark.processes
def test_a_killed_run_ends_with_the_same_weights() -> None:
    expected = run("killed").splitlines()[-1]
    assert re.fullmatch(r"weights after 87 steps: [0-9a-f]{16}", expected)
    killed = programs.run(EXAMPLES / "killed.py", "--folder", "again", "--kill_at", "50", env=programs.environment())
    assert killed.returncode == -signal.SIGKILL
    assert run("killed", "--folder", "again").splitlines()[-1] == expected


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(590)
@pytest.mark.skipif(not optional.is_installed("ray"), reason="Ray is not installed (pip install 'ray[train]')")
def test_a_killed_worker_of_ray_costs_no_bit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray keeps its token there
    environment = programs.environment(RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.2")
    done = programs.interpreter(EXAMPLES / "ray_train.py", env=environment)
    assert done.returncode == 0, done.stderr
    ends = re.findall(r"^(\w+): weights after 87 steps: ([0-9a-f]{16})$", done.stdout, re.MULTILINE)
    assert [name for name, _ in ends] == ["uninterrupted", "killed"], done.stdout
    assert len({digest for _, digest in ends}) == 1
    assert "ActorDiedError" in done.stdout + done.stderr  # a worker was killed


@pytest.mark.processes
def test_digits_in_another_precision() -> None:
    said = run("digits", "--precision", "bf16-mixed", "--max_epochs", "3", "--accelerator", "cpu")
    assert number_after("test accuracy", said) >= 0.9


@pytest.mark.processes
def test_gpt_learns_and_writes() -> None:
    said = run("gpt", "--max_steps", "20", "--accumulate_grad_batches", "2")
    assert number_after("validation loss", said) < 3.7  # an untrained model has log(128) = 4.9
    assert "after 20 steps it writes:\n\ndef read(self, " in said


@pytest.mark.processes
@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.slow]) for name in STRATEGIES]
)
def test_gpt_trains_under_every_strategy(strategy: str) -> None:
    if strategy.startswith("deepspeed"):
        pytest.importorskip("deepspeed")
    if strategy.endswith("nvme"):
        pytest.skip("it needs an NVMe device at /local_nvme")
    said = run("gpt", "--strategy", strategy, "--devices", "2", "--accelerator", "cpu", "--max_steps", "6", starts=1)
    assert number_after("validation loss", said) < 4.6  # an untrained model has log(128) = 4.9
    assert "after 6 steps it writes:\n\ndef read(self, " in said
    saved = Path("lightning_logs/version_0/checkpoints")
    assert [path.name for path in saved.iterdir()] == [f"epoch=0-step=6{path.suffix}" for path in saved.iterdir()]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_parallel_gpt_trains_over_a_mesh(schedule: str) -> None:
    sizes = ["--pipeline", "2", "--shard", "1", "--tensor", "2"]
    said = run("parallel_gpt", *sizes, "--schedule", schedule, "--microbatches", "4", "--max_steps", "12", starts=3)
    assert number_after("validation loss", said) < 4.6
    checkpoint = re.search(r"one full checkpoint: (\S+)", said)
    assert checkpoint
    assert Path(checkpoint[1]).is_file()


@pytest.mark.processes
@pytest.mark.slow
def test_parallel_gpt_trains_over_three_dimensions() -> None:
    assert number_after("validation loss", run("parallel_gpt", "--max_steps", "6", starts=7)) < 4.85


@pytest.mark.processes
def test_gan_writes_a_picture() -> None:
    said = run("gan", "--max_epochs", "2", "--picture", "pictures/some.png")
    assert "64 generated digits" in said
    assert png_size(Path("pictures/some.png")) == (320, 320)


@pytest.mark.processes
def test_image_classifier_classifies() -> None:
    assert number_after("accuracy", run("image_classifier").splitlines()[-1]) >= 0.95


@pytest.mark.processes
def test_segmentation_paints_masks() -> None:
    said = run("segmentation", "--max_epochs", "2", "--images", "64", "--pictures", "some")
    assert 0 < number_after("best intersection over union", said) < 1
    assert [path.name for path in sorted(Path("some").iterdir())] == ["epoch_00.png", "epoch_01.png"]
    assert png_size(Path("some/epoch_01.png")) == (640, 480)


@pytest.mark.processes
def test_progressive_resizing_is_one_history() -> None:
    said = run("progressive_resizing", "--epochs", "2")
    rows = [line.split() for line in said.split("epoch  step  size  accuracy\n")[1].splitlines()[:6]]
    assert [row[:3] for row in rows] == [
        [str(epoch), str(23 * (epoch + 1)), str((4, 6, 8)[epoch // 2])] for epoch in range(6)
    ]
    assert all(0 <= float(row[3]) <= 1 for row in rows)
    assert [path.name for path in Path("lightning_logs").iterdir()] == ["version_0"]


@pytest.mark.processes
def test_fine_tuning_validates_an_average_of_the_weights() -> None:
    averaged = number_after("accuracy on the digits 5 to 9:", run("fine_tuning", "--max_epochs", "3"))
    trained = number_after("accuracy on the digits 5 to 9:", run("fine_tuning", "--max_epochs", "3", "--decay", "0"))
    assert min(averaged, trained) > 0.7  # one of five is 0.2
    assert averaged != trained


@pytest.mark.processes
def test_a_search_prints_its_best_trial() -> None:
    said = run("search", "--max_trials", "2", "--slots", "1")
    assert re.search(r"^best of 2 trials: number [01], accuracy 0\.\d{4}$", said, re.MULTILINE)
    assert Path("experiments/search").is_dir()


# notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_readable_and_has_no_output(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    cells = notebook["cells"]
    assert cells[0]["source"][0].startswith("# ")
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
    kinds = [cell["cell_type"] for cell in cells]
    assert kinds == ["markdown", "code"] + ["markdown", "code"] * (len(cells) // 2 - 1)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "pictures", "last"),
    [("digits", [4, 10, 14], r"accuracy on 359 new digits: 9\d"), ("resume", [], r"equal, bit for bit: \[True")],
)
def test_a_notebook_runs(name: str, pictures: list[int], last: str) -> None:
    env = programs.environment(IPYTHONDIR=str(Path("ipython").resolve()))
    done = programs.run(RUN_NOTEBOOK, EXAMPLES / "notebooks" / f"{name}.ipynb", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    assert [
        int(number) for number in re.findall(r"^cell (\d+) shows a picture$", done.stdout, re.MULTILINE)
    ] == pictures
    assert re.search(last, done.stdout)
