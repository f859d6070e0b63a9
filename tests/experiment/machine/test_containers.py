"""Trials in containers of a dummy docker, which has no image and no namespaces."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib.config.yaml.document import ConfigError
from lightlib.errors import LightlibError
from lightlib.experiment.file import read
from lightlib.experiment.machine.containers import INSIDE, Containers
from lightlib.experiment.machine.needs import check_machine
from lightlib.experiment.machine.slots import Slot
from tests.experiment.work.project import ROOT, Project, until
from tests.experiment.work.test_worker import assert_as_torch

# Records its arguments and what it reads, and runs a program with nothing but the variables that it was given.
DOCKER = f"""#!{sys.executable}
import json, os, sys
folder, arguments = os.path.dirname(sys.argv[0]), sys.argv[1:]
given = "" if arguments[0] == "run" else sys.stdin.read()
with open(os.path.join(folder, "calls.jsonl"), "a") as file:
    file.write(json.dumps([arguments, given]) + "\\n")
if arguments[0] != "run":
    config = os.path.join(os.environ.get("DOCKER_CONFIG", folder), "config.json")
    if arguments[0] == "pull" and os.path.exists(config):
        with open(config) as file, open(os.path.join(folder, "seen.json"), "w") as seen:
            found = dict(config=json.load(file), mode=os.stat(config).st_mode & 0o777, path=config)
            found["context"] = open(os.path.join(os.path.dirname(config), "contexts", "one")).read()
            json.dump(dict(found, store=os.environ.get("DOCKER_AUTH_CONFIG")), seen)
    print("unauthorized: wrong name or password, or token-word", file=sys.stderr)
    sys.exit(os.path.exists(os.path.join(folder, "lacks" if arguments[0] == "image" else "refuses")))
named = [one.removeprefix("--env=") for one in arguments if one.startswith("--env=")]
env = dict(one.split("=", 1) if "=" in one else (one, os.environ.get(one, "")) for one in named)
env["PATH"] = os.pathsep.join([folder, os.defpath])
env["PYTHONPATH"] += os.pathsep + {str(ROOT)!r}
os.chdir(next(one.removeprefix("--workdir=") for one in arguments if one.startswith("--workdir=")))
command = arguments[arguments.index("train:1") + 1:]
os.execvpe(command[0], command, env)
"""
FILE = {
    "name": "a",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss"},
    "environment": {"image": "train:1"},
}
CORE = (Slot("cpu", 0),)
ACCOUNT = {"username": "me", "password": "secret-word", "serveraddress": "registry.example.org"}


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Put a dummy docker on the PATH, with a `python3` for its containers; return its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("docker", DOCKER), ("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def calls(folder):
    path = folder / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def words(docker, slots=CORE, variables=("A", "OMP_NUM_THREADS"), **more):
    """Return the options of the container of an attempt, and the image with the command."""
    config = read({**FILE, **more})
    containers = Containers.of(config, Path("/exp/a"), slots[0].kind)
    found = containers.words(
        "one", Path("/exp/a/trials/0000/attempt-0"), Path("/exp/a/.context"), slots, variables, ["python3", "t.py"]
    )
    image = found.index("train:1")
    return list(found[:image]), list(found[image:])


def test_the_command_line_of_a_container(docker):
    options, rest = words(docker)
    assert options == [
        "docker", "run", "--rm", "--network=host", "--shm-size=4294967296", "--env=HOME=/tmp", "--env=A",
        "--env=OMP_NUM_THREADS", "--env=PYTHONPATH", "--env=PYTHONUNBUFFERED", "--env=LIGHTLIB_TRIAL_JOB",
        "--mount=type=bind,source=/exp/a,target=/exp/a", "--interactive", "--init", "--name=one",
        "--workdir=/exp/a/trials/0000/attempt-0", f"--user={os.getuid()}:{os.getgid()}",
    ]  # fmt: skip
    assert rest[1:3] == ["sh", "-c"]
    assert rest[4:] == ["/exp/a/.context", "python3", "t.py"]


@pytest.mark.parametrize(
    ("more", "options"),
    [
        (
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/shared", "propagation": "rslave"}},
            ["--mount=type=bind,source=/shared,target=/shared,bind-propagation=rslave"],
        ),
        (
            {"checkpoint_storage": {"url": "file:///shared/a"}},
            ["--mount=type=bind,source=/shared/a,target=/shared/a,bind-propagation=rprivate"],
        ),
        ({"resources": {"shm_size": "1g"}}, ["--shm-size=1073741824"]),
        ({"resources": {"devices": ["/dev/infiniband:/dev/ib:rw"]}}, ["--device=/dev/infiniband:/dev/ib:rw"]),
        (
            {"environment": {"image": "train:1", "add_capabilities": ["IPC_LOCK"], "drop_capabilities": ["MKNOD"]}},
            ["--cap-add=IPC_LOCK", "--cap-drop=MKNOD"],
        ),
        (
            {"bind_mounts": [{"host_path": "/d", "container_path": "/data", "read_only": True}]},
            ["--mount=type=bind,source=/d,target=/data,readonly,bind-propagation=rprivate"],
        ),
        (
            {"bind_mounts": [{"host_path": "/d", "container_path": "in/data", "propagation": "rslave"}]},
            ["--mount=type=bind,source=/d,target=/exp/a/trials/0000/attempt-0/in/data,bind-propagation=rslave"],
        ),
    ],
)
def test_keys_of_the_file_are_options(docker, more, options):
    assert set(options) <= set(words(docker, **more)[0])


def test_a_store_without_a_folder_and_a_folder_of_bind_mounts_are_not_mounted_again(docker):
    mounts = [{"host_path": "/shared", "container_path": "/shared/"}]
    for more in ({"checkpoint_storage": {"type": "s3", "bucket": "b"}}, {}):
        assert len([one for one in words(docker, **more)[0] if one.startswith("--mount")]) == 1
    storage = {"type": "directory", "container_path": "/shared"}
    found, _ = words(docker, bind_mounts=mounts, checkpoint_storage=storage)
    assert len([one for one in found if "source=/shared" in one]) == 1


def test_gpus_are_those_of_the_slots_and_are_counted_from_0_in_the_container(docker):
    options, _ = words(docker, [Slot("cuda", 1), Slot("cuda", 3)], ["CUDA_VISIBLE_DEVICES", "A"])
    assert '--gpus="device=1,3"' in options
    assert "--env=CUDA_VISIBLE_DEVICES" not in options
    assert "--env=A" in options


def test_a_worker_within_the_image_starts_no_container(docker, monkeypatch):
    monkeypatch.setenv(INSIDE, "1")
    assert Containers.of(read(FILE), Path("/exp/a"), "cpu") is None


def test_without_an_image_there_is_no_container(docker):
    assert Containers.of(read({**FILE, "environment": {}}), Path("/exp/a"), "cpu") is None


def test_an_image_for_other_slots_is_refused(docker):
    config = read({**FILE, "environment": {"image": {"cuda": "train:1"}}})
    with pytest.raises(ConfigError, match="has an image for cuda, and this machine has cpu slots"):
        Containers.of(config, Path("/exp/a"), "cpu")


def test_a_machine_without_docker_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="is 'train:1', and this machine has neither docker nor podman"):
        Containers.of(read(FILE), Path("/exp/a"), "cpu")


def test_a_mount_may_have_another_path_in_a_container(tmp_path):
    config = read({**FILE, "bind_mounts": [{"host_path": str(tmp_path), "container_path": "/data"}]})
    check_machine(config, contained=True)
    with pytest.raises(ConfigError, match="needs a container"):
        check_machine(config)


@pytest.mark.processes
def test_a_password_is_on_the_standard_input_of_login_only(docker):
    environment = {"image": "train:1", "registry_auth": ACCOUNT, "force_pull_image": True}
    containers = Containers.of(read({**FILE, "environment": environment}), Path("/exp/a"), "cpu")
    containers.prepare()
    assert calls(docker) == [
        [["login", "--username", "me", "--password-stdin", "registry.example.org"], "secret-word"],
        [["pull", "train:1"], ""],
    ]
    (docker / "refuses").touch()
    with pytest.raises(LightlibError, match="docker login failed: unauthorized: wrong name or password") as error:
        containers.prepare()
    assert "secret-word" not in str(error.value)


def with_account(folder=Path("/exp/a"), image="train:1", force=False, **account):
    environment = {"image": image, "registry_auth": account, "force_pull_image": force}
    return Containers.of(read({**FILE, "environment": environment}), folder, "cpu")


@pytest.mark.processes
@pytest.mark.parametrize("server", [{"serveraddress": "registry.example.org"}, {}])
def test_auth_is_decoded_for_the_login(docker, server):
    encoded = base64.b64encode(b"me:secret:word").decode()
    with_account(image="registry.example.org/train:1", auth=encoded, **server).prepare()
    assert calls(docker) == [[["login", "--username", "me", "--password-stdin", "registry.example.org"], "secret:word"]]


@pytest.mark.parametrize("auth", ["token-word", "dG9rZW4td29yZA==", "OnRva2VuLXdvcmQ=", "dG9rZW4td29yZDo=", "/w=="])
def test_a_malformed_auth_is_refused_without_its_value(docker, auth):
    """Then base64 without a colon, without a name, without a password, and of bytes that are no text."""
    with pytest.raises(ConfigError) as error:
        with_account(auth=auth, serveraddress="registry.example.org")
    assert str(error.value) == (
        "'environment.registry_auth.auth' is malformed.\n"
        "  Expected: USER:PASSWORD in base64, as docker writes it.\n"
        "  Fix: write the output of `printf %s USER:PASSWORD | base64 -w0`; or username and password in place of it."
    )


@pytest.fixture
def of_user(tmp_path, monkeypatch):
    """Make a folder of docker with a context and a store of passwords; return it."""
    folder = tmp_path / "docker-of-user"
    (folder / "contexts").mkdir(parents=True)
    (folder / "contexts" / "one").write_text("of the user")
    text = '{"currentContext": "one", "credsStore": "keys", "auths": {"registry.example.org": {"auth": "bWU6bXk="}}}'
    (folder / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", '{"auths": {}}')
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("kind", ["identitytoken", "registrytoken"])
@pytest.mark.parametrize(
    ("server", "image", "key"),
    [
        ("https://registry.example.org/v2/", "train:1", "registry.example.org"),
        (None, "registry.example.org:5000/train:1", "registry.example.org:5000"),
        (None, "me/train:1", "https://index.docker.io/v1/"),
        ("docker.io", "train:1", "https://index.docker.io/v1/"),
    ],
)
def test_a_token_is_in_a_private_folder_during_the_pull_only(docker, of_user, refuses, kind, server, image, key):
    before = {path: path.read_bytes() for path in of_user.rglob("*") if path.is_file()}
    containers = with_account(image=image, force=True, **{kind: "token-word"}, serveraddress=server)
    assert "token-word" not in repr(containers)
    if refuses:
        (docker / "refuses").touch()
        with pytest.raises(LightlibError, match=r"docker pull failed: unauthorized: .*, or \*\*\*") as error:
            containers.prepare()
        assert "token-word" not in str(error.value)
    else:
        containers.prepare()
    assert calls(docker) == [[["pull", image], ""]]
    seen = json.loads((docker / "seen.json").read_text())
    path = Path(seen.pop("path"))
    assert seen == {
        "config": {"currentContext": "one", "auths": {key: {kind: "token-word"}}},
        "mode": 0o600,
        "context": "of the user",
        "store": None,
    }
    assert not path.parent.exists()
    assert {path: path.read_bytes() for path in of_user.rglob("*") if path.is_file()} == before


@pytest.mark.processes
def test_with_a_token_an_image_is_pulled_if_it_is_missing(docker, of_user):
    containers = with_account(identitytoken="token-word")
    containers.prepare()
    inspected = [["image", "inspect", "train:1"], ""]
    (docker / "lacks").touch()
    containers.prepare()
    assert calls(docker) == [inspected, inspected, [["pull", "train:1"], ""]]


def test_a_damaged_configuration_of_docker_is_named(docker, of_user):
    (of_user / "config.json").write_text("[]")
    with pytest.raises(LightlibError, match=r"docker-of-user/config\.json is no JSON object"):
        with_account(identitytoken="token-word", force=True).prepare()


def test_podman_refuses_a_token(docker, monkeypatch):
    (docker / "docker").rename(docker / "podman")
    monkeypatch.setenv("PATH", str(docker))
    with pytest.raises(ConfigError, match="is a token, and podman pulls the images") as error:
        with_account(identitytoken="token-word", serveraddress="registry.example.org")
    assert "write username and password; or run `podman login registry.example.org`" in str(error.value)
    assert "token-word" not in str(error.value)
    assert with_account(**ACCOUNT, identitytoken="token-word").account.login == ("me", "secret-word")


@pytest.mark.processes
def test_a_token_is_in_no_file_of_an_experiment(docker, of_user, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTLIB_SECRET_IDENTITYTOKEN", "token-word")
    (docker / "lacks").touch()
    project = Project(
        tmp_path / "project",
        """
        environment: {image: "train:1", registry_auth: {identitytoken: "***"}}
        searcher: {name: random, metric: val_loss, max_trials: 1}
        """,
    )
    project.run()
    assert [one.state for one in project.trials()] == ["completed"]
    seen = json.loads((docker / "seen.json").read_text())
    assert seen["config"]["auths"] == {"https://index.docker.io/v1/": {"identitytoken": "token-word"}}
    files = [path for path in project.folder.rglob("*") if path.is_file()]
    assert any(path.name == "experiment.yaml" for path in files)
    assert [path for path in files if b"token-word" in path.read_bytes()] == []


@pytest.mark.processes
def test_trials_train_in_containers_as_torch_does(docker, tmp_path):
    """The first attempts are killed with their worker, the second ones are paused; the hook runs in each container."""
    project = Project(
        tmp_path / "project",
        """
        environment: {image: "train:1", environment_variables: ["WORD=of the file"]}
        fit: {model: {init_args: {holds_at: [2, 5]}}}
        searcher: {name: random, metric: val_loss, max_trials: 2}
        """,
    )
    (project.folder / "startup-hook.sh").write_text('echo "$WORD" >> "$SEEN/hook"\n')
    seen = f'environment_variables: ["WORD=of the file", "SEEN={project.seen}"]'
    file = project.folder / "search.yaml"
    file.write_text(file.read_text().replace('environment_variables: ["WORD=of the file"]', seen))
    worker = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2)
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate(timeout=300)
    until(lambda: not running(project))
    for held in project.held():
        held.unlink()
    worker = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2)
    os.kill(worker.pid, signal.SIGTERM)
    printed, _ = worker.communicate(timeout=300)
    assert worker.returncode == 143, printed
    assert {one.state for one in project.trials()} == {"waiting"}
    project.let_go()
    project.run()
    assert [(one.state, one.attempts) for one in project.trials()] == [("completed", 3)] * 2
    assert_as_torch(project, 2)
    assert (project.seen / "hook").read_text() == "of the file\n" * 6
    names = {one.removeprefix("--name=") for found, _ in calls(docker) for one in found if one.startswith("--name=")}
    assert len(names) == 6
    removed = [found[-1] for found, _ in calls(docker) if found[:2] == ["rm", "--force"]]
    assert set(removed) <= names
    assert len(removed) == 4, "the killed worker could remove none"


def running(project):
    """Return the processes of trials."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            found += [process] * (process / "cwd").readlink().is_relative_to(project.experiment / "trials")
        except (OSError, ValueError):
            continue
    return found
