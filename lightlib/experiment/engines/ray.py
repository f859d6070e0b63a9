"""Ray: the workers of an experiment as actors, which Ray places and restarts."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightlib import optional
from lightlib.errors import LightlibError
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import ENDED
from lightlib.experiment.ledger.storage import Patience
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.results import Results
from lightlib.experiment.work.worker import Show
from lightlib.launch.start.child import following

OUTPUT = "workers"  # in the folder of the experiment
_ACTOR = "LIGHTLIB_ACTOR"  # a variable of a worker: the process id of its actor
_LOOK = 0.2  # seconds between two looks at the workers
_LINES = 12  # of the output of a worker that has failed


class WorkerActor:
    """Runs `lightlib experiment work` as a child process, which Linux kills when the actor dies.

    Args:
        folder: Of the experiment, at the same path on all machines.
        output: The file for its output, in a folder that exists.
        slots: That the worker has.
    """

    def __init__(self, folder: str, output: str, slots: int) -> None:
        self._folder, self._output, self._slots = folder, Path(output), slots
        self._process: subprocess.Popen[bytes] | None = None
        self._stops = 0

    def work(self) -> int | None:
        """Return the exit code of the worker, negative for a signal; None if this machine does not have the folder."""
        if not self._output.parent.is_dir():
            return None
        worker = ["-m", "lightlib", "experiment", "work", self._folder, "--slots", str(self._slots)]
        with self._output.open("ab") as output:
            process = self._process = subprocess.Popen(  # noqa: S603  this very program
                [sys.executable, "-c", following(_ACTOR), *worker],
                cwd=self._folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", _ACTOR: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if self._stops:  # it was called before there was a process
            process.send_signal(signal.SIGTERM)
        return process.wait()

    def stop(self) -> None:
        """Let the trials save a checkpoint and end; called again, kill them."""
        self._stops += 1
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)


class RayWorkers:
    """The workers of an experiment on a Ray cluster, seen from the program that started them.

    Args:
        ray: The package, connected to a cluster.
        folder: Of the experiment.
        config: It.
        workers: How many actors.
        ledger: Of the experiment.
        show: Gets a line for each event.
    """

    def __init__(
        self, ray: Any, folder: ExperimentFolder, config: ExperimentConfig, workers: int, ledger: Ledger, show: Show
    ) -> None:
        self._ray, self._folder, self._config, self._ledger, self._show = ray, folder, config, ledger, show
        outputs = folder.path / OUTPUT
        outputs.mkdir(exist_ok=True)
        now = time.strftime("%Y%m%d-%H%M%S")
        self._files = [outputs / f"ray-{now}-{number}.txt" for number in range(workers)]
        self._read = [0] * workers  # bytes of each file
        resource, needs, each = _needs(config)
        new = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=2, **needs)(WorkerActor)
        self._actors = [new.remote(str(folder.path), str(file), each) for file in self._files]
        self._runs = {actor.work.remote(): number for number, actor in enumerate(self._actors)}
        self._asked = self._sent = 0  # how often the workers were to stop
        there = int(ray.cluster_resources().get(resource, 0))
        if there < workers * each:
            needed = f"{workers} workers need {workers * each}"
            show(f"The Ray cluster has {there} {resource}s, and {needed}: some wait until it has more.")

    def stop(self) -> None:
        """Let all trials save a checkpoint and end; called again, kill them. May be called by a signal handler."""
        self._asked += 1

    def run(self) -> None:
        """Wait until all workers have ended.

        Raises:
            LightlibError: A machine does not have the folder of the experiment, or all workers have failed.
        """
        while self._runs:
            ended, _ = self._ray.wait([*self._runs], timeout=_LOOK)
            self._show_events()
            for run in ended:
                self._end(self._runs.pop(run), self._ray.get(run))
            if self._sent < self._asked:
                self._sent += 1
                self._drop_waiting()
                for number in self._runs.values():
                    self._actors[number].stop.remote()
        if not self._asked and Results(self._folder, self._config, self._ledger).state not in ENDED:
            newest = max(self._files, key=lambda file: file.stat().st_mtime)
            raise LightlibError(
                f"All workers have ended, and the experiment has not. The last lines of one:\n{_last_lines(newest)}",
                expected="workers that run until the experiment has ended.",
                fix=f"see their output in {newest.parent}; the same command continues.",
            )

    def _end(self, number: int, code: int | None) -> None:
        if code is None:
            raise LightlibError(
                f"A machine of the Ray cluster does not have the folder {str(self._folder.path)!r}.",
                expected="a folder that all machines have at the same path, for code, checkpoints and logs.",
                fix="--root FOLDER, on a shared file system.",
            )
        if code in (0, 3):  # the experiment is over
            self._drop_waiting()
        elif code < 0 and not self._asked:
            self._show(f"worker {number} was killed by signal {-code}; it starts again")
            self._runs[self._actors[number].work.remote()] = number
        elif not self._asked:
            self._show(f"worker {number} ended with exit code {code}; see {self._files[number]}")

    def _drop_waiting(self) -> None:
        """End the actors for which the cluster has had no place."""
        for run, number in list(self._runs.items()):
            if not self._files[number].exists():
                self._ray.kill(self._actors[number])
                del self._runs[run]

    def _show_events(self) -> None:
        for number, file in enumerate(self._files):
            if not file.exists():
                continue
            with file.open("rb") as opened:
                opened.seek(self._read[number])
                lines = opened.read().rpartition(b"\n")[0]
            self._read[number] += len(lines) + bool(lines)
            for line in lines.decode(errors="replace").splitlines():
                if line.startswith("trial "):
                    self._show(line)


def _needs(config: ExperimentConfig) -> tuple[str, dict[str, int], int]:
    """Return the needs of a worker: Ray's name of the resource, the option of an actor, and its slots."""
    slots = config.resources.slots_per_trial
    return ("GPU", {"num_gpus": slots}, slots) if slots else ("CPU", {"num_cpus": 1}, 1)


def _last_lines(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-_LINES:])


def require_ray() -> None:
    """Raise if Ray is not installed.

    Raises:
        MisconfigurationException: It is not.
    """
    if not optional.is_installed("ray"):
        raise optional.missing("ray", "--on ray")


@contextmanager
def open_workers(
    folder: ExperimentFolder, config: ExperimentConfig, workers: int, address: str | None, show: Show, patience: float
) -> Iterator[tuple[RayWorkers, Ledger]]:
    """Start the workers of an experiment that has begun; they end with this block.

    Args:
        folder: Of the experiment, at the same path on all machines.
        config: It, with its seed.
        workers: How many.
        address: Of the cluster, as `ray.init` takes it. None: `RAY_ADDRESS`, else this machine alone.
        show: Gets a line for each event.
        patience: Seconds for which a database may not answer.

    Raises:
        LightlibError: There is no cluster at the address; or all workers have ended, and the experiment has not.
    """
    require_ray()
    import ray  # optional: ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise LightlibError(
            f"Ray does not start, or does not reach the cluster: {error}",
            expected="the address of a Ray cluster, or none for this machine alone.",
            fix="--address HOST:6379, as `ray start --head` prints it there.",
        ) from error
    try:
        with open_ledger(folder, config, Patience(patience)) as ledger:
            yield RayWorkers(ray, folder, config, workers, ledger, show), ledger
    finally:
        ray.shutdown()
