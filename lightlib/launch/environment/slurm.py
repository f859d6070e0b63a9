"""SLURMEnvironment: requeues a SLURM job before its time limit, on a signal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess

from lightlib import report
from lightlib.errors import MisconfigurationException, check_flag, check_type
from lightlib.launch.environment import clusters
from lightlib.launch.environment.read_variables import integer

_INTERACTIVE = ("bash", "interactive")
_ASKED = (
    "creates_processes_externally", "main_address", "main_port", "world_size", "global_rank", "local_rank", "node_rank",
    "set_world_size", "set_global_rank", "validate_settings", "resolve_root_node_address",
)  # fmt: skip


class SLURMEnvironment:
    """Passed as ``Trainer(plugins=SLURMEnvironment())``: on a signal the run is saved and its job requeued.

    The job script requests the signal some time before the time limit, ``#SBATCH --signal=USR1@120``, and starts the
    program with ``srun``. On the signal the run stops at the next optimizer step, writes ``interrupted.ckpt`` next to
    the other checkpoints, and rank zero calls ``scontrol requeue``; the program ends with code 143. The requeued job
    must resume: call ``trainer.fit(…, ckpt_path="auto")``. Without this plugin no signal requeues a job.

    Rank and world size are detected as without the plugin. A subclass that overrides a method or property which decides
    them, as in Lightning's `ClusterEnvironment`, decides all of them; inherited ones have Lightning's values.

    Args:
        auto_requeue: False leaves the signal its usual meaning.
        requeue_signal: The signal. Default: SIGUSR1.

    Raises:
        ArgumentTypeError: `auto_requeue` is not a bool, or `requeue_signal` not a signal.
        MisconfigurationException: The signal ends the run anyway or cannot be caught, or the system has no SIGUSR1.

    Example:
        >>> SLURMEnvironment().requeue_signal.name
        'SIGUSR1'
    """

    @staticmethod
    def detect() -> bool:
        """Whether ``srun`` has started this process as a task of a job."""
        return clusters.slurm() is not None

    def __init__(self, auto_requeue: bool = True, requeue_signal: signal.Signals | None = None) -> None:
        super().__init__()
        check_flag("SLURMEnvironment", "auto_requeue", auto_requeue)
        default: signal.Signals | None = getattr(signal, "SIGUSR1", None)
        chosen = default if requeue_signal is None else requeue_signal
        if chosen is None:
            raise MisconfigurationException(
                "SLURMEnvironment() on a system without SIGUSR1.", expected="Linux.", fix="remove the plugin."
            )
        check_type("SLURMEnvironment", "requeue_signal", chosen, signal.Signals, "a signal", "signal.SIGUSR1")
        if chosen.name in ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT"):
            raise MisconfigurationException(
                f"SLURMEnvironment(requeue_signal=signal.{chosen.name}).",
                expected="a signal without another meaning: SIGTERM and SIGINT end a run without requeueing it.",
                fix="SLURMEnvironment(requeue_signal=signal.SIGUSR1), and #SBATCH --signal=USR1@120",
            )
        self.auto_requeue = auto_requeue
        self.requeue_signal = chosen

    @property
    def is_asked(self) -> bool:
        """Whether this is a subclass that decides rank, world size or address."""
        return any(getattr(type(self), name) is not getattr(SLURMEnvironment, name) for name in _ASKED)

    @staticmethod
    def job_name() -> str | None:
        """Return SLURM's name of this job."""
        return os.environ.get("SLURM_JOB_NAME")

    @staticmethod
    def job_id() -> int | None:
        """Return SLURM's number of this job; None outside of SLURM and in an interactive job."""
        number = os.environ.get("SLURM_JOB_ID", "")
        return int(number) if number.isdigit() and SLURMEnvironment.job_name() not in _INTERACTIVE else None

    # as Lightning's
    @property
    def creates_processes_externally(self) -> bool:
        """Return True: srun starts them."""
        return True

    @property
    def main_address(self) -> str:
        """MASTER_ADDR, else the first host of SLURM_NODELIST, which becomes MASTER_ADDR."""
        nodes = os.environ.get("SLURM_NODELIST", "127.0.0.1")
        return os.environ.setdefault("MASTER_ADDR", self.resolve_root_node_address(nodes))

    @property
    def main_port(self) -> int:
        """MASTER_PORT, else one derived from the number of the job, which becomes MASTER_PORT."""
        job = os.environ.get("SLURM_JOB_ID")
        derived = 12910 if job is None else 15000 + integer({"SLURM_JOB_ID": job[-4:]}, "SLURM_JOB_ID", "SLURM")
        os.environ.setdefault("MASTER_PORT", str(derived))
        return integer(os.environ, "MASTER_PORT", "SLURM")

    @staticmethod
    def resolve_root_node_address(nodes: str) -> str:
        """Return the first host of a list of SLURM.

        Example:
            >>> SLURMEnvironment.resolve_root_node_address("node[05-7,9],other")
            'node05'
        """
        first = re.sub(r"\[(.*?)[,-].*\]", r"\1", nodes)
        return re.sub(r"\[(.*?)\]", r"\1", first).split(" ")[0].split(",")[0]

    def world_size(self) -> int:
        """Return the number of tasks."""
        return integer(os.environ, "SLURM_NTASKS", "SLURM")

    def set_world_size(self, size: int) -> None:
        """Leave it to SLURM."""

    def global_rank(self) -> int:
        """Return the number of this task."""
        return integer(os.environ, "SLURM_PROCID", "SLURM")

    def set_global_rank(self, rank: int) -> None:
        """Leave it to SLURM."""

    def local_rank(self) -> int:
        """Return the number of this task on its machine."""
        return integer(os.environ, "SLURM_LOCALID", "SLURM")

    def node_rank(self) -> int:
        """Return the number of this machine."""
        return integer(os.environ, "SLURM_NODEID", "SLURM")

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare the numbers with those of the job.

        Raises:
            MisconfigurationException: They differ.
        """
        if self.job_name() in _INTERACTIVE:
            return
        for argument, value, variable, option in (
            ("devices", num_devices, "SLURM_NTASKS_PER_NODE", "--ntasks-per-node"),
            ("num_nodes", num_nodes, "SLURM_NNODES", "--nodes"),
        ):
            if variable in os.environ and integer(os.environ, variable, "SLURM") != value:
                raise MisconfigurationException(
                    f"{argument}={value}, but SLURM has {option}={os.environ[variable]}.",
                    expected="the same number.",
                    fix=f"{argument}={os.environ[variable]}, or #SBATCH {option}={value}",
                )

    def teardown(self) -> None:
        """Do nothing."""

    def requeue(self, checkpoint: str | None, patience: float = 60.0) -> bool:
        """Have SLURM requeue this job, which ends it. Call it on rank zero, as the last action.

        Failures are warnings, not errors, because the run has been saved.

        Args:
            checkpoint: The checkpoint from which the job will resume; without one it is not requeued, because it would
                never finish.
            patience: Seconds for `scontrol` to answer.

        Returns:
            Whether SLURM has requeued the job.
        """
        job, command = _job_of_scontrol(), shutil.which("scontrol")
        requested = f"{self.requeue_signal.name} requested that this job be requeued, but"
        if checkpoint is None:
            report.warn(f"{requested} there is no checkpoint from which it could resume. Add a ModelCheckpoint.")
        elif job is None:
            report.warn(f"{requested} it is not a SLURM job: SLURM_JOB_ID is not set.")
        elif command is None:
            report.warn(f"{requested} the command `scontrol` is not on this machine. Call: scontrol requeue {job}")
        else:
            return _call(command, job, requested, patience)
        return False


def _job_of_scontrol() -> str | None:
    """Return the id by which `scontrol` knows this job, also within a job array; None outside of SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def _call(command: str, job: str, requested: str, patience: float) -> bool:
    line = [command, "requeue", job]
    try:
        subprocess.run(line, check=True, capture_output=True, text=True, timeout=patience)  # noqa: S603
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or error.stdout).strip() or f"code {error.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        report.info(f"SLURM job {job} is requeued.")
        return True
    report.warn(f"{requested} `scontrol requeue {job}` failed: {reason}")
    return False
