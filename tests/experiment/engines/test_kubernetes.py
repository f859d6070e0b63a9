"""Workers as the pods of a Job: its manifest, by the published schemas, and the call of kubectl."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("optuna")

from lightlib.config.yaml.document import ConfigError
from lightlib.config.yaml.file import text_of
from lightlib.errors import LightlibError
from lightlib.experiment.engines import kubernetes
from lightlib.experiment.file import read
from lightlib.experiment.machine.containers import INSIDE
from lightlib.experiment.work.folder import ExperimentFolder

VOLUMES = [{"name": "all", "persistentVolumeClaim": {"claimName": "claim"}}]
MOUNTS = [{"name": "all", "mountPath": "/shared"}]
FILE = {
    "name": "A search",
    "fit": {"trainer": {}},
    "searcher": {"name": "random", "metric": "loss", "max_trials": 1},
    "environment": {
        "image": "registry/image:1",
        "pod_spec": {"spec": {"volumes": VOLUMES, "containers": [{"name": "worker", "volumeMounts": MOUNTS}]}},
    },
}


def job(**sections):
    contents = {**FILE, **sections, "environment": {**FILE["environment"], **sections.get("environment", {})}}
    return kubernetes.manifest(read(contents), ExperimentFolder("/shared/experiments/a"), 4)


def worker(found):
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return container


def test_pods_are_workers():
    found = job(resources={"slots_per_trial": 2})
    assert found["metadata"]["name"] == "a-search"
    assert found["spec"]["parallelism"] == 4
    assert "completions" not in found["spec"], "a queue of work is done when one pod has succeeded"
    container = worker(found)
    assert container["command"] == ["python", "-m", "lightlib", "experiment", "work", "/shared/experiments/a"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/dev/shm", "/shared"]
    assert [one["name"] for one in found["spec"]["template"]["spec"]["volumes"]] == ["shm", "all"]
    assert worker(job(resources={"slots_per_trial": 0}))["resources"]["requests"] == {"cpu": 1}


def test_the_storage_is_a_secret_and_not_in_the_manifest(monkeypatch):
    monkeypatch.setenv("LIGHTLIB_STORAGE", "postgresql://me:secret@host/db")
    found = job()
    variable, inside = worker(found)["env"]
    assert inside == {"name": INSIDE, "value": "1"}, "its trials start no container"
    assert variable["valueFrom"]["secretKeyRef"]["name"] == "lightlib-storage"
    assert "secret@" not in str(found)


def test_keys_of_the_file_reach_the_pods():
    spec = FILE["environment"]["pod_spec"]["spec"]
    given = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            **spec,
            "priorityClassName": "low",
            "containers": [
                {"name": "determined-container", "volumeMounts": MOUNTS, "env": [{"name": "A", "value": "b"}]},
                {"name": "another", "image": "sidecar"},
            ],
        },
    }
    environment = {"pod_spec": given, "force_pull_image": True, "drop_capabilities": ["MKNOD"]}
    environment["add_capabilities"] = ["IPC_LOCK"]
    found = job(resources={"resource_pool": "queue", "shm_size": "1G"}, environment=environment)
    assert found["spec"]["suspend"] is True, "Kueue starts it"
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "queue"
    pod = found["spec"]["template"]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["spec"]["priorityClassName"] == "low"
    container, other = pod["spec"]["containers"]
    assert (container["name"], other["name"]) == ("worker", "another")
    assert [one["name"] for one in container["env"]] == ["LIGHTLIB_STORAGE", INSIDE, "A"]
    assert container["imagePullPolicy"] == "Always"
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"], "drop": ["MKNOD"]}}
    assert pod["spec"]["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1073741824"}}


def test_ports_of_the_file_are_those_of_the_container():
    found = worker(job(environment={"proxy_ports": [9000, 8080, {"proxy_port": 9000, "proxy_tcp": True}]}))["ports"]
    assert [(one["containerPort"], one["name"]) for one in found] == [(8080, "proxy-8080"), (9000, "proxy-9000")]
    assert "ports" not in worker(job())


def test_an_account_of_a_registry_is_a_secret_of_the_cluster():
    account = {"username": "me", "password": "secret-word", "serveraddress": "registry.example.org"}
    with pytest.warns(match=r"'environment\.registry_auth' does not reach the pods.*kubectl create secret"):
        assert "secret-word" not in str(job(environment={"registry_auth": account}))
    spec = {"spec": {**FILE["environment"]["pod_spec"]["spec"], "imagePullSecrets": [{"name": "mine"}]}}
    found = job(environment={"registry_auth": account, "pod_spec": spec})
    assert found["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "mine"}]


@pytest.mark.parametrize("slots", [0, 2])
def test_the_manifest_fits_the_published_schemas(slots):
    schemas = pytest.importorskip("kubernetes_validate")
    found = job(
        resources={"slots_per_trial": slots, "resource_pool": "queue"},
        environment={"force_pull_image": True, "proxy_ports": [80]},
    )
    for version in ("1.30", "1.31", "1.34"):
        schemas.validate(found, version, strict=True)
    found["spec"]["paralelism"] = 1
    with pytest.raises(schemas.ValidationError, match="paralelism"):
        schemas.validate(found, "1.31", strict=True)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"image": {"cpu": "a"}}, "has no image for cuda, and pods run one"),
        ({"pod_spec": {}}, r"mounts /dev/shm, and the experiment is in '/shared/experiments/a'"),
    ],
)
def test_an_experiment_without_an_image_or_a_volume_is_refused(environment, message):
    with pytest.raises(ConfigError, match=message):
        job(environment=environment)


def config_of(tmp_path):
    mounts = [{"name": "all", "mountPath": str(tmp_path)}]
    pod = {"spec": {"volumes": VOLUMES, "containers": [{"name": "worker", "volumeMounts": mounts}]}}
    return read({**FILE, "environment": {"image": "a", "pod_spec": pod}})


def test_without_kubectl_the_manifest_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LightlibError, match="no command `kubectl` on this machine"):
        kubernetes.submit(config_of(tmp_path), ExperimentFolder(tmp_path), 2)
    assert "kind: Job" in text_of(tmp_path / "kubernetes.yaml")


@pytest.mark.processes
def test_kubectl_gets_the_manifest(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/arguments"\nexit $(cat "{tmp_path}/code")\n')
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    assert kubernetes.submit(config_of(tmp_path), ExperimentFolder(tmp_path), 2) == "a-search"
    assert (tmp_path / "arguments").read_text() == f"apply -f {tmp_path}/kubernetes.yaml\n"
    (tmp_path / "code").write_text("1")
    with pytest.raises(LightlibError, match="The cluster refuses the Job: exit code 1"):
        kubernetes.submit(config_of(tmp_path), ExperimentFolder(tmp_path), 2)
