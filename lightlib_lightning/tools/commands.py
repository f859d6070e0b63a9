"""Lightning's commands as functions."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from lightlib import report
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.parsing import migrate_checkpoint, pl_load

__all__ = ["run_fabric", "upgrade_checkpoints"]

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
