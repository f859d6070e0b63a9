"""Keys of an experiment file have their effect in a trial that runs."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")

from lightlib.experiment.file import read
from lightlib.experiment.space import trial_seed
from tests.experiment.work.project import MODEL, Project, trained, until
from tests.experiment.work.test_worker import assert_as_torch

pytestmark = pytest.mark.processes

LOOP = """
import os
import signal
import sys
import time

import torch

from lightlib import experiment

trial = experiment.current()
rank = int(os.environ.get("RANK", 0))
print("argument", sys.argv[1:], "rank", rank, "of", os.environ.get("WORLD_SIZE", "1"))
kept = trial.checkpoint_dir / "step"
step = int(kept.read_text()) if kept.exists() else 0
while step < 6 and not trial.should_stop:
    step += 1
    if rank == 0:
        trial.report(step, val_loss=trial.hparams["lr"] / step)
        kept.with_suffix(".new").write_text(str(step))
        kept.with_suffix(".new").rename(kept)
    if step == 4 and "attempt-0" in os.getcwd():
        sys.exit("the first attempt fails")
"""


def test_a_command_with_a_loop_of_its_own(tmp_path):
    """It reports by lightlib.experiment.current, and continues from its own checkpoints."""
    project = Project(
        tmp_path,
        "entrypoint: python3 train.py --lr free\nsearcher: {name: random, metric: val_loss, max_trials: 2}",
    )
    (tmp_path / "train.py").write_text(LOOP)
    printed = project.run()
    assert printed.count("ended with exit code 1: the first attempt fails; restart 1 of 5") == 2
    for one in project.trials():
        assert (one.state, one.attempts, one.step) == ("completed", 2, 6)
        assert one.metric == one.hparams["lr"] / 6
        assert [each["step"] for each in project.messages(one.number, "validated")] == [1, 2, 3, 4, 5, 6]
    assert "argument ['--lr', 'free'] rank 0 of 1" in project.log(0)


def test_a_command_that_reports_nothing_ends_the_experiment(tmp_path):
    project = Project(tmp_path, "entrypoint: [sh, -c, 'echo no report']")
    printed = project.run(code=2)
    assert "ended without a report of the searcher's metric, 'val_loss'" in printed
    assert "Traceback" not in printed
    assert "no report" in project.log(0)


def test_a_command_once_per_slot(tmp_path):
    project = Project(
        tmp_path,
        """
        entrypoint: python3 -m determined.launch.torch_distributed train.py
        resources: {slots_per_trial: 2}
        searcher: {name: random, metric: val_loss, max_trials: 1}
        """,
    )
    (tmp_path / "train.py").write_text(LOOP.replace('"attempt-0"', '"no"'))
    project.run()
    assert [one.state for one in project.trials()] == ["completed"]
    assert "rank 0 of 2" in project.log(0)
    assert "rank 1 of 2" in project.log(0)


def test_two_slots_train_as_two_processes(tmp_path):
    """Both log, and the trial continues after both were killed. Numbers of DDP are tests of the strategy."""
    world = "print('world', self.trainer.world_size, 'here', os.environ['LOCAL_WORLD_SIZE'])"
    model = MODEL.replace("        self.log(self", f"        {world}\n        self.log(self")
    project = Project(
        tmp_path,
        """
        resources: {slots_per_trial: 2, is_single_node: true}
        fit: {model: {init_args: {dies_at: [3]}}}
        searcher: {name: random, metric: val_loss, max_trials: 1}
        """,
        model,
    )
    printed = project.run()
    assert [(one.state, one.attempts) for one in project.trials()] == [("completed", 2)], printed
    assert "world 2 here 2" in project.log(0)
    assert {line.split()[1] for line in project.log(0).splitlines()} == {"0", "1"}


@pytest.mark.parametrize("compressed", [True, False])
def test_gradients_are_compressed(tmp_path, compressed):
    """A step uses the mean gradient of both ranks, from numbers of 16 bits with `gradient_compression`."""
    model = MODEL.replace(
        "    def configure_optimizers(self):",
        "    def on_after_backward(self):\n"
        "        torch.save([one.grad for one in self.parameters()], SEEN / f'mean-{self.global_step}.pt')\n\n"
        "    def configure_optimizers(self):",
    ).replace(
        "return torch.nn.functional.mse_loss(self.layer(x + noise), y)",
        "loss = torch.nn.functional.mse_loss(self.layer(x + noise), y)\n"
        "        alone = torch.autograd.grad(loss, list(self.parameters()), retain_graph=True)\n"
        "        torch.save(alone, SEEN / f'alone-{self.global_step}-{self.global_rank}.pt')\n"
        "        return loss",
    )
    project = Project(
        tmp_path,
        f"""
        optimizations: {{gradient_compression: {str(compressed).lower()}}}
        searcher: {{name: random, metric: val_loss, max_trials: 1}}
        """,
        model,
        slots=2,
    )
    project.run()
    steps = sorted(project.seen.glob("mean-*.pt"))
    assert steps
    for path in steps:
        step = path.stem.removeprefix("mean-")
        first, second = (torch.load(project.seen / f"alone-{step}-{rank}.pt") for rank in (0, 1))
        if compressed:
            expected = [(a.half() / 2 + b.half() / 2).float() for a, b in zip(first, second, strict=True)]
        else:
            expected = [a / 2 + b / 2 for a, b in zip(first, second, strict=True)]
            assert not all(torch.equal(one, one.half().float()) for one in expected)
        assert all(map(torch.equal, torch.load(path), expected))


def test_environment_code_hook_and_mounts(tmp_path):
    """A trial sees its variables, a copy of the code, the file of the startup hook, and the mounted folders."""
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "data").write_text("here")
    model = MODEL.replace(
        "    def configure_optimizers(self):",
        "    def on_fit_start(self):\n"
        "        print('seen', os.environ['COLOUR'], Path('shelf/data').read_text(), Path(__file__).parent.name)\n"
        "        print('hooked', (Path(__file__).parent / 'hooked').read_text())\n\n"
        "    def configure_optimizers(self):",
    )
    project = Project(
        tmp_path / "project",
        f"""
        environment: {{environment_variables: {{cpu: ["COLOUR=green"], cuda: ["COLOUR=red"]}}}}
        bind_mounts: [{{host_path: {tmp_path / "shelf"}, container_path: shelf}}]
        searcher: {{name: random, metric: val_loss, max_trials: 1}}
        """,
        model,
    )
    (project.folder / "startup-hook.sh").write_text('printf "%s" "$COLOUR" > hooked\n')
    (project.folder / "large.bin").write_bytes(bytes(100))
    (project.folder / ".detignore").write_text("*.bin\nseen/\n# a comment\n")
    project.run()
    assert "seen green here .context" in project.log(0)
    assert "hooked green" in project.log(0)
    copied = {path.name for path in (project.experiment / ".context").iterdir()}
    assert copied >= {"model.py", "config.yaml", "search.yaml"}
    assert not copied & {"large.bin", "experiments", "seen"}


def test_a_trial_without_preload_is_a_new_interpreter(tmp_path):
    """It follows a variable that Python reads when it starts, and trains to the same weights."""
    model = MODEL.replace(
        "    def configure_optimizers(self):",
        "    def on_fit_start(self):\n        print('hash', hash('lightlib'))\n\n    def configure_optimizers(self):",
    )
    project = Project(
        tmp_path,
        """
        environment: {preload: false, environment_variables: [PYTHONHASHSEED=3]}
        searcher: {name: random, metric: val_loss, max_trials: 1}
        """,
        model,
    )
    project.run()
    words = [sys.executable, "-c", "print('hash', hash('lightlib'))"]
    expected = subprocess.run(words, env={"PYTHONHASHSEED": "3"}, capture_output=True, text=True, check=True).stdout
    assert expected.strip() in project.log(0)
    assert_as_torch(project, 1)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("best", {"best-epoch=2-step=12.ckpt"}),
        ("all", {f"epoch={n}-step={4 * n + 4}.ckpt" for n in range(3)}),
        ("none", set()),
    ],
)
def test_checkpoints_and_validations(tmp_path, policy, kept):
    project = Project(
        tmp_path,
        f"""
        checkpoint_policy: {policy}
        checkpoint_storage: {{save_trial_latest: 99}}
        perform_initial_validation: true
        min_checkpoint_period: {{batches: 5}}
        reproducibility: {{experiment_seed: 3}}
        hyperparameters: {{lr: 0.05}}
        searcher: {{name: single, metric: val_loss}}
        """,
    )
    project.run()
    found = {path.name for path in (project.attempts(0)[0] / "checkpoints").iterdir()}
    newest = {name for name in found if name.startswith("newest")}
    assert found == kept | {"last.ckpt"} | newest
    assert newest == {"newest-epoch=2-step=10.ckpt"}
    first, *rest = project.messages(0, "validated")
    assert first["step"] == 0
    _, losses = trained(0.05, trial_seed(3, 0))
    assert [one["metrics"]["val_loss"] for one in rest][-1] == losses[-1]


DETAILS = MODEL.replace("import os\n", "import logging\nimport os\n", 1).replace(
    "        x, y = batch\n        noise",
    """        x, y = batch
        logging.getLogger("lightlib.model").debug("a detail")
        print("computed in", self.layer(x).dtype)
        self.log("train_loss", 1.0)
        noise""",
)


def test_aggregation_periods_reports_and_the_log_level(tmp_path):
    """Optimizer steps of two batches; validations, checkpoints and reports count batches and records nevertheless."""
    project = Project(
        tmp_path,
        """
        scheduling_unit: 12
        min_validation_period: {batches: 3}
        min_checkpoint_period: {records: 32}
        optimizations: {aggregation_frequency: 2}
        environment: {experiment_seed: 5}
        reproducibility: {}
        debug: true
        hyperparameters: {lr: 0.05, global_batch_size: 8}
        searcher: {name: single, metric: val_loss}
        fit:
          trainer: {logger: {class_path: lightlib.loggers.CSVLogger, init_args: {save_dir: metrics}}}
        """,
        DETAILS,
    )
    project.run()
    weights, losses = trained(0.05, trial_seed(5, 0), aggregated=2, period=3)
    found = [one["metrics"]["val_loss"] for one in project.messages(0, "validated")]
    assert found == losses
    assert all(torch.equal(project.weights(0)[name], value) for name, value in weights.items())
    (attempt,) = project.attempts(0)
    saved = [one for one in project.messages(0, "checkpoint") if Path(one["path"]).name.startswith("newest")]
    assert [one["step"] for one in saved] == [4, 8, 12], "batches of 8 records"
    (table,) = attempt.glob("metrics/**/metrics.csv")
    rows = [row for row in csv.DictReader(table.read_text().splitlines()) if row["train_loss"]]
    assert [int(row["step"]) for row in rows] == [6], "six optimizer steps are twelve batches"
    assert "a detail" in project.log(0)


def test_mixed_precision_and_the_place_of_an_experiment(tmp_path):
    """Without `debug` there are no details in the log; a trial without slots computes on the CPU."""
    project = Project(
        tmp_path,
        """
        description: a first look
        workspace: vision
        project: lines
        data: {url: a-file, secrets: {key: hidden}}
        optimizations: {mixed_precision: O1}
        resources: {slots_per_trial: 0}
        hyperparameters: {lr: 0.05}
        searcher: {name: single, metric: val_loss, max_length: {batches: 2}}
        """,
        DETAILS,
    )
    assert "val_loss" in project.run()
    place = tmp_path / "experiments" / "vision" / "lines" / "search"
    log = (place / "trials" / "0000" / "attempt-0" / "log.txt").read_text()
    assert set(re.findall("computed in (.*)", log)) == {"torch.float16"}
    assert "a detail" not in log
    stored = read(place / "experiment.yaml")
    assert (stored.data["url"], stored.data["secrets"]["key"]) == ("a-file", "***")
    assert "a first look" in project.command("experiment", "describe", "vision/lines/search")


def test_a_machine_is_excluded_for_a_trial(tmp_path):
    """A failed trial would be the first to run again; the other one runs instead."""
    project = Project(
        tmp_path,
        """
        log_policies: [{pattern: 'step 2 fails', action: exclude_node}]
        hyperparameters: {fails_at: {type: categorical, vals: [[2], []]}, lr: 0.05}
        searcher: {name: grid, metric: val_loss}
        """,
    )
    process = project.start("experiment", "run", "search.yaml", "--slots", "1")
    until(lambda: project.attempts(1) and "completed" in {one.state for one in project.trials()})
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert [one.state for one in project.trials()] == ["waiting", "completed"]
    assert len(project.attempts(0)) == 1


def test_a_trial_that_does_not_stop_is_killed_in_time(tmp_path):
    """It ignores SIGTERM and would run for ever, and by default for an hour."""
    project = Project(tmp_path, "entrypoint: python3 train.py\npreemption_timeout: 0")
    (tmp_path / "train.py").write_text(
        "import os\nimport signal\nfrom pathlib import Path\n\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "Path(os.environ['SEEN'], 'a-holds').touch()\n"
        "while True:\n    signal.pause()\n"
    )
    process = project.start("experiment", "run", "search.yaml", "--slots", "1")
    until(project.held)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 130, printed
    assert "waiting" in {one.state for one in project.trials()}


def test_a_metric_that_is_larger_when_better_and_is_not_a_number(tmp_path):
    model = MODEL.replace(
        "self.log(self.hparams.metric,",
        "self.log('score', float('nan') if self.hparams.lr > 0.05 else -1.0)\n        self.log('x',",
    )
    project = Project(
        tmp_path,
        """
        hyperparameters: {lr: {type: categorical, vals: [0.1, 0.01]}}
        searcher: {name: grid, metric: score, smaller_is_better: false}
        """,
        model,
    )
    printed = project.run()
    assert "best: trial 1, score -1 after" in printed
    assert [one.state for one in project.trials()] == ["completed", "completed"]
    listed = json.loads(project.command("experiment", "trials", "search", "--json"), parse_constant=pytest.fail)
    assert [one["metric"] for one in listed] == [None, -1.0]


def test_weights_are_those_of_torch_with_a_class_as_entrypoint(tmp_path):
    """`module:Class` trains with its own loaders; hyperparameters are its arguments."""
    model = (
        MODEL
        + '''

class Full(Line):
    """A model with its own data; `kind` is no argument."""

    def train_dataloader(self):
        return Points().train_dataloader()

    def val_dataloader(self):
        return Points().val_dataloader()

    def on_fit_start(self):
        from lightlib import experiment

        print("kind", experiment.current().hparams["kind"])
'''
    )
    project = Project(
        tmp_path,
        """
        entrypoint: model:Full
        hyperparameters: {lr: 0.05, global_batch_size: 8, kind: round}
        fit: {trainer: {logger: false, enable_progress_bar: false}}
        searcher: {name: single, metric: val_loss, max_length: {records: 64}}
        """,
        model,
    )
    project.run()
    weights, _ = trained(0.05, trial_seed(7, 0), epochs=2)
    assert all(torch.equal(project.weights(0)[name], value) for name, value in weights.items())
    assert "kind round" in project.log(0)
