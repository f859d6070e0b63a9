"""ContainerLauncher: its command lines, and two containers of a dummy docker that train together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.launch import ContainerLauncher
from lightlib.launch.environment.environment import HeldPort
from tests.distributed.user import BATCH, Net, plain_loop

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ["python", "train.py"]

# Records its arguments, and runs the program with nothing but the variables that it was given.
DOCKER = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
named = [one.removeprefix("--env=") for one in arguments if one.startswith("--env=")]
env = dict(one.split("=", 1) if "=" in one else (one, os.environ[one]) for one in named)
with open(f"{{sys.argv[0]}}{{env.get('NODE_RANK', '')}}.json", "w") as file:
    json.dump(arguments, file)
image = arguments.index("train:1")
for one in arguments[:image]:
    if one.startswith("--workdir="):
        os.chdir(one.removeprefix("--workdir="))
os.execve(arguments[image + 1], arguments[image + 1:], env)
"""

TRAIN = """
import torch
import lightlib as L
from tests.distributed.user import BATCH, Net, data
from tests.runs.quiet import QUIET

torch.set_num_threads(1)
torch.manual_seed(3)
net = Net()
trainer = L.Trainer(**QUIET, strategy="ddp", devices=1, num_nodes=2, max_steps=14, limit_val_batches=0)
trainer.fit(net, torch.utils.data.DataLoader(data(), BATCH // 2))
torch.save(net.state_dict(), f"weights{trainer.global_rank}.pt")
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Put a dummy docker on the PATH; return its path."""
    path = tmp_path / "bin" / "docker"
    path.parent.mkdir()
    path.write_text(DOCKER, encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return path


@pytest.mark.processes
def test_two_containers_train_as_one_run(docker):
    Path("train.py").write_text(TRAIN, encoding="utf-8")
    with closing(HeldPort()) as held:
        launcher = ContainerLauncher(
            "train:1", num_nodes=2, address="127.0.0.1", port=held.port,
            env={"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "PATH": None},
        )  # fmt: skip
        program = [sys.executable, "train.py"]
        second = subprocess.Popen(launcher.command(program, node_rank=1))
        try:
            assert launcher.run(program, node_rank=0) == 0
            assert second.wait(500) == 0
        finally:
            second.kill()
            second.wait()
    torch.manual_seed(3)
    net = Net()
    plain_loop(net, 14, 1, BATCH)
    for rank in (0, 1):
        found = torch.load(f"weights{rank}.pt")
        for name, value in net.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
        given = json.loads(Path(f"{docker}{rank}.json").read_text(encoding="utf-8"))
        assert ["docker", *given] == launcher.command(program, rank)


def test_the_command_line_of_each_machine(monkeypatch):
    launcher = ContainerLauncher(
        "train:1", num_nodes=2, address="node01", port=29400, mounts={"/data": "/mnt/data"}, gpus="device=0,1",
        env={"WANDB_API_KEY": None, "OMP_NUM_THREADS": "4"}, shm_size="8g", options=["--user=1000"], engine="podman",
    )  # fmt: skip
    assert launcher.command(PROGRAM, 1) == [
        "podman", "run", "--rm", "--network=host", "--shm-size=8g", "--gpus=device=0,1", "--env=MASTER_ADDR=node01",
        "--env=MASTER_PORT=29400", "--env=NODE_RANK=1", "--env=WANDB_API_KEY", "--env=OMP_NUM_THREADS=4",
        "--mount=type=bind,source=/data,target=/mnt/data", "--user=1000", "train:1", "python", "train.py",
    ]  # fmt: skip
    here = os.getcwd()
    assert ContainerLauncher("train:1").command(PROGRAM) == [
        "docker", "run", "--rm", "--network=host", "--ipc=host", f"--mount=type=bind,source={here},target={here}",
        f"--workdir={here}", "train:1", "python", "train.py",
    ]  # fmt: skip


@pytest.mark.processes
def test_the_machine_is_that_of_the_variable_and_the_exit_code_comes_back(docker, monkeypatch):
    monkeypatch.setenv("NODE_RANK", "1")
    launcher = ContainerLauncher("train:1", num_nodes=2, address="node01")
    assert launcher.run([sys.executable, "-c", "import os, sys; sys.exit(3 + int(os.environ['NODE_RANK']))"]) == 4


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"image": ""}, ArgumentTypeError, r"ContainerLauncher\(image=''"),
        ({"gpus": 2}, ArgumentTypeError, r"gpus=2 \(int\)"),
        ({"num_nodes": 0}, MisconfigurationException, "num_nodes=0"),
        ({"num_nodes": 2.0}, ArgumentTypeError, r"num_nodes=2\.0 \(float\)"),
        ({"num_nodes": 2}, MisconfigurationException, r"num_nodes=2\) without an address(.|\n)*address='node01'"),
        ({"port": 70000}, MisconfigurationException, "port=70000(.|\n)*>= 1 and <= 65535"),
        ({"engine": "dokcer"}, UnknownNameError, "engine of ContainerLauncher 'dokcer'(.|\n)*docker"),
        ({"options": "--user 1"}, ArgumentTypeError, r"options=\['--user', '1'\]"),
    ],
)
def test_arguments_that_are_wrong(options, kind, text):
    with pytest.raises(kind, match=text):
        ContainerLauncher(**{"image": "train:1", **options})


def test_programs_machines_and_folders_that_there_are_not(docker, monkeypatch):
    launcher = ContainerLauncher("train:1", mounts={"/nowhere": "/data"})
    with pytest.raises(ArgumentTypeError, match=r"python train\.py"):
        launcher.command("python train.py")
    with pytest.raises(MisconfigurationException, match=r"node_rank=1(.|\n)*>= 0 and <= 0"):
        launcher.command(PROGRAM, 1)
    with pytest.raises(MisconfigurationException, match=r"'/nowhere'(.|\n)*no such folder"):
        launcher.run(PROGRAM)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        MisconfigurationException, match=r"needs docker, which is not on the PATH(.|\n)*docker run --rm"
    ):
        launcher.run(PROGRAM)
