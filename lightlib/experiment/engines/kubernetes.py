"""Kubernetes: the workers of an experiment as the pods of a Job, which is a queue of work."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from lightlib import report, safe_files
from lightlib.config.yaml.file import dump
from lightlib.errors import LightlibError
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.job import STORAGE
from lightlib.experiment.machine.containers import INSIDE
from lightlib.experiment.work.folder import ExperimentFolder

MANIFEST = "kubernetes.yaml"  # in the folder of the experiment
SECRET = "lightlib-storage"  # noqa: S105  a name: it may have the variable LIGHTLIB_STORAGE
CONTAINER = "worker"
_SAME = ("determined-container",)  # the name that Determined's pod_spec has for it
_FINAL = [1, 2, 3]  # exit codes of a worker after which another one would end in the same way
_GRACE = 120  # seconds for the checkpoints of trials


def manifest(config: ExperimentConfig, folder: ExperimentFolder, workers: int) -> dict[str, Any]:
    """Return the Job, with `environment.pod_spec` merged in.

    Its pods are a work queue: it is done when one has succeeded and all have ended.
    https://kubernetes.io/docs/concepts/workloads/controllers/job/

    Args:
        config: The experiment.
        folder: Of the experiment, at the same path in all pods.
        workers: How many pods.

    Raises:
        ConfigError: There is no image, or no volume of the pods has the folder.
    """
    resources, accelerator = config.resources, "cuda" if config.resources.slots_per_trial else "cpu"
    places = config.places.below("environment")
    image = config.environment.image.get(accelerator)
    if image is None:
        places.below("image").refuse(
            f"has no image for {accelerator}, and pods run one.",
            "an image with Python, torch and lightlib.",
            "environment.image: registry/project/training:1",
        )
    name = re.sub(r"[^a-z0-9]+", "-", config.name.lower()).strip("-")[:50] or "experiment"
    labels = {"app.kubernetes.io/managed-by": "lightlib", "app.kubernetes.io/instance": name}
    pod = _merged({"metadata": {"labels": labels}, "spec": _pod(config, folder, image)}, config.environment.pod_spec)
    mounts = [
        PurePosixPath(volume_mount["mountPath"])
        for volume_mount in pod["spec"]["containers"][0].get("volumeMounts", ())
    ]
    if not any(PurePosixPath(folder.path).is_relative_to(mount) for mount in mounts):
        places.below("pod_spec").refuse(
            f"mounts {', '.join(map(str, mounts))}, and the experiment is in {str(folder.path)!r}.",
            "a volume that all pods share, at the same path.",
            f"pod_spec: {{spec: {{volumes: [{{name: all, persistentVolumeClaim: {{claimName: NAME}}}}], containers: "
            f"[{{name: {CONTAINER}, volumeMounts: [{{name: all, mountPath: {folder.path.parent}}}]}}]}}}}",
        )
    if config.environment.registry_auth is not None and "imagePullSecrets" not in pod["spec"]:
        report.warn(
            f"{places.below('registry_auth').text} does not reach the pods: a manifest has no passwords. Expected: the "
            "account in a secret of the cluster. Fix: `kubectl create secret docker-registry NAME …`, and "
            "pod_spec: {spec: {imagePullSecrets: [{name: NAME}]}}"
        )
    queue = {"kueue.x-k8s.io/queue-name": resources.resource_pool} if resources.resource_pool else {}
    rules = [
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": _FINAL}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, **queue}},
        "spec": {
            **({"suspend": True} if queue else {}),
            "parallelism": workers,
            "backoffLimit": 10 * workers,
            "podFailurePolicy": {"rules": rules},
            "template": pod,
        },
    }


def _pod(config: ExperimentConfig, folder: ExperimentFolder, image: str) -> dict[str, Any]:
    resources, environment = config.resources, config.environment
    slots = resources.slots_per_trial
    secret = {"secretKeyRef": {"name": SECRET, "key": STORAGE, "optional": True}}
    size = {"medium": "Memory", "sizeLimit": str(resources.shm_size)}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "command": ["python", "-m", "lightlib", "experiment", "work", str(folder.path)],
        "env": [{"name": STORAGE, "valueFrom": secret}, {"name": INSIDE, "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": slots} if slots else {}, "requests": {} if slots else {"cpu": 1}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108  the pod's own
    }
    ports = sorted({port.proxy_port for port in environment.proxy_ports})
    if ports:
        container["ports"] = [{"name": f"proxy-{port}", "containerPort": port, "protocol": "TCP"} for port in ports]
    if environment.force_pull_image:
        container["imagePullPolicy"] = "Always"
    capabilities = {"add": [*environment.add_capabilities], "drop": [*environment.drop_capabilities]}
    if any(capabilities.values()):
        container["securityContext"] = {"capabilities": {key: names for key, names in capabilities.items() if names}}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": size}],
    }


def _merged(base: Any, override: Any) -> Any:
    """Return `base` with `override` merged in: items of lists with the same name are one, and `override` wins."""
    if isinstance(base, Mapping) and isinstance(override, Mapping):
        both = {key: _merged(base[key], override[key]) for key in base if key in override}
        return {**base, **override, **both}
    if isinstance(base, list) and isinstance(override, (list, tuple)):
        items = {_name(item): item for item in base}
        for item in override:
            name = _name(item)
            items[name] = _merged(items[name], {**item, "name": name}) if name in items else item
        return list(items.values())
    return override


def _name(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return repr(item)
    name = item.get("name", repr(item))
    return CONTAINER if name in _SAME else name


def submit(config: ExperimentConfig, folder: ExperimentFolder, workers: int) -> str:
    """Apply the Job of an experiment that has begun; return its name.

    Raises:
        ConfigError: The experiment does not fit pods.
        LightlibError: There is no `kubectl` here, or the cluster refuses the Job; the manifest is written nevertheless.
    """
    job = manifest(config, folder, workers)
    path = folder.path / MANIFEST
    safe_files.replace(path, f"{dump(job)}".encode())
    words = ["kubectl", "apply", "-f", str(path)]
    if shutil.which("kubectl") is None:
        raise LightlibError(
            "--on kubernetes: there is no command `kubectl` on this machine.",
            expected="a machine that reaches the cluster.",
            fix=f"{shlex.join(words)} there",
        )
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  the user's kubectl
    if done.returncode:
        raise LightlibError(
            f"The cluster refuses the Job: {done.stderr.strip() or f'exit code {done.returncode}'}",
            expected="a Job that the cluster accepts.",
            fix=f"the sections resources and environment of the experiment file; the manifest is {path}.",
        )
    return str(job["metadata"]["name"])
