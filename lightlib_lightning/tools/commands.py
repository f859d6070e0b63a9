"""Lightning's commands as functions, and its hosted registry of models."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lightlib import report
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.parsing import migrate_checkpoint, pl_load

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

__all__ = ["download_model_from_registry", "find_model_local_ckpt_path", "run_fabric", "upgrade_checkpoints"]

_OPTIONS = ("accelerator", "strategy", "devices", "num_nodes", "node_rank", "main_address", "main_port", "precision")


def run_fabric(args: argparse.Namespace, script_args: list[str] | None = None) -> None:
    """Run a script that has a Fabric, as ``lightlib fabric run``, and wait for its end.

    Args:
        args: `script`, and the options of the command that are not None.
        script_args: The arguments of the script.

    Raises:
        subprocess.CalledProcessError: The script failed.
    """
    command = [sys.executable, "-m", "lightlib", "fabric", "run"]
    for name in _OPTIONS:
        value = getattr(args, name, None)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    subprocess.run([*command, str(args.script), *(script_args or [])], check=True)  # noqa: S603  the user's script


def upgrade_checkpoints() -> None:
    """Write checkpoints of old versions of Lightning again in the layout of 2.6, as the command line asks.

    Each file is copied to one that ends in ``.bak`` first; an earlier copy is left as it is.

    Raises:
        MisconfigurationException: There is no such file.
    """
    parser = argparse.ArgumentParser(description="Upgrade checkpoints of old versions of Lightning in place.")
    parser.add_argument("path", type=Path, help="a checkpoint, or a folder with checkpoints")
    parser.add_argument("-e", "--extension", default=".ckpt", help="of the files in a folder; default: .ckpt")
    parser.add_argument("--map-to-cpu", action="store_true", help="accepted; tensors are always read on the CPU")
    arguments = parser.parse_args()
    path, extension = arguments.path, f".{arguments.extension.removeprefix('.')}"
    files = [path] if path.is_file() else sorted(path.rglob(f"*{extension}"))
    if not files:
        raise MisconfigurationException(
            f"There is no checkpoint {str(path)!r}, and no file that ends in {extension!r} in it.",
            expected="a checkpoint, or a folder with checkpoints.",
            fix="correct the path, or pass --extension.",
        )
    for file in files:
        backup = file.with_suffix(".bak")
        if not backup.exists():
            shutil.copyfile(file, backup)
        content, _ = migrate_checkpoint(pl_load(file, "cpu", weights_only=False))
        torch.save(content, file)
    report.info(f"Upgraded {len(files)} checkpoints; the old ones end in .bak.")


def _model(ckpt_path: Any, default: str | None) -> str:
    """Return the name of a model, with its version, of ``registry:NAME:version:VERSION``; both may be left out."""
    parts = str(ckpt_path or "").split(":")
    if parts[0].lower() != "registry":
        raise _wrong(ckpt_path)
    rest = parts[1:]
    version = rest[-1] if len(rest) >= 2 and rest[-2].lower() == "version" else ""
    if version:
        rest = rest[:-2]
    name = rest[0] if rest and rest[0] else default
    if not name or len(rest) > 1:
        raise _wrong(ckpt_path)
    return f"{name}:{version}" if version else name


def _wrong(ckpt_path: Any) -> MisconfigurationException:
    return MisconfigurationException(
        f"{ckpt_path!r} names no model of the registry.",
        expected="'registry:NAME' or 'registry:NAME:version:VERSION'.",
        fix="correct the name, or pass the path of a file.",
    )


def _folder(model: str, root: Any) -> str:
    return os.path.join(root, model.replace("/", "_").replace(":", "_"))


def find_model_local_ckpt_path(ckpt_path: Any, default_model_registry: str | None, default_root_dir: Any) -> str:
    """Return the path of the checkpoint of a model that was downloaded.

    Args:
        ckpt_path: ``"registry:NAME"`` or ``"registry:NAME:version:VERSION"``.
        default_model_registry: The name, if `ckpt_path` has none.
        default_root_dir: The folder in which models are.

    Raises:
        MisconfigurationException: It has another form.
        RuntimeError: There is no checkpoint.
    """
    folder = _folder(_model(ckpt_path, default_model_registry), default_root_dir)
    files = [name for name in os.listdir(folder) if name.endswith(".ckpt")]
    if not files:
        raise RuntimeError(
            f"There is no checkpoint in {folder!r}.\n  Expected: a file that ends in .ckpt.\n"
            "  Fix: download the model with download_model_from_registry(…)."
        )
    return os.path.join(folder, files[0])


def download_model_from_registry(ckpt_path: Any, trainer: Trainer) -> None:
    """Download a model of Lightning's hosted registry by the package litmodels, on the first process of a machine.

    Args:
        ckpt_path: ``"registry:NAME"`` or ``"registry:NAME:version:VERSION"``.
        trainer: Its `default_root_dir` has the models.

    Raises:
        MisconfigurationException: litmodels is not installed, or `ckpt_path` has another form.
        RuntimeError: Nothing was downloaded.
    """
    model = _model(ckpt_path, None)
    if trainer.local_rank == 0:
        try:
            from litmodels import download_model  # optional: litmodels
        except ImportError as error:
            raise MisconfigurationException(
                f"{ckpt_path!r} is a model of Lightning's hosted registry, and litmodels is not installed.",
                expected="the package litmodels, which downloads it.",
                fix="pip install litmodels, or pass the path of a file.",
            ) from error
        if not download_model(model, download_dir=_folder(model, trainer.default_root_dir)):
            raise RuntimeError(
                f"litmodels downloaded no file of {model!r}.\n  Expected: a model with a checkpoint.\n"
                "  Fix: look for the model and its version in the registry."
            )
    trainer.strategy.barrier("download_model_from_registry")
