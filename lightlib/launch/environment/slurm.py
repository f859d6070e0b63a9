"""SLURMEnvironment: a job of SLURM is queued again when it is about to be ended, if asked for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping

from lightlib import report
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown

__all__ = ["SLURMEnvironment"]


class SLURMEnvironment:
    """Given as ``Trainer(plugins=SLURMEnvironment())``: on a signal the run saves itself, and its job is queued again.

    The job script asks SLURM for the signal some time before the end, ``#SBATCH --signal=USR1@120``, and starts the
    program by ``srun``. When the signal comes, the run stops at the next optimizer step, writes ``interrupted.ckpt``
    beside the other checkpoints, and rank zero calls ``scontrol requeue``; the program ends with code 143. Started
    again it has to go on where it was: call ``trainer.fit(…, ckpt_path="auto")``. Without this plugin no signal queues
    a job again.

    Which process this is of how many is found as without it.

    Args:
        auto_requeue: False takes the signal as any program does.
        requeue_signal: The signal. Default: SIGUSR1.

    Raises:
        ArgumentTypeError: `auto_requeue` is not a bool, or `requeue_signal` not a signal.
        MisconfigurationException: A signal that ends the run anyway or cannot be caught, or a system without SIGUSR1.

    Example:
        >>> SLURMEnvironment().requeue_signal.name
        'SIGUSR1'
    """

    def __init__(self, auto_requeue: bool = True, requeue_signal: signal.Signals | None = None) -> None:
        if not isinstance(auto_requeue, bool):
            raise ArgumentTypeError(
                f"SLURMEnvironment(auto_requeue={shown(auto_requeue)}).", expected="a bool.", fix="auto_requeue=True"
            )
        default: signal.Signals | None = getattr(signal, "SIGUSR1", None)
        chosen = default if requeue_signal is None else requeue_signal
        if chosen is None:
            raise MisconfigurationException(
                "SLURMEnvironment() on a system without SIGUSR1.", expected="Linux.", fix="leave the plugin out."
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
                expected="a signal that has no other meaning: SIGTERM and SIGINT end a run without queueing it again.",
                fix="SLURMEnvironment(requeue_signal=signal.SIGUSR1), and #SBATCH --signal=USR1@120",
            )
        self.auto_requeue = auto_requeue
        self.requeue_signal = chosen

    @staticmethod
    def job_id(variables: Mapping[str, str] = os.environ) -> str | None:
        """Return by which name SLURM knows this job, also as a part of an array; None outside of SLURM.

        Example:
            >>> SLURMEnvironment.job_id({"SLURM_JOB_ID": "71", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "1"})
            '70_1'
        """
        array, task = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
        return f"{array}_{task}" if array and task else variables.get("SLURM_JOB_ID") or None

    def requeue(self, checkpoint: str | None, patience: float = 60.0) -> bool:
        """Let SLURM queue this job again, which ends it. To be called on rank zero, when all else is done.

        Nothing is raised: what went wrong is a warning, for the run has been saved.

        Args:
            checkpoint: From where the job will go on; without any it is not queued again, for it would never end.
            patience: Seconds for `scontrol` to answer.

        Returns:
            Whether SLURM has taken it.
        """
        job, command = self.job_id(), shutil.which("scontrol")
        asked = f"{self.requeue_signal.name} asked for this job to be queued again, but"
        if checkpoint is None:
            report.warn(f"{asked} there is no checkpoint from which it could go on. Add a ModelCheckpoint.")
        elif job is None:
            report.warn(f"{asked} it is no SLURM job: SLURM_JOB_ID is not set.")
        elif command is None:
            report.warn(f"{asked} there is no command `scontrol` on this machine. Call: scontrol requeue {job}")
        else:
            return _call(command, job, asked, patience)
        return False


def _call(command: str, job: str, asked: str, patience: float) -> bool:
    line = [command, "requeue", job]
    try:
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=patience)  # noqa: S603
        reason = (done.stderr or done.stdout).strip() or f"code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        report.warn(f"{asked} `scontrol requeue {job}` failed: {error}")
        return False
    if done.returncode:
        report.warn(f"{asked} `scontrol requeue {job}` failed: {reason}")
        return False
    report.info(f"SLURM job {job} is queued again.")
    return True
