"""A project that is searched in tests, and the same training as a plain loop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.results import Results, Trial
from tests.processes.programs import Program, environment

ROOT = Path(__file__).resolve().parents[3]
MODEL = '''
import os
import time
import weakref
from pathlib import Path

import lightlib as L
import torch
from torch.utils.data import DataLoader, TensorDataset

SEEN = Path(os.environ.get("SEEN", "."))  # where trials leave what they did


class Line(L.Module):
    """A line through noisy points; dies, fails, prints or waits for a file as its hyperparameters have it."""

    def __init__(self, lr=0.1, momentum=0.0, dies_at=(), fails_at=(), holds_at=(), prints="", metric="val_loss"):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(2, 1)

    def once(self, name):
        """Whether this is the first time that any attempt comes to this place of this trial."""
        try:
            (SEEN / f"{Path.cwd().parent.name}-{name}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def training_step(self, batch, batch_idx):
        step = self.global_step
        if step in self.hparams.holds_at and self.once("holds"):
            while not (SEEN / "go").exists() and not self.trainer.received_sigterm:
                time.sleep(0.02)
        if step in self.hparams.dies_at and self.once(f"died-{step}"):
            os.kill(os.getpid(), 9)
        if step in self.hparams.fails_at:
            raise ValueError(f"step {step} fails")
        if step == 1 and self.hparams.prints:
            print(self.hparams.prints)
        x, y = batch
        noise = 0.01 * torch.randn(len(x), 1)  # so that a resume needs the random numbers, too
        return torch.nn.functional.mse_loss(self.layer(x + noise), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log(self.hparams.metric, torch.nn.functional.mse_loss(self.layer(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=self.hparams.momentum)


class Points(L.DataModule):
    def __init__(self, batch_size=8):
        super().__init__()
        self.batch_size = batch_size
        numbers = torch.Generator().manual_seed(3)
        x = torch.randn(40, 2, generator=numbers)
        y = x @ torch.tensor([[1.0], [-2.0]]) + 0.1 * torch.randn(40, 1, generator=numbers)
        self.train, self.val = TensorDataset(x[:32], y[:32]), TensorDataset(x[32:], y[32:])

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)
'''
FIT = """
trainer: {max_epochs: 3, accelerator: cpu, logger: false, enable_progress_bar: false, enable_model_summary: false}
model: {class_path: model.Line}
data: {class_path: model.Points}
"""
SEARCH = """
name: search
entrypoint: config.yaml
hyperparameters: {lr: {type: log, minval: -3, maxval: -1}}
searcher: {name: random, metric: val_loss, max_trials: 4}
reproducibility: {experiment_seed: 7}
"""


class Project:
    """A folder with a model, a fit and a search.

    Args:
        folder: A new one.
        search: The lines of search.yaml that take the place of those in `SEARCH` with the same key.
        model: The lines of model.py.
        slots: Of each trial.
    """

    def __init__(self, folder: Path, search: str = "", model: str = MODEL, slots: int = 1) -> None:
        self._slots = slots
        self.folder, self.seen = folder, folder / "seen"
        self.locks = tempfile.mkdtemp()  # slots of its own; a short path, because it has sockets, too
        self.started: list[Program | subprocess.Popen[str]] = []
        weakref.finalize(self, _end, self.started, self.locks)
        self.seen.mkdir(parents=True)
        (folder / "model.py").write_text(model)
        (folder / "config.yaml").write_text(FIT)
        (folder / ".detignore").write_text("seen/\n")
        self.write(search)

    @property
    def experiment(self) -> Path:
        return self.folder / "experiments" / "search"

    def write(self, search: str) -> None:
        lines = textwrap.dedent(search).strip().splitlines()
        lines += [f"resources: {{slots_per_trial: {self._slots}}}"] if self._slots > 1 else []
        keys = {line.partition(":")[0] for line in lines if not line.startswith(" ")}
        rest = [line for line in SEARCH.strip().splitlines() if line.partition(":")[0] not in keys]
        (self.folder / "search.yaml").write_text("\n".join([*lines, *rest, ""]))

    def environment(self) -> dict[str, str]:
        """Return the variables of the environment of commands."""
        return environment(SEEN=str(self.seen), TMPDIR=self.locks)

    def start(self, *words: str, **variables: str) -> Program:
        """Start a command of `lightlib`, which leads a session.

        It and the server from which its trials are forked are forks of the warm process, so that they import nothing;
        so are the first twelve trials of several processes.
        """
        # one more than ranks: jsonargparse asks an interpreter for its path
        forks = {"starts": 12, "each_starts": self._slots} if self._slots > 1 else {}
        env = {**self.environment(), **variables}
        process = Program("-m", "lightlib", *words, env=env, cwd=self.folder, merged=True, serves=True, **forks)
        self.started.append(process)
        return process

    def start_interpreter(self, *words: str) -> subprocess.Popen[str]:
        """Do the same with interpreters that import everything, for tests of the start itself."""
        process = subprocess.Popen(
            [sys.executable, "-m", "lightlib", *words],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_with_ctrl_c,  # noqa: PLW1509  no threads in these tests
        )
        self.started.append(process)
        return process

    def command(self, *words: str, code: int = 0, **variables: str) -> str:
        """Run a command of `lightlib` and return its output."""
        process = self.start(*words, **variables)
        printed, _ = process.communicate(timeout=600)
        assert process.returncode == code, printed
        return printed

    def script(self, name: str) -> str:
        """Run a script of the project, and return its output."""
        process = Program(name, env=self.environment(), cwd=self.folder, merged=True)
        self.started.append(process)
        printed, _ = process.communicate(timeout=600)
        assert process.returncode == 0, printed
        return printed

    def run(self, *words: str, code: int = 0, **variables: str) -> str:
        """Run the search with two slots."""
        return self.command("experiment", "run", "search.yaml", "--slots", "2", *words, code=code, **variables)

    def trials(self) -> list[Trial]:
        """Return the trials, as their ledger has them."""
        folder = ExperimentFolder(self.experiment)
        with open_ledger(folder, folder.config) as ledger:
            return Results(folder, folder.config, ledger).trials

    def attempts(self, trial: int) -> list[Path]:
        return sorted((self.experiment / "trials" / f"{trial:04d}").glob("attempt-*"))

    def weights(self, trial: int) -> dict[str, torch.Tensor]:
        """Return the last weights of a trial.

        Its last attempt may have had nothing left to train, and a killed one may have saved its best checkpoint alone.
        """
        files = self.experiment.glob(f"trials/{trial:04d}/attempt-*/checkpoints/*.ckpt")
        found = [torch.load(path, weights_only=True) for path in files]
        return max(found, key=lambda one: one["global_step"])["state_dict"]

    def messages(self, trial: int, kind: str) -> list[dict]:
        files = [path / "messages.jsonl" for path in self.attempts(trial)]
        found = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
        return [one for one in found if one["kind"] == kind]

    def held(self) -> list[Path]:
        """Return a file for each trial that has come to the step at which it waits."""
        return list(self.seen.glob("*-holds"))

    def let_go(self) -> None:
        (self.seen / "go").touch()

    def log(self, trial: int) -> str:
        return "".join(path.joinpath("log.txt").read_text() for path in self.attempts(trial))


def _end(started: list[Program | subprocess.Popen[str]], locks: str) -> None:
    """End the commands that a failed test has left behind."""
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    shutil.rmtree(locks, ignore_errors=True)


def _with_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def until(condition, seconds: float = 400.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.02)


def trained(
    lr: float,
    seed: int,
    epochs: int = 3,
    momentum: float = 0.0,
    batches: float = float("inf"),
    rungs: Sequence[int] = (),
    first: Mapping[str, torch.Tensor] | None = None,
    aggregated: int = 1,
    period: int = 4,
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train the same in a plain loop of torch; return the weights, and the loss of each validation.

    Args:
        lr: Learning rate.
        seed: Of all random numbers.
        epochs: Passes over the data, each with a validation at its end.
        momentum: Of the optimizer.
        batches: After which it ends at the latest.
        rungs: Batches after which it validates, too.
        first: The first weights. Default: random ones.
        aggregated: Batches of an optimizer step.
        period: Batches between two validations.
    """
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(40, 2, generator=numbers)
    y = x @ torch.tensor([[1.0], [-2.0]]) + 0.1 * torch.randn(40, 1, generator=numbers)
    torch.manual_seed(seed)
    layer = torch.nn.Linear(2, 1)
    if first is not None:
        layer.load_state_dict({name.removeprefix("layer."): value for name, value in first.items()})
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr, momentum=momentum)
    train = torch.utils.data.TensorDataset(x[:32], y[:32])
    val, losses, done = torch.utils.data.TensorDataset(x[32:], y[32:]), [], 0
    for _ in range(epochs):
        for inputs, wanted in torch.utils.data.DataLoader(train, 8, shuffle=True):
            noise = 0.01 * torch.randn(len(inputs), 1)
            (torch.nn.functional.mse_loss(layer(inputs + noise), wanted) / aggregated).backward()
            done += 1
            if done % aggregated == 0:
                optimizer.step()
                optimizer.zero_grad()
            if done % period == 0 or done in rungs:
                with torch.no_grad():
                    for inputs, wanted in torch.utils.data.DataLoader(val, 8):  # noqa: PLW2901
                        losses.append(float(torch.nn.functional.mse_loss(layer(inputs), wanted)))
            if done >= batches:
                break
        if done >= batches:
            break
    return {f"layer.{name}": value for name, value in layer.state_dict().items()}, losses
