"""Trials in containers of docker and podman; skipped where no such engine answers."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib.errors import LightlibError
from lightlib.experiment.file import read
from lightlib.experiment.machine.containers import Containers
from tests.experiment.machine.registry import Registry
from tests.experiment.work.project import MODEL, ROOT, Project, until
from tests.experiment.work.test_worker import assert_as_torch

pytestmark = [pytest.mark.processes, pytest.mark.slow]

IMAGE = "localhost/lightlib-test:1"
SHOWN = """
    def on_fit_start(self):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        print("bounding", int(status["CapBnd"], 16))
        os.close(os.open("/dev/of-test", os.O_RDONLY))
        try:
            os.close(os.open("/dev/of-test", os.O_WRONLY))
        except PermissionError:
            print("device is read-only")
        memory = os.statvfs("/dev/shm")
        print("shared", memory.f_blocks * memory.f_frsize)
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        print("mount", next(line[5:7] for line in mounts if line[4].endswith("/in/data")))
        print("data", Path("in/data/one").read_text())
        print("user", os.getuid(), "word", os.environ["WORD"], "of the host", Path("/of-the-host").exists())

    def configure_optimizers(self):
"""
SHARED = any(" / / " in line and " shared:" in line for line in Path("/proc/self/mountinfo").read_text().splitlines())
SYS_PTRACE, MKNOD = 19, 27  # bits of /proc/PID/status


def empty_system():
    """Return an archive of folders and links for the programs that are mounted."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("tmp", "usr", "etc", "dev", "proc", "sys", "sbin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
    return packed.getvalue()


@pytest.fixture(params=["docker", "podman"])
def engine(request, tmp_path, monkeypatch):
    """Leave one engine on the PATH, with an image that has only folders: programs are mounted from this machine."""
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    if subprocess.run([path, "info"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip(f"{request.param} has no engine that answers")
    subprocess.run([path, "import", "-", IMAGE], input=empty_system(), capture_output=True, check=True)
    words = [
        path,
        "run",
        "--rm",
        "--init",
        "--network=host",
        "--mount=type=bind,source=/usr,target=/usr",
        IMAGE,
        "true",
    ]
    tried = subprocess.run(words, capture_output=True, check=False, text=True, timeout=60)
    if tried.returncode:
        pytest.skip(f"{request.param} starts no container: {tried.stderr.strip()}")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / request.param).symlink_to(path)
    monkeypatch.setenv("PATH", str(folder))
    yield path
    subprocess.run([path, "rmi", "--force", IMAGE], capture_output=True, check=True)


@pytest.fixture
def project(engine, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_text("here")
    seen, propagation = tmp_path / "project" / "seen", "rslave" if SHARED else "rprivate"
    mounted = {"/usr", str(seen), str(ROOT), sys.prefix, sys.base_prefix}
    mounts = "".join(f"  - {{host_path: {one}, container_path: {one}}}\n" for one in sorted(mounted))
    project = Project(
        tmp_path / "project",
        f"""
        environment:
          image: {IMAGE}
          add_capabilities: [SYS_PTRACE]
          drop_capabilities: [MKNOD]
          environment_variables: ["PATH={sys.prefix}/bin:/usr/bin", "SEEN={seen}", WORD=green]
        fit: {{model: {{init_args: {{holds_at: [2]}}}}}}
        searcher: {{name: random, metric: val_loss, max_trials: 2}}
        """,
        MODEL.replace("    def configure_optimizers(self):\n", SHOWN.replace("/of-the-host", str(tmp_path / "data"))),
    )
    file = project.folder / "search.yaml"
    file.write_text(
        f"{file.read_text()}"
        "resources: {shm_size: 48m, devices: ['/dev/loop-control:/dev/of-test:r']}\n"
        f"bind_mounts:\n{mounts}"
        f"  - {{host_path: {tmp_path}/data, container_path: in/data, read_only: true, propagation: {propagation}}}\n"
    )
    return project


def containers(engine):
    """Return the names of the containers that run."""
    words = [engine, "ps", "--filter", f"ancestor={IMAGE}", "--format", "{{.Names}}"]
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout.split()


def clients(engine):
    """Return the processes of the engine's clients that run containers."""
    command = (Path(engine).name.encode(), b"run")
    found = [(int(path.parent.name), path.read_bytes().split(b"\0")) for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [pid for pid, words in found if tuple(words[:2]) == command and IMAGE.encode() in words]


def test_trials_train_in_containers(engine, project):
    """Their keys of the file are seen in them; a killed worker ends them, and the next one continues the trials."""
    worker = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2 or worker.poll() is not None)
    assert len(containers(engine)) == 2
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate(timeout=300)
    until(lambda: not containers(engine))
    project.let_go()
    printed = project.run()
    assert [(one.state, one.attempts) for one in project.trials()] == [("completed", 2)] * 2, printed
    assert_as_torch(project, 2)
    assert not containers(engine)
    for trial in (0, 1):
        log = project.log(trial)
        bounding = int(log.partition("bounding ")[2].split()[0])
        assert bounding >> SYS_PTRACE & 1
        assert not bounding >> MKNOD & 1
        assert "device is read-only" in log
        assert f"shared {48 * 2**20}" in log
        assert f"user {os.getuid()} word green of the host False" in log
        mount = log.partition("mount ")[2].splitlines()[0]
        assert mount.startswith("['ro,")
        assert ("'master:" in mount) == SHARED
        assert "data here" in log
    owners = {path.stat().st_uid for path in project.experiment.rglob("*")}
    assert owners == {os.getuid()}


def test_a_killed_client_ends_its_container(engine, project):
    """The attempt is lost with the client of the engine, and its trial continues in another container."""
    worker = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2 or worker.poll() is not None)
    before = set(containers(engine))
    os.kill(clients(engine)[0], signal.SIGKILL)
    until(lambda: len(before & set(containers(engine))) == 1)
    project.let_go()
    printed, _ = worker.communicate(timeout=300)
    assert worker.returncode == 0, printed
    assert sorted(one.attempts for one in project.trials()) == [1, 2], printed
    assert_as_torch(project, 2)


@pytest.mark.parametrize("engine", ["docker"], indirect=True)  # podman pulls from no registry without TLS
@pytest.mark.parametrize(
    ("account", "asked"),
    [
        ({"username": "me", "password": "secret-word"}, ["Basic bWU6c2VjcmV0LXdvcmQ="]),
        ({"auth": "bWU6c2VjcmV0LXdvcmQ="}, ["Basic bWU6c2VjcmV0LXdvcmQ="]),
        ({"identitytoken": "secret-word"}, ["refresh_token secret-word"]),
        ({"registrytoken": "secret-word"}, []),
    ],
    ids=["password", "auth", "identitytoken", "registrytoken"],
)
def test_an_image_of_a_registry_with_an_account(engine, tmp_path, monkeypatch, account, asked):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with Registry(empty_system()) as registry:
        image = f"{registry.address}/train:1"
        containers_with(registry.address, account).prepare()
        subprocess.run([engine, "rmi", "--force", image], capture_output=True, check=True)
        assert set(registry.asked) == set(asked)
        assert set(registry.pulled) == {
            "Bearer secret-word" if "registrytoken" in account else "Bearer of-the-registry"
        }
        wrong = {name: "d3Jvbmc6d29yZA==" if name == "auth" else "wrong-word" for name in account}
        with pytest.raises(LightlibError, match=r"docker (login|pull) failed: ") as error:
            containers_with(registry.address, wrong).prepare()
        assert not any(one in str(error.value) for one in wrong.values())


def containers_with(server, account):
    environment = {
        "image": f"{server}/train:1",
        "registry_auth": {**account, "serveraddress": server},
        "force_pull_image": True,
    }
    searcher = {"name": "single", "metric": "loss"}
    config = read({"name": "a", "entrypoint": "python3 t.py", "searcher": searcher, "environment": environment})
    return Containers.of(config, Path("/exp/a"), "cpu")
