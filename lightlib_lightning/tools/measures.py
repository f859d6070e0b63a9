"""Lightning's measurements: the use of processors, and layers of a summary."""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightlib.strategies.strategy import Strategy
from lightlib_lightning.tools.small_functions import sized_len

__all__ = [
    "LEFTOVER_PARAMS_NAME",
    "NOT_APPLICABLE",
    "PARAMETER_NUM_UNITS",
    "UNKNOWN_SIZE",
    "LayerSummary",
    "get_cpu_stats",
    "get_device_stats",
    "get_formatted_model_size",
    "get_human_readable_count",
    "get_nvidia_gpu_stats",
    "get_torchvision_model",
    "has_len_all_ranks",
    "is_shared_filesystem",
    "parse_batch_shape",
]

PARAMETER_NUM_UNITS = [" ", "K", "M", "B", "T"]
UNKNOWN_SIZE = "?"
LEFTOVER_PARAMS_NAME = "other params"
NOT_APPLICABLE = "n/a"
_OF_A_GPU = {
    "utilization.gpu": "%",
    "memory.used": "MB",
    "memory.free": "MB",
    "utilization.memory": "%",
    "fan.speed": "%",
    "temperature.gpu": "°C",
    "temperature.memory": "°C",
}


def get_cpu_stats() -> dict[str, float]:
    """Return the use of memory, processor and swap in percent, by the names that Lightning gives them.

    Raises:
        ModuleNotFoundError: psutil is not installed.
    """
    return _use_of_processor("cpu")


def get_device_stats() -> dict[str, float]:
    """Return the numbers of :func:`get_cpu_stats` by the names that Lightning uses on a Mac.

    Raises:
        ModuleNotFoundError: psutil is not installed.
    """
    return _use_of_processor("M1")


def _use_of_processor(prefix: str) -> dict[str, float]:
    try:
        import psutil  # optional: psutil
    except ImportError as error:
        raise ModuleNotFoundError("these stats need the package psutil. Fix: pip install psutil") from error
    return {
        f"{prefix}_vm_percent": psutil.virtual_memory().percent,
        f"{prefix}_percent": psutil.cpu_percent(),
        f"{prefix}_swap_percent": psutil.swap_memory().percent,
    }


def get_nvidia_gpu_stats(device: torch.device | str | int) -> dict[str, float]:
    """Return the use, memory and temperature of a GPU, as nvidia-smi prints them; 0 for unknown values.

    Args:
        device: Of the present process's devices.

    Raises:
        FileNotFoundError: There is no nvidia-smi.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError("nvidia-smi: command not found")
    cuda_device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    uuid = torch.cuda.get_device_properties(cuda_device).uuid  # whatever CUDA_VISIBLE_DEVICES hides
    options = [f"--query-gpu={','.join(_OF_A_GPU)}", "--format=csv,nounits,noheader", f"--id=GPU-{uuid}"]
    done = subprocess.run([program, *options], encoding="utf-8", capture_output=True, check=True)  # noqa: S603 (fixed words)
    return _stats(done.stdout)


def _stats(printed: str) -> dict[str, float]:
    """Return the numbers of one line of nvidia-smi by name and unit."""
    values = next(csv.reader([printed.strip()], skipinitialspace=True))
    return {f"{name} ({unit})": _float(value) for (name, unit), value in zip(_OF_A_GPU.items(), values, strict=True)}


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def get_formatted_model_size(total_model_size: float) -> str:
    """Write a size in megabytes with three decimals."""
    return f"{total_model_size:,.3f}"


def get_human_readable_count(number: int) -> str:
    """Write a count with K, M, B or T.

    Example:
        >>> get_human_readable_count(123), get_human_readable_count(1234), get_human_readable_count(5 * 10**15)
        ('123  ', '1.2 K', '5,000 T')
    """
    if number < 0:
        raise ValueError(f"get_human_readable_count({number}): counts are not negative.")
    digits = math.floor(math.log10(number)) + 1 if number > 0 else 1
    unit = min(math.ceil(digits / 3), len(PARAMETER_NUM_UNITS)) - 1
    value = number / 1000**unit
    text = f"{int(value):,d}" if unit < 1 or value >= 100 else f"{value:,.1f}"
    return f"{text} {PARAMETER_NUM_UNITS[unit]}"


def parse_batch_shape(batch: Any) -> str | list[Any]:
    """Return the shape of a tensor, those of nested lists and tuples, or ``"?"``."""
    if hasattr(batch, "shape"):
        return list(batch.shape)
    if isinstance(batch, (list, tuple)):
        return [parse_batch_shape(element) for element in batch]
    return UNKNOWN_SIZE


class LayerSummary:
    """The kind, parameters and shapes of one layer; the shapes are those of its first forward pass from now on.

    Args:
        module: The layer.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> summary = LayerSummary(layer)
        >>> _ = layer(torch.zeros(5, 3))
        >>> summary.layer_type, summary.num_parameters, summary.in_size, summary.out_size
        ('Linear', 8, [5, 3], [5, 2])
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._sizes: tuple[Any, Any] = (UNKNOWN_SIZE, UNKNOWN_SIZE)
        scripted = isinstance(module, torch.jit.ScriptModule)
        self._handle = None if scripted else module.register_forward_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs = (*args, *kwargs.values())
        self._sizes = parse_batch_shape(inputs[0] if len(inputs) == 1 else inputs), parse_batch_shape(output)
        self.detach_hook()

    def detach_hook(self) -> None:
        """Look at no forward pass any more."""
        if self._handle is not None:
            self._handle.remove()

    @property
    def in_size(self) -> str | list[Any]:
        """The shape of the input."""
        return self._sizes[0]  # type: ignore[no-any-return]

    @property
    def out_size(self) -> str | list[Any]:
        """The shape of the output."""
        return self._sizes[1]  # type: ignore[no-any-return]

    @property
    def layer_type(self) -> str:
        """The name of the class."""
        return type(self._module).__name__

    @property
    def num_parameters(self) -> int:
        """The numbers in its parameters; 0 for a parameter that has no shape yet."""
        lazy = nn.parameter.UninitializedParameter
        return sum(0 if isinstance(parameter, lazy) else parameter.numel() for parameter in self._module.parameters())

    @property
    def training(self) -> bool:
        """Whether it is in training mode."""
        return self._module.training


def get_torchvision_model(model_name: str, **kwargs: Any) -> nn.Module:
    """Return a model of torchvision by its name.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    try:
        from torchvision import models  # optional: torchvision
    except ImportError as error:
        raise ModuleNotFoundError("torchvision is not installed. Fix: pip install torchvision") from error
    model: nn.Module = models.get_model(model_name, **kwargs)
    return model


def has_len_all_ranks(
    dataloader: object, strategy: Strategy, allow_zero_length_dataloader_with_multiple_devices: bool = False
) -> bool:
    """Whether the loaders of all processes have a length.

    Args:
        dataloader: Of this process.
        strategy: Of the run; all its processes must call this.
        allow_zero_length_dataloader_with_multiple_devices: Do not raise if some loaders are empty.

    Raises:
        RuntimeError: Only some of them are empty.
    """
    lengths = strategy.collectives.all_gather_object(sized_len(dataloader))
    if 0 in lengths and any(lengths) and not allow_zero_length_dataloader_with_multiple_devices:
        raise RuntimeError(
            f"the loader of rank {lengths.index(0)} is empty. Expected: batches on every rank. Fix: reduce the number "
            "of devices, or set allow_zero_length_dataloader_with_multiple_devices = True."
        )
    return None not in lengths


def is_shared_filesystem(strategy: Strategy, path: str | Path | None = None, timeout: int = 3) -> bool:
    """Whether all processes see the same files at a path.

    Args:
        strategy: Of the run; all its processes must call this.
        path: A folder or file that exists, or a URL, which counts as shared. Default: the current folder.
        timeout: How many seconds a process waits for the file that rank 0 writes.

    Raises:
        FileNotFoundError: The path does not exist on every process.
    """
    if path is not None and "://" in str(path):
        return True
    here = Path.cwd() if path is None else Path(path).resolve()
    together = strategy.collectives.all_gather_object
    places = together((str(here), here.exists()))
    if len(places) == 1:
        return True
    if len({place for place, _ in places}) > 1:
        return False
    if not all(exists for _, exists in places):
        raise FileNotFoundError(f"{here} does not exist on every process. Fix: make it first.")
    check = (here.parent if here.is_file() else here) / ".lightning_shared_fs_check"
    if strategy.is_global_zero:
        check.touch()
    together(None)
    end = time.monotonic() + timeout
    while not (is_there := check.exists()) and time.monotonic() < end:
        time.sleep(0.05)
    everywhere = all(together(is_there))
    if strategy.is_global_zero:
        check.unlink(missing_ok=True)
    return everywhere
