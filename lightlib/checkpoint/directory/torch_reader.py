"""Reader: lets torch.distributed.checkpoint load our checkpoint directories."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightlib.checkpoint.directory.tensors import LazyTensor

__all__ = ["Reader"]


class Reader:
    """The interface of a `storage_reader` of `torch.distributed.checkpoint.load`.

    Args:
        path: The directory.
        tensors: Its tensors by name.
    """

    def __init__(self, path: str, tensors: Mapping[str, LazyTensor]) -> None:
        self.path = path
        self._tensors = {_dotted(name): tensor for name, tensor in tensors.items() if not tensor.as_saved}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """No-op: a reader reads one directory."""

    def read_metadata(self) -> Any:
        """Return the chunks of each tensor."""
        from torch.distributed.checkpoint import metadata  # optional: torch.distributed.checkpoint, slow to import

        return metadata.Metadata(
            {
                name: metadata.TensorStorageMetadata(
                    metadata.TensorProperties(tensor.dtype),
                    tensor.shape,
                    [
                        metadata.ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                        for chunk in tensor.chunks
                    ],
                )
                for name, tensor in self._tensors.items()
            }
        )

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool) -> None:
        """No-op: everything is known."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read the tensors of a plan.

        Raises:
            CheckpointError: The data differ from what was written.
        """
        for item in plan.items:
            tensor = self._tensors[item.storage_index.fqn]
            chunk = item.storage_index.offset or (0,) * tensor.dim()
            offsets = tuple(a + b for a, b in zip(chunk, item.storage_offsets, strict=True))
            values: Tensor = tensor.box(offsets, tuple(item.lengths))
            target = planner.resolve_tensor(item).detach()
            target.copy_(values)
            planner.commit_tensor(item, target)
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done


def _dotted(name: str) -> str:
    """Return torch's name for the same tensor.

    Example:
        >>> _dotted("optimizer_states/[0]/state/[3]/exp_avg")
        'optimizer_states.0.state.3.exp_avg'
    """
    return re.sub(r"\[(\d+)\]", r"\1", name).replace("/", ".")
