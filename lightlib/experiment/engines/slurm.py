"""SLURM: submits the workers of an experiment as an array of jobs, which SLURM starts and restarts."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

from lightlib import safe_files
from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.work.folder import ExperimentFolder

SCRIPT, OUTPUT = "slurm.sh", "workers"  # in the folder of the experiment
_WARNING = 120  # seconds before the end of its time, at which a worker gets SIGTERM
_NODES = re.compile(r"(?:^|\s)(?:--nodes[= ]|-N ?)(\S+)")
# The shell gets the signal alone, and waits: trials save a checkpoint, and SLURM runs the job again.
_BODY = """
stop() { stopped=1; kill -TERM "$worker"; }
trap stop TERM
COMMAND &
worker=$!
wait "$worker"
code=$?
while kill -0 "$worker" 2>/dev/null; do wait "$worker"; code=$?; done
if [ -n "$stopped" ] && [ "$code" -ge 128 ]; then
  scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
fi
exit "$code"
"""


def script(config: ExperimentConfig, folder: ExperimentFolder, workers: int) -> str:
    """Return the script of an array of jobs, each of which is a worker on one machine.

    Args:
        config: The experiment.
        folder: Of the experiment, which all machines see.
        workers: How many jobs.

    Raises:
        ConfigError: `is_single_node` is true, and `slurm.sbatch_args` asks for several machines.
    """
    _check_nodes(config)
    options = "\n".join(f"#SBATCH {option}" for option in _options(config, folder, workers))
    command = shlex.join([sys.executable, "-m", "lightlib", "experiment", "work", str(folder.path)])
    return f"#!/bin/bash\n{options}\n{_BODY.replace('COMMAND', command)}"


def _check_nodes(config: ExperimentConfig) -> None:
    """Refuse several machines for a job, if a trial must have one."""
    nodes = _NODES.search(" ".join(config.slurm.sbatch_args))
    if config.resources.is_single_node and nodes is not None and nodes[1] != "1":
        config.places.below("slurm.sbatch_args").refuse(
            f"has {nodes[0].strip()!r}, and resources.is_single_node is true.",
            "one machine for each job.",
            "delete the option: a job has one machine, and --workers is the number of jobs.",
        )


def _options(config: ExperimentConfig, folder: ExperimentFolder, workers: int) -> Iterator[str]:
    resources, slurm = config.resources, config.slurm
    slots = max(slurm.slots_per_node or 1, resources.slots_per_trial, 1)
    yield f"--job-name={re.sub(r'[^A-Za-z0-9._-]', '-', config.name)}"
    yield f"--array=1-{workers}"
    yield "--nodes=1"
    yield "--requeue"
    yield "--open-mode=append"
    yield f"--signal=B:TERM@{_WARNING}"
    yield f"--output={shlex.quote(str(folder.path / OUTPUT / '%A-%a.txt'))}"
    if resources.slots_per_trial == 0:
        yield f"--cpus-per-task={slots}"
    else:
        kind = f"{slurm.gpu_type}:" if slurm.gpu_type else ""
        yield f"--gpus-per-node={kind}{slots}"
    if resources.resource_pool:
        yield f"--partition={shlex.quote(resources.resource_pool)}"
    if resources.priority is not None:
        yield f"--nice={resources.priority}"
    yield from slurm.sbatch_args  # of two equal options the last one holds


def submit(config: ExperimentConfig, folder: ExperimentFolder, workers: int) -> str:
    """Submit the workers of an experiment that has begun; return the number of the job.

    Raises:
        MisconfigurationException: There is no `sbatch` here; the script is written nevertheless.
        LightlibError: SLURM refuses the job.
    """
    (folder.path / OUTPUT).mkdir(exist_ok=True)
    path = folder.path / SCRIPT
    safe_files.replace(path, script(config, folder, workers).encode())
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise MisconfigurationException(
            "--on slurm: there is no command `sbatch` on this machine.",
            expected="a machine from which jobs are submitted to SLURM.",
            fix=f"sbatch {shlex.quote(str(path))} there",
        )
    done = subprocess.run([sbatch, "--parsable", str(path)], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise LightlibError(
            f"SLURM refuses the job: {done.stderr.strip() or f'exit code {done.returncode}'}",
            expected="options that the cluster has.",
            fix=f"the sections resources and slurm of the experiment file; the script is {path}.",
        )
    return done.stdout.strip().partition(";")[0]
