"""Workers as jobs of SLURM: with stand-ins for its commands, and on a cluster if it is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.engines import slurm
from lightlib.experiment.file import read
from lightlib.experiment.work.folder import ExperimentFolder
from tests.experiment.engines import slurm_cluster
from tests.experiment.work.project import Project, until
from tests.experiment.work.test_worker import assert_as_torch

pytestmark = pytest.mark.processes
FILE = {"name": "a b", "fit": {"trainer": {}}, "searcher": {"name": "random", "metric": "loss", "max_trials": 1}}
SBATCH = """#!/bin/sh
echo "$@" > "{folder}/arguments"
echo "4711;cluster"
"""


def options(**sections):
    text = slurm.script(read({**FILE, **sections}), ExperimentFolder("/shared/a b"), 8)
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a function that makes a program, which is found before all of the system."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def make(name, text):
        (folder / name).write_text(text.format(folder=folder))
        (folder / name).chmod(0o755)
        return folder

    return make


def test_the_options_of_a_job():
    assert options() == [
        "--job-name=a-b",
        "--array=1-8",
        "--nodes=1",
        "--requeue",
        "--open-mode=append",
        "--signal=B:TERM@120",
        "--output='/shared/a b/workers/%A-%a.txt'",
        "--gpus-per-node=1",
    ]
    resources = {"slots_per_trial": 2, "resource_pool": "a100", "priority": 7}
    more = {"gpu_type": "tesla", "slots_per_node": 4, "sbatch_args": ["--time=10", "--exclusive"]}
    assert options(resources=resources, slurm=more)[7:] == [
        "--gpus-per-node=tesla:4",
        "--partition=a100",
        "--nice=7",
        "--time=10",
        "--exclusive",
    ]
    assert options(resources={"slots_per_trial": 0})[7:] == ["--cpus-per-task=1"]


@pytest.mark.parametrize("option", ["--nodes=2", "--nodes 2", "-N 2", "-N2", "--nodes=1-2"])
def test_a_single_node_refuses_several_machines(option):
    single = {"resources": {"is_single_node": True}}
    with pytest.raises(MisconfigurationException, match=rf"has '{option}', and resources\.is_single_node is true"):
        options(**single, slurm={"sbatch_args": ["--time=60", option]})
    assert options(**single, slurm={"sbatch_args": ["--nodes=1"]}).count("--nodes=1") == 2
    assert option in options(slurm={"sbatch_args": [option]})


def test_a_job_is_submitted(tmp_path, programs):
    folder = ExperimentFolder(tmp_path / "a")
    folder.path.mkdir()
    programs("sbatch", SBATCH)
    assert slurm.submit(read(FILE), folder, 2) == "4711"
    assert (tmp_path / "bin" / "arguments").read_text() == f"--parsable {folder.path}/slurm.sh\n"
    assert subprocess.run(["bash", "-n", folder.path / "slurm.sh"], check=False).returncode == 0


def test_without_sbatch_the_script_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MisconfigurationException, match=r"no command `sbatch` on this machine(.|\n)*slurm\.sh there"):
        slurm.submit(read(FILE), ExperimentFolder(tmp_path), 2)
    assert (tmp_path / "slurm.sh").exists()


def test_the_reason_of_slurm_is_shown(tmp_path, programs):
    programs("sbatch", "#!/bin/sh\necho 'error: invalid partition specified' >&2\nexit 1\n")
    with pytest.raises(LightlibError, match="SLURM refuses the job: error: invalid partition specified"):
        slurm.submit(read(FILE), ExperimentFolder(tmp_path), 2)


def test_a_job_at_the_end_of_its_time_runs_again_and_completes(tmp_path, programs):
    """The shell of a job gets SIGTERM, as at the end of its time; SLURM is asked to run it again."""
    programs("sbatch", SBATCH)
    path = programs("scontrol", '#!/bin/sh\necho "$@" > "{folder}/requeued"\n')
    hold = "fit: {model: {init_args: {holds_at: [2]}}}\nsearcher: {name: random, metric: val_loss, max_trials: 2}"
    project = Project(tmp_path / "project", f"{hold}\nresources: {{slots_per_trial: 0}}")
    printed = project.command("experiment", "run", "search.yaml", "--on", "slurm", "--workers", "2")
    assert "slurm has job 4711 with 2 workers" in printed
    script = project.experiment / "slurm.sh"
    assert sys.executable in script.read_text()
    job = {**project.environment(), "SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "2"}
    process = subprocess.Popen(["bash", script], env=job, cwd="/", start_new_session=True)
    project.started.append(process)
    until(lambda: len(project.held()) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 128 + signal.SIGTERM
    assert Path(path, "requeued").read_text() == "requeue 4711_2\n"
    assert {one.state for one in project.trials()} == {"waiting"}
    project.let_go()
    done = subprocess.run(["bash", script], env=job, cwd="/", check=False, timeout=500, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert [(one.state, one.attempts) for one in project.trials()] == [("completed", 2)] * 2


@pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not() or "-")
def test_a_cluster_runs_workers_again_until_the_search_is_done(tmp_path):
    """The worker gets SIGTERM while it trains, as at the end of its time; SLURM runs it again."""
    cluster = slurm_cluster.Cluster()
    try:
        hold = "fit: {model: {init_args: {holds_at: [2]}}}\nsearcher: {name: random, metric: val_loss, max_trials: 2}"
        project = Project(tmp_path, f"{hold}\nresources: {{slots_per_trial: 0}}\nmax_restarts: 0")
        words = ("experiment", "run", "search.yaml", "--on", "slurm", "--workers", "1")
        printed = project.command(*words, **cluster.variables)
        job = printed.partition("slurm has job ")[2].split()[0]
        until(lambda: len(project.held()) == 2)
        cluster.command("scancel", "--signal=TERM", "--batch", f"{job}_1")
        until(lambda: "PENDING" in cluster.command("squeue", "--noheader", "--format=%T"))
        assert {one.state for one in project.trials()} == {"waiting"}
        project.let_go()
        until(lambda: {one.state for one in project.trials()} == {"completed"})
        assert [one.attempts for one in project.trials()] == [2, 2]
        assert_as_torch(project, 2)
        until(lambda: not cluster.command("squeue", "--noheader").strip())
        assert "2 completed" in "".join(path.read_text() for path in project.experiment.glob("workers/*.txt"))
    finally:
        print(cluster.command("scontrol", "show", "job"))  # noqa: T201  shown if it fails
        cluster.close()
