"""Private functions of Lightning that read checkpoints; rl4co calls some."""

from __future__ import annotations

from typing import Any

from lightlib.checkpoint import formats
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.loading import build, fill, load_datamodule, load_from_checkpoint

__all__ = ["load", "load_object", "load_state"]


def load(path_or_url: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
    """Return the content of a checkpoint: `_load`. No code in it is run unless `weights_only` is False."""
    return read_tensors(
        formats.load(path_or_url, map_location, trust=formats.is_trusted(weights_only), of_any_kind=True)
    )


def load_object(
    cls: Any, checkpoint_path: Any, map_location: Any = None, hparams_file: Any = None, strict: bool | None = None,
    weights_only: bool | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Build a module or data module from a checkpoint: `_load_from_checkpoint`."""
    if issubclass(cls, DataModule):
        return load_datamodule(cls, checkpoint_path, map_location, hparams_file, weights_only, **kwargs)
    return load_from_checkpoint(cls, checkpoint_path, map_location, hparams_file, strict, weights_only, **kwargs)


def load_state(cls: Any, checkpoint: dict[str, Any], strict: bool | None = None, **cls_kwargs_new: Any) -> Any:
    """Build a module or data module from the content of a checkpoint: `_load_state`."""
    built = build(cls, checkpoint, None, cls_kwargs_new, trust=True)
    if isinstance(built, DataModule):
        if (state := checkpoint.get(cls.__qualname__)) is not None:
            built.load_state_dict(state)
        return built
    fill(built, checkpoint, strict)
    return built
