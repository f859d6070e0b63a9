"""Facts about this machine and its packages, for `lightlib doctor` and `lightlib env`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import math
import os
import platform
import re
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightlib import report
from lightlib.version import __version__

# By pip's names, of which the module's has underscores in place of dashes.
REQUIRED = ("torch", "torchmetrics", "fsspec", "jsonargparse", "packaging", "rich", "tensorboard")
OPTIONAL = (
    "numpy", "torchvision", "torchaudio", "torchdata", "comet-ml", "deepspeed", "matplotlib", "plotly", "mlflow",
    "omegaconf", "onnx", "onnxscript", "psutil", "s3fs", "safetensors", "shtab", "tqdm", "wandb",
)  # fmt: skip
_THAT_MATTER = re.compile(
    r"(LOCAL_|NODE_|GROUP_)?RANK|(LOCAL_|GROUP_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|"
    r"SLURM_(JOB_(ID|NAME|NUM_NODES)|STEP\w*|PROCID|LOCALID|NODEID|NNODES|N?TASKS\w*|CPUS\w*|GPUS?\w*|PTY_PORT)|"
    r"OMPI_COMM_WORLD_\w+|PMI_\w+|PALS_\w+|MV2_COMM_WORLD_\w+|MPI_LOCAL\w+|JSM_NAMESPACE_\w+|LSB_JOBID|"
    r"(CUDA|NVIDIA|HIP|ROCR)_\w+|(NCCL|GLOO|UCX|TORCH|PYTORCH)_\w+|(OMP|MKL|KMP|OPENBLAS)_\w+|"
    r"(PL|LIGHTLIB)_\w+|POSSIBLE_USER_WARNINGS|PYTHONHASHSEED"
)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")  # of a URL: user:password@
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Package:
    """An installed or missing package, and the first line of the error that its import raised."""

    name: str
    needed: bool
    version: str | None
    error: str = ""

    @property
    def works(self) -> bool:
        """Whether it can be imported."""
        return self.version is not None and not self.error

    def describe(self) -> str:
        """Return its version and the error of its import."""
        error = f", but cannot be imported: {self.error}" if self.error else ""
        return "not installed" if self.version is None else self.version + error


def packages() -> list[Package]:
    """Import every required package and every installed optional one, and return the results."""
    return [_package(name, name in REQUIRED) for name in (*REQUIRED, *OPTIONAL)]


def _package(name: str, needed: bool) -> Package:
    module = name.replace("-", "_")
    if module not in sys.modules and importlib.util.find_spec(module) is None:
        return Package(name, needed, None)
    error, imported = "", None
    with quiet():
        try:
            imported = importlib.import_module(module)
        except Exception as raised:  # noqa: BLE001  a broken package may raise anything
            error = first_line(raised)
    own_version = str(getattr(imported, "__version__", "version unknown"))
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = own_version
    if own_version.startswith(f"{version}+"):  # with the build, such as 2.13.0+cu130
        version = own_version
    return Package(name, needed, version, error)


def groups(found: Sequence[Package]) -> dict[str, dict[str, Any]]:
    """Return all facts, by group. Those that need torch are missing where it cannot be imported."""
    with_torch = any(package.name == "torch" and package.works for package in found)
    cores, allowed = processors()
    return {
        "versions": _versions(found),
        "devices": {"cores": cores, "cores allowed": allowed, **_memory(), **(_collected() if with_torch else {})},
        "network": _network() if with_torch else {},
        "environment": environment(),
    }


def _versions(installed: Sequence[Package]) -> dict[str, str]:
    descriptions = {
        package.name: package.describe() for package in installed if package.needed or package.version is not None
    }
    return {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        "lightlib": __version__,
        **descriptions,
        "not installed": ", ".join(package.name for package in installed if package.name not in descriptions) or "none",
    }


def _collected() -> dict[str, str]:
    """Return the models, driver and libraries that torch's own `collect_env` finds.

    Not by its `get_env_info`, which takes seconds to ask pip and compilers as well.
    """
    import torch  # optional: torch, only when it can be imported
    from torch.utils import collect_env  # optional: torch, only when it can be imported

    ask: Any = collect_env  # torch's has no types
    with quiet():
        cpu_info, gpus, driver, cudnn = (
            read(ask.run)
            for read in (ask.get_cpu_info, ask.get_gpu_info, ask.get_nvidia_driver_version, ask.get_cudnn_version)
        )
    cpu = re.search(r"^Model name:\s*(.+)$", cpu_info or "", re.MULTILINE)
    facts = {
        "cpu": cpu.group(1) if cpu else (cpu_info or "").partition("\n")[0],
        "gpus": gpus,
        "gpu driver": driver,
        "cuda of torch": torch.version.cuda,
        "cudnn": cudnn,
        "hip of torch": torch.version.hip,
        "mps": "available" if torch.backends.mps.is_available() else "not available",
    }
    unknown = (None, "", "N/A", "None")
    return {name: "none" if value in unknown else "; ".join(value.splitlines()) for name, value in facts.items()}


def processors() -> tuple[int, float]:
    """Return the number of cores, and how many this process may use by its affinity and its control group."""
    cores = os.cpu_count() or 1
    allowed: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    limits: list[Sequence[str]] = [
        text.split() for text in _limits("cpu.max")
    ]  # "200000 100000": microseconds in each period
    limits += zip(_limits("cpu/cpu.cfs_quota_us"), _limits("cpu/cpu.cfs_period_us"), strict=False)
    for quota, period in limits:
        if quota.isdigit():  # else max or -1
            allowed = min(allowed, int(quota) / int(period))
    return cores, int(allowed) if allowed == int(allowed) else round(allowed, 2)


def _memory() -> dict[str, str]:
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError):  # Windows has no sysconf
        facts["memory"] = size(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limits = [
        int(text) for text in (*_limits("memory.max"), *_limits("memory/memory.limit_in_bytes")) if text.isdigit()
    ]
    if limits and min(limits) < 2**60:  # cgroup v1 writes a huge number for none
        facts["memory allowed"] = size(min(limits))
    return facts


def _limits(name: str) -> Iterator[str]:
    """Read a limit of this process's control groups, from its own up to the root."""
    place = _GROUPS / _own_group()
    for folder in (place, *place.parents):
        if folder == _GROUPS or _GROUPS in folder.parents:
            with contextlib.suppress(OSError):
                yield (folder / name).read_text().strip()


def _own_group() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                return line.removeprefix("0::/")
    return ""


def _network() -> dict[str, str]:
    """Return the available backends of torch.distributed and the names of the network interfaces."""
    import torch  # optional: torch, only when it can be imported

    interfaces = "unknown"
    with contextlib.suppress(OSError, AttributeError):  # older Pythons on Windows
        interfaces = ", ".join(name for _, name in socket.if_nameindex())
    available = torch.distributed.is_available()
    backends = {name: available and torch.distributed.is_backend_available(name) for name in ("gloo", "nccl", "mpi")}
    return {**{name: "yes" if has else "no" for name, has in backends.items()}, "interfaces": interfaces or "none"}


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that affect a run, without secrets."""
    return {
        name: report.MASK if report.is_secret(name, value) else _CREDENTIALS.sub(report.MASK, value)
        for name, value in sorted(variables.items())
        if _THAT_MATTER.fullmatch(name)
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard output and warnings of other packages."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def first_line(error: BaseException) -> str:
    """Return an error as one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def size(number: float) -> str:
    """Return a number of bytes in readable units."""
    mebibytes = number / 2**20
    return f"{math.floor(mebibytes)} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"
