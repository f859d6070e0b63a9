"""SLURMEnvironment: requeues a SLURM job before its time limit, on a signal."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping

from lightlib import report
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown
from lightlib.launch.environment import clusters


class SLURMEnvironment:
    """Passed as ``Trainer(plugins=SLURMEnvironment())``: on a signal the run is saved and its job requeued.

    The job script requests the signal some time before the time limit, ``#SBATCH --signal=USR1@120``, and starts the
    program with ``srun``. On the signal the run stops at the next optimizer step, writes ``interrupted.ckpt`` next to
    the other checkpoints, and rank zero calls ``scontrol requeue``; the program ends with code 143. The requeued job
    must resume: call ``trainer.fit(…, ckpt_path="auto")``. Without this plugin no signal requeues a job.

    Rank and world size are detected as without the plugin.

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
        if not isinstance(auto_requeue, bool):
            raise ArgumentTypeError(
                f"SLURMEnvironment(auto_requeue={shown(auto_requeue)}).", expected="a bool.", fix="auto_requeue=True"
            )
        default: signal.Signals | None = getattr(signal, "SIGUSR1", None)
        chosen = default if requeue_signal is None else requeue_signal
        if chosen is None:
            raise MisconfigurationException(
                "SLURMEnvironment() on a system without SIGUSR1.", expected="Linux.", fix="remove the plugin."
            )
        if not isinstance(chosen, signal.Signals):
            raise ArgumentTypeError(
                f"SLURMEnvironment(requeue_signal={shown(chosen)}).",
                expected="a signal.",
                fix="SLURMEnvironment(requeue_signal=signal.SIGUSR1)",
            )
        if chosen.name in ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT"):
            raise MisconfigurationException(
                f"SLURMEnvironment(requeue_signal=signal.{chosen.name}).",
                expected="a signal without another meaning: SIGTERM and SIGINT end a run without requeueing it.",
                fix="SLURMEnvironment(requeue_signal=signal.SIGUSR1), and #SBATCH --signal=USR1@120",
            )
        self.auto_requeue = auto_requeue
        self.requeue_signal = chosen

    @staticmethod
    def job_id(variables: Mapping[str, str] = os.environ) -> str | None:
        """Return SLURM's id of this job, also within a job array; None outside of SLURM.

        Example:
            >>> SLURMEnvironment.job_id({"SLURM_JOB_ID": "71", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "1"})
            '70_1'
        """
        array, task = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
        return f"{array}_{task}" if array and task else variables.get("SLURM_JOB_ID") or None

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
        job, command = self.job_id(), shutil.which("scontrol")
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
