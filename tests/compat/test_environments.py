"""Cluster environments of Lightning's kind: a user's own, and those of launchers, by their variables."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lightlib import compat
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
            "JSM_NAMESPACE_LOCAL_SIZE": "2", "LSB_JOBID": "77", "LSB_DJOB_RANKFILE": "ranks",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29502",
        },
        (4, 2, 0, 1, "10.0.0.2", 29502),
    ),
    "KubeflowEnvironment": (
        {
            "KUBERNETES_SERVICE_HOST": "10.0.0.9", "RANK": "3", "WORLD_SIZE": "4",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29503",
        },
        (4, 3, 0, 3, "10.0.0.1", 29503),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def as_lightning():
    compat.install()
    yield
    compat.uninstall()


def environments():
    import lightning.pytorch.plugins.environments as found

    return found


@pytest.mark.parametrize("name", LAUNCHED)
def test_an_environment_of_a_launcher_reads_its_variables(name, monkeypatch):
    variables, expected = LAUNCHED[name]
    kind = getattr(environments(), name)
    detects = name != "KubeflowEnvironment"
    assert not (detects and kind.detect())
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    if detects:
        assert kind.detect()
    else:
        with pytest.raises(NotImplementedError, match="can't be detected automatically"):
            kind.detect()
    Path("ranks").write_text(f"launch\n10.0.0.2\n10.0.0.2\n{socket.gethostname()}\n{socket.gethostname()}\n")
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


SLURM = {
    "SLURM_JOB_ID": "123456", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "2", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0",
    "SLURM_NODELIST": "node[07-09,12],other",
}  # fmt: skip


@pytest.fixture
def in_slurm(monkeypatch):
    """Set the variables of the last task of a job; restore MASTER_ADDR and MASTER_PORT afterwards."""
    for variable in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    for variable, value in SLURM.items():
        monkeypatch.setenv(variable, value)


def test_slurms_environment_has_lightnings_values(in_slurm, monkeypatch):
    found = environments().SLURMEnvironment()
    assert isinstance(found, environments().ClusterEnvironment)
    ranks = found.world_size(), found.global_rank(), found.local_rank(), found.node_rank()
    assert (*ranks, found.main_address, found.main_port) == (4, 3, 1, 1, "node07", 18456)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("node07", "18456")
    assert (found.creates_processes_externally, found.job_name(), found.job_id()) == (True, "train", 123456)
    found.set_world_size(9)
    found.set_global_rank(9)
    found.teardown()
    assert (found.world_size(), found.global_rank()) == (4, 3)
    found.validate_settings(num_devices=2, num_nodes=2)
    for devices, nodes, text in ((3, 2, r"devices=3, but SLURM has --ntasks-per-node=2"), (2, 1, "num_nodes=1, but")):
        with pytest.raises(ValueError, match=text):
            found.validate_settings(num_devices=devices, num_nodes=nodes)
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    found.validate_settings(num_devices=3, num_nodes=1)
    assert found.job_id() is None
    monkeypatch.delenv("SLURM_NTASKS")
    with pytest.raises(MisconfigurationException, match="SLURM_NTASKS is not set"):
        found.world_size()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("alpha", "alpha"), ("a b", "a"), ("a,b", "a"), ("a[5-9]", "a5"), ("a[7]", "a7"), ("a[1,3-4],b[2]", "a1")],
)
def test_the_first_host_of_a_list(nodes, first):
    assert environments().SLURMEnvironment.resolve_root_node_address(nodes) == first


def test_a_subclass_of_slurms_environment_is_asked(in_slurm):
    import lightning.pytorch as pl
    from lightning.fabric import Fabric

    asked = []

    class Renamed(environments().SLURMEnvironment):
        @property
        def main_address(self):
            asked.append("main_address")
            return "node07-infiniband"

        def validate_settings(self, num_devices, num_nodes):
            asked.append((num_devices, num_nodes))
            super().validate_settings(num_devices, num_nodes)

    given = Renamed()
    trainer = pl.Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", plugins=[given], **QUIET)
    place = trainer.strategy.environment
    assert (place.address, place.port, place.rank, place.world_size) == ("node07-infiniband", 18456, 3, 4)
    assert asked == [(2, 2), "main_address"]
    assert trainer.strategy.cluster_environment is given
    assert trainer.requeue is given
    fabric = Fabric(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", plugins=[Renamed()])
    assert fabric.strategy.environment.address == "node07-infiniband"


def test_a_number_of_processes_of_a_subclass(in_slurm):
    import lightning.pytorch as pl

    class Alone(environments().SLURMEnvironment):
        def world_size(self):
            return 1

        def global_rank(self):
            return 0

        def node_rank(self):
            return 0

        def local_rank(self):
            return 0

        def validate_settings(self, num_devices, num_nodes):
            pass

    trainer = pl.Trainer(accelerator="cpu", devices=1, plugins=[Alone(auto_requeue=False)], **QUIET)
    assert (trainer.world_size, trainer.global_rank, trainer.requeue) == (1, 0, None)


def test_an_environment_checks_the_arguments(monkeypatch):
    import lightning.pytorch as pl

    for variable, value in LAUNCHED["TorchElasticEnvironment"][0].items():
        monkeypatch.setenv(variable, value)
    given = environments().TorchElasticEnvironment()
    with pytest.raises(ValueError, match=r"devices=3 and num_nodes=2, but torchrun has started 4 processes"):
        pl.Trainer(accelerator="cpu", devices=3, num_nodes=2, strategy="ddp", plugins=[given], **QUIET)
    pl.Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", plugins=[given], **QUIET)


def test_torchrun_without_an_address(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "")
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.warns(UserWarning, match="MASTER_ADDR environment variable is not defined. Set as localhost"):
        assert environments().TorchElasticEnvironment().main_address == "127.0.0.1"


def test_the_rank_file_of_lsf(monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    for variable, value in LAUNCHED["LSFEnvironment"][0].items():
        if not variable.startswith("MASTER"):
            monkeypatch.setenv(variable, value)
    found = environments().LSFEnvironment()
    assert found.main_port == 10077
    for text in (None, "launch\nnode1\nnode2\n"):
        if text is not None:
            Path("ranks").write_text(text)
        with pytest.raises(ValueError, match="LSB_DJOB_RANKFILE"):
            found.node_rank()
    monkeypatch.setenv("LSB_DJOB_RANKFILE", "")
    with pytest.raises(ValueError, match="LSB_DJOB_RANKFILE is ''"):
        _ = found.main_address


def test_lightnings_environment_removes_the_size_it_has_set(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    environments().LightningEnvironment().teardown()
    assert "WORLD_SIZE" not in os.environ
    environments().LightningEnvironment().teardown()


@pytest.mark.parametrize(
    "names",
    [
        ("LightningEnvironment", "SLURMEnvironment"),
        ("SLURMEnvironment", "SLURMEnvironment"),
        ("LightningEnvironment", "KubeflowEnvironment"),
    ],
)
def test_several_environments_are_refused(names):
    import lightning.pytorch as pl
    from lightning.fabric import Fabric

    given = [getattr(environments(), name)() for name in names]
    for kind, more in ((pl.Trainer, QUIET), (Fabric, {})):
        with pytest.raises(MisconfigurationException, match=f"plugins holds several environments: {', '.join(names)}"):
            kind(accelerator="cpu", plugins=given, **more)


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
