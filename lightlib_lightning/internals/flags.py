"""Lightning's private flags: which packages and versions are installed, and how Python runs."""

from __future__ import annotations

import operator
import platform
import re
import sys
from importlib.util import find_spec
from typing import Any

import torch

# By flag: the requirement that it asks for, and the module that shows it where the distribution has another name.
_REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "_BITSANDBYTES_AVAILABLE": ("bitsandbytes",),
    "_CLICK_AVAILABLE": ("click",),
    "_COMET_AVAILABLE": ("comet-ml>=3.44.4", "comet_ml"),
    "_DEEPSPEED_AVAILABLE": ("deepspeed",),
    "_DEEPSPEED_GREATER_EQUAL_0_16": ("deepspeed>=0.16.0",),
    "_HYDRA_AVAILABLE": ("hydra-core",),
    "_JSONARGPARSE_SIGNATURES_AVAILABLE": ("jsonargparse[signatures]>=4.27.7",),
    "_LIGHTNING_SDK_AVAILABLE": ("lightning_sdk",),
    "_LITLOGGER_AVAILABLE": ("litlogger>=0.1.0",),
    "_MATPLOTLIB_AVAILABLE": ("matplotlib",),
    "_MLFLOW_AVAILABLE": ("mlflow>=1.0.0", "mlflow"),
    "_MLFLOW_SYNCHRONOUS_AVAILABLE": ("mlflow>=2.8.0", "mlflow"),
    "_MPI4PY_AVAILABLE": ("mpi4py",),
    "_NUMPY_AVAILABLE": ("numpy",),
    "_ONNXSCRIPT_AVAILABLE": ("onnxscript",),
    "_ONNX_AVAILABLE": ("onnx",),
    "_PSUTIL_AVAILABLE": ("psutil",),
    "_REQUESTS_AVAILABLE": ("requests",),
    "_RICH_AVAILABLE": ("rich>=10.2.2",),
    "_SKLEARN_AVAILABLE": ("scikit-learn",),
    "_TENSORBOARDX_AVAILABLE": ("tensorboardX",),
    "_TENSORBOARD_AVAILABLE": ("tensorboard",),
    "_TORCHMETRICS_GREATER_EQUAL_0_11": ("torchmetrics>=0.11.0",),
    "_TORCHMETRICS_GREATER_EQUAL_0_8_0": ("torchmetrics>=0.8.0",),
    "_TORCHMETRICS_GREATER_EQUAL_0_9_1": ("torchmetrics>=0.9.1",),
    "_TORCHMETRICS_GREATER_EQUAL_1_0_0": ("torchmetrics>=1.0.0",),
    "_TORCHVISION_AVAILABLE": ("torchvision",),
    "_TORCH_EQUAL_2_8": ("torch>=2.8.0,<2.9.0",),
    "_TORCH_EQUAL_2_9": ("torch>=2.9.0,<2.10.0",),
    "_TORCH_TRT_AVAILABLE": ("torch_tensorrt",),
    "_TRANSFORMER_ENGINE_AVAILABLE": ("transformer_engine>=0.11.0",),
    "_WANDB_AVAILABLE": ("wandb>=0.12.10",),
    "_XLA_AVAILABLE": ("torch_xla>=1.13", "torch_xla"),
    "_XLA_GREATER_EQUAL_2_1": ("torch_xla>=2.1",),
    "_XLA_GREATER_EQUAL_2_5": ("torch_xla>=2.5",),
}
# All other versions of torch, such as _TORCH_GREATER_EQUAL_2_4_1.
_OF_TORCH = re.compile(r"_TORCH_(EQUAL|GREATER_EQUAL|LESS_EQUAL)_(\d+_\d+(?:_\d+)?)")
_COMPARISONS = {"EQUAL": operator.eq, "GREATER_EQUAL": operator.ge, "LESS_EQUAL": operator.le}
_PLAIN: dict[str, Any] = {
    "_IS_INTERACTIVE": lambda: hasattr(sys, "ps1") or bool(sys.flags.interactive),
    "_IS_WINDOWS": lambda: platform.system() == "Windows",
    "_KINETO_AVAILABLE": torch.profiler.kineto_available,
    "_OMEGACONF_AVAILABLE": lambda: find_spec("omegaconf") is not None,
    "_PYTHON_GREATER_EQUAL_3_10_0": lambda: sys.version_info >= (3, 10),
    "_PYTHON_GREATER_EQUAL_3_11_0": lambda: sys.version_info >= (3, 11),
}


def __getattr__(name: str) -> Any:
    """Return the value of a flag; a package is looked for when its flag is imported."""
    from lightning_utilities.core.imports import RequirementCache, compare_version  # optional: lightning-utilities

    if name in _REQUIREMENTS:
        return RequirementCache(*_REQUIREMENTS[name])
    if compared := _OF_TORCH.fullmatch(name):
        return compare_version("torch", _COMPARISONS[compared[1]], compared[2].replace("_", "."))
    if name in _PLAIN:
        return _PLAIN[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
