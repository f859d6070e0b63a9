"""Checks of packages, folders, launcher and devices, each with its fix."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from lightlib.command.doctor import facts
from lightlib.command.doctor.facts import Package, first_line
from lightlib.errors import LightlibError

TESTED_TORCH = "2.13"
_LITTLE_SPACE = 2**30
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  looked at, not written to
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": ("1", "waits for each kernel"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "asks the driver for each tensor's memory"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "compares each collective among the processes"),
}


@dataclass(frozen=True)
class Check:
    """The result of one check; the fix is empty if none is needed."""

    name: str
    status: str  # "ok", "warning" or "failed"
    found: str
    fix: str = ""


def examine(packages: Sequence[Package]) -> Iterator[Check]:
    """Run all checks, yielding each result as it is made. Without torch, the checks that need it are left out."""
    yield from _packages(packages)
    yield from _folder()
    yield from _shared_memory()
    yield from _variables()
    torch = next(package for package in packages if package.name == "torch")
    if torch.works:
        yield _torch(str(torch.version))
        yield from _processes()
        yield from _gpus()
        yield _rendezvous()
        if all(package.works for package in packages if package.needed):
            yield _one_step()


def _packages(packages: Sequence[Package]) -> list[Check]:
    problems = [*_broken(packages), *_other_versions()]
    return problems or [Check("packages", "ok", "all required packages are installed and can be imported")]


def _broken(packages: Sequence[Package]) -> Iterator[Check]:
    for package in packages:
        if package.needed and package.version is None:
            problem = f"{package.name} is not installed, and lightlib needs it"
            yield Check("packages", "failed", problem, f"pip install {package.name}")
        elif package.error:
            again = f"pip install --force-reinstall {package.name}"
            fix = again if package.needed else f"{again}, or pip uninstall {package.name} if you do not use it"
            status = "failed" if package.needed else "warning"
            yield Check("packages", status, f"{package.name} {package.describe()}", fix)


def _other_versions() -> Iterator[Check]:
    """Yield installed packages outside the range that the installed lightlib declares; a checkout declares none."""
    declared: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        declared = importlib.metadata.requires("lightlib") or []
    for requirement in map(Requirement, declared):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # reported already
            version = importlib.metadata.version(requirement.name)
            if not requirement.specifier.contains(version, prereleases=True):
                needed = f"{requirement.name}{requirement.specifier}"
                problem = f"{requirement.name} {version} is installed, and lightlib needs {needed}"
                yield Check("packages", "failed", problem, f"pip install '{needed}'")


def _folder() -> Iterator[Check]:
    try:
        with tempfile.TemporaryFile(dir=os.curdir) as file:
            file.write(b"lightlib")
    except OSError as error:
        problem = f"nothing can be written in the current folder, as runs do by default: {error.strerror or error}"
        fix = "change to a folder that you may write to, or pass Trainer(default_root_dir=...)"
        yield Check("folder", "failed", problem, fix)
    else:
        use = "where runs write checkpoints by default"
        yield _space("folder", os.curdir, use, "free some space, or pass Trainer(default_root_dir=...)")


def _shared_memory() -> Iterator[Check]:
    if os.path.isdir(_SHARED_MEMORY):
        yield _space(
            "shared memory",
            _SHARED_MEMORY,
            "through which a DataLoader's workers pass their batches; they die with a bus error when it is full",
            "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir with `medium: Memory` at /dev/shm; or "
            "DataLoader(num_workers=0)",
        )


def _space(name: str, folder: str, use: str, fix: str) -> Check:
    usage = shutil.disk_usage(folder)
    state = f"{facts.size(usage.free)} of {facts.size(usage.total)} are free in {os.path.abspath(folder)}, {use}"
    return Check(name, "warning", state, fix) if usage.free < _LITTLE_SPACE else Check(name, "ok", state)


def _variables() -> Iterator[Check]:
    for name, (value, effect) in _SLOW.items():
        if os.environ.get(name, "").upper() == value:
            problem = f"{name}={value} makes a run slow: it {effect}"
            yield Check("variables", "warning", problem, f"unset {name}, unless you are looking for an error")


def _torch(version: str) -> Check:
    release, tested = Version(version).release[:2], Version(TESTED_TORCH).release
    if release < tested:
        problem = f"torch {version} is older than the {TESTED_TORCH} that lightlib is tested with"
        return Check("torch", "warning", problem, f"if something fails: pip install 'torch~={TESTED_TORCH}.0'")
    compared = "newer than the" if release > tested else "the"
    return Check("torch", "ok", f"torch {version} is {compared} {TESTED_TORCH} that lightlib is tested with")


def _processes() -> Iterator[Check]:
    """Check the launcher, and whether its processes have too many threads."""
    import torch  # optional: torch, only when it can be imported

    from lightlib.launch.environment.detect import detect  # optional: torch, only when it can be imported

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            environment = detect(None)
        except LightlibError as error:
            problem, _, rest = str(error).partition("\n")
            yield Check("launcher", "failed", problem, rest.partition("Fix:")[2].strip())
            return
    for warning in caught:
        yield Check("launcher", "warning", str(warning.message))
    no_launcher = "none detected; lightlib starts the processes itself"
    yield Check("launcher", "ok", environment.describe() if environment.launched else no_launcher)

    threads, (_, allowed) = torch.get_num_threads(), facts.processors()
    local = environment.local_size if environment.launched else 1
    total = f"{threads} threads" if local == 1 else f"{local} processes with {threads} threads each"
    if threads * local > math.ceil(allowed):
        unset = "" if "OMP_NUM_THREADS" in os.environ else " (OMP_NUM_THREADS is not set)"
        state = f"torch would use {total} on {allowed:g} cores{unset}: they compete for the cores"
        yield Check("threads", "warning", state, f"export OMP_NUM_THREADS={max(1, int(allowed) // local)}")
    else:
        yield Check("threads", "ok", f"torch uses {total}, on {allowed:g} cores")


def _gpus() -> Iterator[Check]:
    import torch  # optional: torch, only when it can be imported
    from torch.utils import collect_env  # optional: torch, only when it can be imported

    from lightlib.accelerators.cuda import CUDAAccelerator  # optional: torch, only when it can be imported

    with facts.quiet():
        count = torch.cuda.device_count()
        driver = collect_env.get_nvidia_driver_version(collect_env.run)  # type: ignore[no-untyped-call]  # torch's
    devices = [torch.device("cuda", index) for index in range(count)]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    if not devices and (driver or torch.version.cuda or torch.version.hip):
        reason, fix = CUDAAccelerator.why_unavailable()
        condition = "" if driver else "nothing, if this machine has no GPU; else "
        yield Check("gpu", "warning", f"no GPU is found, runs use the CPU: {reason}", condition + fix)
    elif not devices:
        yield Check("gpu", "ok", "this machine has none, and torch is built for none: runs use the CPU")
    for device in devices:
        yield _computes(device)


def _computes(device: Any) -> Check:
    import torch  # optional: torch, only when it can be imported

    began = time.perf_counter()
    try:
        with facts.quiet():
            ones = torch.ones(64, 64, device=device)
            correct = (ones @ ones).sum().item() == 64**3
    except Exception as error:  # noqa: BLE001  a device may fail in any way, which is reported
        fix = "see whether another process holds it (nvidia-smi), and whether torch's build fits it and its driver"
        return Check("gpu", "failed", f"{device} cannot compute: {first_line(error)}", fix)
    if not correct:
        return Check("gpu", "failed", f"{device} computes wrongly: 64 x 64 ones", "test the device; do not train on it")
    return Check("gpu", "ok", f"{device} computes ({time.perf_counter() - began:.1f} s)")


def _rendezvous() -> Check:
    """Form a process group of this process alone, as the processes of a run on one machine do."""
    import torch  # optional: torch, only when it can be imported

    distributed: Any = torch.distributed
    limit = timedelta(seconds=10)
    if not distributed.is_available() or not distributed.is_gloo_available():
        problem = "this build of torch has no gloo: a run has one process"
        return Check("network", "warning", problem, "install torch from pytorch.org, if you want several")
    began = time.perf_counter()
    try:
        with facts.quiet():
            store = distributed.TCPStore("127.0.0.1", 0, 1, True, timeout=limit, wait_for_workers=False)
            distributed.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=limit)
            try:
                distributed.all_reduce(torch.ones(1))
            finally:
                distributed.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        fix = "check that this machine's own name has an address (getent hosts `hostname`), and that no firewall "
        fix += "blocks 127.0.0.1; export GLOO_SOCKET_IFNAME=<interface> names the one to use"
        if interface is not None:
            fix = f"unset GLOO_SOCKET_IFNAME, which is {interface!r}, or name an existing interface"
        return Check("network", "failed", f"several processes cannot form a group here: {first_line(error)}", fix)
    seconds = time.perf_counter() - began
    return Check(
        "network",
        "ok",
        f"processes of this machine can form a group, with a store and gloo on 127.0.0.1 ({seconds:.1f} s)",
    )


def _one_step() -> Check:
    """Fit a tiny module for one step on the CPU, in one process even under a launcher."""
    from lightlib.core.trainer import Trainer  # optional: torch, only when it can be imported
    from lightlib.launch.environment.environment import Environment  # optional: torch, only when it can be imported
    from lightlib.testing.module import BoringModule  # optional: torch, only when it can be imported

    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder, facts.quiet():
            trainer = Trainer(
                accelerator="cpu",
                devices=1,
                num_nodes=1,
                strategy="single_device",
                plugins=Environment(),
                fast_dev_run=True,
                default_root_dir=folder,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(BoringModule())
    except Exception as error:  # noqa: BLE001  any failure is reported
        fix = "follow the message, or report it with the output of `lightlib env`"
        return Check("self-test", "failed", f"a fit of one step on the CPU ended with {first_line(error)}", fix)
    if trainer.global_step != 1:
        return Check(
            "self-test", "failed", f"a fit of one step made {trainer.global_step}", "report it with `lightlib env`"
        )
    return Check("self-test", "ok", f"a fit of one step on the CPU ({time.perf_counter() - began:.1f} s)")
