"""Cluster environments of Lightning's kind: a user's own, and those of launchers, by their variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightlib.errors import MisconfigurationException
from lightlib.launch.environment.environment import free_port

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
# For each environment the variables of rank 1 of 4 processes on 2 machines, and its ranks.
LAUNCHED = {
    "TorchElasticEnvironment": (
        {
            "TORCHELASTIC_RUN_ID": "run", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
        },
        (4, 1, 1, 0, "10.0.0.1", 29500),
    ),
    "MPIEnvironment": (
        {
            "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501",
        },
        (4, 3, 1, 1, "10.0.0.1", 29501),
    ),
    "LSFEnvironment": (
        {
            "JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "0",
            "JSM_NAMESPACE_LOCAL_SIZE": "2", "LSB_JOBID": "77", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29502",
        },
        (4, 2, 0, 1, "10.0.0.1", 29502),
    ),
    "KubeflowEnvironment": (
        {
            "KUBERNETES_SERVICE_HOST": "10.0.0.9", "RANK": "3", "WORLD_SIZE": "4",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29503",
        },
        (4, 3, 0, 3, "10.0.0.1", 29503),
    ),
}  # fmt: skip


def environments():
    import lightning.pytorch.plugins.environments as found

    return found


@pytest.mark.parametrize("name", LAUNCHED)
def test_an_environment_of_a_launcher_reads_its_variables(name, monkeypatch):
    variables, expected = LAUNCHED[name]
    kind = getattr(environments(), name)
    assert not kind.detect()
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert kind.detect()
    found = kind()
    ranks = found.world_size(), found.global_rank(), found.local_rank(), found.node_rank()
    assert (*ranks, found.main_address, found.main_port) == expected
    assert found.creates_processes_externally
    found.set_world_size(9)
    found.set_global_rank(9)
    assert (found.world_size(), found.global_rank()) == expected[:2]


@pytest.mark.parametrize("name", LAUNCHED)
def test_without_its_launcher_it_says_which_variables_are_missing(name):
    import lightning.pytorch as pl

    with pytest.raises(MisconfigurationException, match=f"{name}: .* has not started this process") as raised:
        pl.Trainer(accelerator="cpu", plugins=[getattr(environments(), name)()], **QUIET)
    assert f"leave {name} out" in str(raised.value)


def test_slurm_is_detected_by_its_variables(monkeypatch):
    import lightning.pytorch as pl

    job = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}
    for variable, value in {**job, "SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "train"}.items():
        monkeypatch.setenv(variable, value)
    trainer = pl.Trainer(accelerator="cpu", plugins=[environments().SLURMEnvironment(auto_requeue=False)], **QUIET)
    assert (trainer.world_size, trainer.global_rank) == (1, 0)


@pytest.mark.processes  # it looks for a free port
def test_the_environment_of_a_trainer_is_the_users():
    import lightning.pytorch as pl

    given = environments().LightningEnvironment()
    trainer = pl.Trainer(accelerator="cpu", devices=1, plugins=[given], **QUIET)
    assert trainer.strategy.cluster_environment is given
    assert isinstance(pl.Trainer(accelerator="cpu", **QUIET).strategy.cluster_environment, type(given))


def test_lightnings_environment_learns_ranks_from_the_trainer(monkeypatch):
    import lightning.pytorch as pl

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29504")
    given = environments().LightningEnvironment()
    trainer = pl.Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", plugins=[given], **QUIET)
    assert (given.world_size(), given.global_rank()) == (4, 3)
    assert (trainer.world_size, trainer.global_rank, trainer.local_rank, trainer.node_rank) == (4, 3, 1, 1)
    environment = trainer.strategy.environment
    assert (environment.address, environment.port, environment.launched) == ("10.0.0.1", 29504, True)


OWN = '''
import json, os
import lightning.pytorch as pl, torch
from lightning.pytorch.plugins.environments import ClusterEnvironment

class Mine(ClusterEnvironment):
    """Ranks in variables of its own; the test starts the processes."""
    calls = []
    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = int(os.environ["MINE_PORT"])
    @staticmethod
    def detect(): return "MINE_RANK" in os.environ
    def world_size(self): return int(os.environ["MINE_SIZE"])
    def set_world_size(self, size): self.calls.append(["set_world_size", size])
    def global_rank(self): return int(os.environ["MINE_RANK"])
    def set_global_rank(self, rank): self.calls.append(["set_global_rank", rank])
    def local_rank(self): return int(os.environ["MINE_RANK"])
    def node_rank(self): return 0
    def teardown(self): self.calls.append(["teardown"])

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)

rank = int(os.environ["MINE_RANK"])
off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", plugins=[Mine()], max_epochs=1,
                     use_distributed_sampler=False, **off)
module = Net()
trainer.fit(module, [torch.full((1, 1), float(rank + 1))])
print("RESULT", json.dumps([trainer.global_rank, trainer.world_size, module.layer.weight.item(), Mine.calls]))
'''


@pytest.mark.processes
def test_an_environment_of_the_user_joins_processes_that_the_test_starts():
    Path("own.py").write_text(OWN)
    port = str(free_port())
    command = [sys.executable, "-m", "lightlib", "compat", "run", "own.py"]
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, "MINE_RANK": str(rank), "MINE_SIZE": "2", "MINE_PORT": port, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in started]
    for rank, output in enumerate(outputs):
        lines = [line for line in output.splitlines() if line.startswith("RESULT")]
        assert lines, output
        # the gradient is the mean of 1 and 2: 1 - 0.5 * 1.5
        found_rank, size, weight, calls = json.loads(lines[0].removeprefix("RESULT "))
        assert (found_rank, size, weight) == (rank, 2, 0.25)
        assert calls[:2] == [["set_world_size", 2], ["set_global_rank", rank]]
        assert calls[-1] == ["teardown"]
