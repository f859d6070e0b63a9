"""Lightning's helpers for DeepSpeed: its checkpoints, and the summary of a sharded module."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from lightlib import report
from lightlib.callbacks.summary.model_summary import Summary, human
from lightlib.callbacks.summary.rows import OTHERS
from lightlib.errors import CheckpointError, MisconfigurationException
from lightlib_lightning.tools.measures import NOT_APPLICABLE, LayerSummary

__all__ = [
    "DeepSpeedLayerSummary",
    "DeepSpeedSummary",
    "convert_zero_checkpoint_to_fp32_state_dict",
    "deepspeed_param_size",
    "ds_checkpoint_dir",
]

# What DeepSpeed adds to a checkpoint of Lightning's.
_OF_DEEPSPEED = {"module", "optimizer", "lr_scheduler", "csr_tensor_module_names", "skipped_steps", "global_steps"}
_OF_DEEPSPEED |= {"dp_world_size", "mp_world_size"}
_OLD_PREFIX = "_forward_module."  # of parameters, in checkpoints of Lightning before 2.1


def ds_checkpoint_dir(checkpoint_dir: str | os.PathLike[str], tag: str | None = None) -> str:
    """Return the folder of one checkpoint that DeepSpeed has written.

    Args:
        checkpoint_dir: The folder of all of them.
        tag: The checkpoint's name, such as ``"global_step14"``. Default: the one that the file ``latest`` names.

    Raises:
        CheckpointError: There is no file ``latest``.
        FileNotFoundError: There is no such folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     os.mkdir(os.path.join(folder, "global_step2"))
        ...     os.path.basename(ds_checkpoint_dir(folder, "global_step2"))
        'global_step2'
    """
    latest = Path(checkpoint_dir) / "latest"
    if tag is None and not latest.is_file():
        raise CheckpointError(
            f"{os.fspath(checkpoint_dir)!r} has no file 'latest'.",
            expected="the folder of a checkpoint that DeepSpeed has written: 'latest' names the folder of a step.",
            fix="correct the path, or pass tag='global_step…', the name of a folder in it.",
        )
    name = latest.read_text(encoding="utf-8").strip() if tag is None else tag
    folder = os.path.join(checkpoint_dir, name)
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"The folder {folder!r} does not exist.\n  Expected: a folder that DeepSpeed has written for each step.\n"
            "  Fix: correct the path or the tag."
        )
    return folder


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike[str], output_file: str | os.PathLike[str], tag: str | None = None
) -> dict[str, Any]:
    """Write a folder that DeepSpeed has written (ZeRO 2 or 3) as one file with all weights in float32.

    The file can be passed to `load_from_checkpoint`. DeepSpeed reads the folder with pickle: convert only folders
    whose source you trust. lightlib's own checkpoints under DeepSpeed are files and need no conversion.

    Args:
        checkpoint_dir: The folder, such as ``"epoch=0-step=1.ckpt"``.
        output_file: The file to write.
        tag: As in :func:`ds_checkpoint_dir`.

    Returns:
        The content of the file.

    Raises:
        MisconfigurationException: DeepSpeed is not installed.
        CheckpointError, FileNotFoundError: As in :func:`ds_checkpoint_dir`.
    """
    if "deepspeed" not in sys.modules and find_spec("deepspeed") is None:
        raise MisconfigurationException(
            "convert_zero_checkpoint_to_fp32_state_dict needs the package deepspeed, which is not installed.",
            expected="deepspeed, which reads the shards that it has written.",
            fix="pip install deepspeed",
        )
    from deepspeed.utils import zero_to_fp32  # optional: deepspeed

    folder = ds_checkpoint_dir(checkpoint_dir, tag)
    weights = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    first = torch.load(zero_to_fp32.get_optim_files(folder)[0], map_location="cpu", weights_only=False)
    stage = first["optimizer_state_dict"]["zero_stage"]
    rest = torch.load(zero_to_fp32.get_model_state_file(folder, stage), map_location="cpu", weights_only=False)
    content = {key: value for key, value in rest.items() if key not in _OF_DEEPSPEED}
    content["state_dict"] = {name.removeprefix(_OLD_PREFIX): value for name, value in weights.items()}
    report.info(f"Writing the weights in float32 to {os.fspath(output_file)}")
    torch.save(content, output_file)
    return content


def deepspeed_param_size(p: nn.Parameter) -> int:
    """Return the size of a full parameter, of which this process holds a shard in DeepSpeed's stage 3."""
    size: int = p.ds_numel  # type: ignore[attr-defined]
    return size


def _full(parameter: Any) -> int:
    if isinstance(parameter, UninitializedParameter):
        return 0
    size: int = getattr(parameter, "ds_numel", parameter.numel())
    return size


def _shard(parameter: Any) -> int:
    if isinstance(parameter, UninitializedParameter):
        return 0
    count: int = parameter.partition_numel() if hasattr(parameter, "partition_numel") else parameter.numel()
    return count


class DeepSpeedLayerSummary(LayerSummary):
    """One layer of a module that DeepSpeed has sharded."""

    @property
    def num_parameters(self) -> int:
        """The numbers in its full parameters."""
        return sum(_full(parameter) for parameter in self._module.parameters())

    @property
    def average_shard_parameters(self) -> int:
        """The numbers in the shards of one process."""
        return sum(_shard(parameter) for parameter in self._module.parameters())


class DeepSpeedSummary(Summary):
    """The layers of a module that DeepSpeed has sharded (stage 3), with a column for the shards of one process.

    Args:
        model: The module.
        max_depth: How deep modules are listed: 1 for children, -1 for all, 0 for totals only.
    """

    def __init__(self, model: nn.Module, max_depth: int = 1) -> None:
        super().__init__(model, max_depth)

    def summarize(self) -> dict[str, DeepSpeedLayerSummary]:
        """Return each listed layer by its name."""
        layers = {name: DeepSpeedLayerSummary(module) for name, module in self.named_modules}
        for layer in layers.values():
            layer.detach_hook()
        return layers

    @property
    def parameters_per_layer(self) -> list[int]:
        """The numbers in the shards of each layer on one process."""
        return [layer.average_shard_parameters for layer in self.summarize().values()]

    def columns(self) -> dict[str, list[str]]:
        """Return the table, column by column."""
        columns: dict[str, list[str]] = {}
        for title, values in super().columns().items():
            columns[title] = values
            if title == "Params":
                others = [NOT_APPLICABLE for layer in self.layers if layer.name == OTHERS]
                columns["Params per Device"] = [*map(human, self.parameters_per_layer), *others]
        return columns
