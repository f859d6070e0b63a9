"""Optional packages: whether one is installed, its import, and the error for a missing one."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import sys
from typing import Any

from lightlib.errors import MisconfigurationException

__all__ = ["REQUIREMENTS", "STORES", "install", "is_installed", "load", "missing", "name_of"]

# What pip installs for a module: the ranges of pyproject.toml. A module that is not here has the name of its package.
REQUIREMENTS = {
    "aim": "aim>=3.29",
    "bitsandbytes": "bitsandbytes>=0.46",
    "clearml": "clearml>=1.16",
    "cmaes": "cmaes>=0.12",
    "comet_ml": "comet-ml>=3.40",
    "dadaptation": "dadaptation",
    "deepspeed": "deepspeed>=0.16",
    "dvclive": "dvclive>=3.40",
    "h5py": "h5py>=3.8",
    "liger_kernel": "liger-kernel>=0.5",
    "lion_pytorch": "lion-pytorch",
    "matplotlib": "matplotlib>=3.7",
    "mlflow": "mlflow>=2.10",
    "omegaconf": "omegaconf>=2.1",
    "onnx": "onnx>=1.16",
    "onnxscript": "onnxscript>=0.2",
    "optuna": "optuna>=4.3",
    "optuna_dashboard": "optuna-dashboard>=0.17",
    "plotly": "plotly>=6",
    "psycopg": "psycopg[binary]>=3.2",
    "ray": "ray>=2.40",
    "s3fs": "s3fs>=2023.1",
    "safetensors": "safetensors>=0.4",
    "schedulefree": "schedulefree>=1.4",
    "scipy": "scipy>=1.10",
    "sklearn": "scikit-learn>=1.3",
    "sophia": "Sophia-Optimizer!=0.2.5",  # 0.2.5 cannot be imported: it misses a part of itself
    "Sophia": "Sophia-Optimizer!=0.2.5",  # an older name of the module
    "tensorboard": "tensorboard>=2.14",
    "torch_npu": "torch-npu",
    "torch_tensorrt": "torch-tensorrt",
    "torchao": "torchao>=0.15",
    "torchvision": "torchvision>=0.25",
    "trackio": "trackio>=0.30",
    "transformer_engine": "transformer-engine[pytorch]>=1.0",
    "wandb": "wandb>=0.16",
}
STORES = "pip install s3fs for s3://, gcsfs for gs://, adlfs for abfs://"


def load(module: str, user: str, *, otherwise: str = "") -> Any:
    """Import and return an optional module, such as ``"matplotlib.pyplot"``.

    Args:
        module: Its full name.
        user: The feature that needs it, as the subject of the error.
        otherwise: What to do without the package; see `missing`.

    Raises:
        MisconfigurationException: The module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(module, user, otherwise=otherwise, error=error) from error


def is_installed(module: str) -> bool:
    """Whether the package of `module` is there; nothing is imported."""
    top = module.partition(".")[0]
    return sys.modules.get(top) is not None or importlib.util.find_spec(top) is not None


def missing(
    module: str, user: str, *, otherwise: str = "", error: ImportError | None = None
) -> MisconfigurationException:
    """Return the error for an optional package that a feature needs and that cannot be imported.

    Args:
        module: The module that is needed.
        user: The feature that needs it, as the subject of the error.
        otherwise: What to do without the package, such as ``"use a local path"``. Default: nothing.
        error: Of the import. Default: the package is not installed.

    Example:
        >>> print(missing("comet_ml", "CometLogger", otherwise="use another logger"))
        CometLogger needs the package comet-ml, which is not installed.
          Expected: comet-ml>=3.40 in this environment.
          Fix: pip install 'comet-ml>=3.40', or use another logger.
    """
    top = module.partition(".")[0]
    problem = "is not installed." if error is None or not is_installed(top) else f"cannot be imported: {error}"
    return MisconfigurationException(
        f"{user} needs the package {name_of(top)}, which {problem}",
        expected=f"{REQUIREMENTS.get(top, name_of(top))} in this environment.",
        fix=install(top) + (f", or {otherwise}." if otherwise else ""),
    )


def install(*modules: str) -> str:
    """Return the command that installs the packages of some modules.

    Example:
        >>> install("scipy", "torch")
        "pip install 'scipy>=1.10' torch"
    """
    return shlex.join(["pip", "install", *(REQUIREMENTS.get(module, name_of(module)) for module in modules)])


def name_of(module: str) -> str:
    """Return pip's name for the package of a top-level module."""
    return re.split(r"[\[<>=!]", REQUIREMENTS.get(module, module.replace("_", "-")))[0]
