"""Methods of a strategy that save and load; a subclass overrides them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightlib_lightning.plugins.alone import Alone
from lightlib_lightning.plugins.in_fabric import InFabric
from lightlib_lightning.plugins.io import CheckpointIO, PluginStore, TorchCheckpointIO
from lightlib_lightning.plugins.overriding import overridden

__all__ = ["STORING", "CheckpointMethods"]

STORING = ("save_checkpoint", "load_checkpoint", "remove_checkpoint")


class CheckpointMethods:
    """The part of Lightning's protocol for the states of a run, and for the files that hold them."""

    in_fabric: InFabric | None
    _checkpoint_io: CheckpointIO | None
    _waiting_states: list[dict[str, Any]]

    if TYPE_CHECKING:  # attributes of the strategy
        by_lightlib: Any
        extension: Any
        extend: Any
        is_global_zero: bool
        lightning_module: Any
        module: Any
        optimizers: Any

    # states
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the module's state, gathered on the first process."""
        state: dict[str, Any]
        if self.module is None:  # nothing has been placed
            return {} if self.lightning_module is None else dict(self.lightning_module.state_dict())
        state = self.by_lightlib.module_state()
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load ``checkpoint["state_dict"]``."""
        self.by_lightlib.load_module_state(checkpoint["state_dict"], strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load ``checkpoint["optimizer_states"]``, one for each optimizer."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            self.by_lightlib.load_optimizer_state(optimizer, state)

    # files
    @property
    def checkpoint_io(self) -> CheckpointIO:
        """The object that writes, reads and removes checkpoints; it may be set before a run."""
        store = self.extension.store
        if isinstance(store, PluginStore):
            return store.plugin
        if self._checkpoint_io is None:
            self._checkpoint_io = TorchCheckpointIO()
        return self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self.keep_checkpoint_io(io)
        strategy: Any = self
        self.extend(store=PluginStore(self.checkpoint_io, strategy) if overridden(self, STORING) else None)
        io.attach_to(strategy)

    def keep_checkpoint_io(self, io: CheckpointIO) -> None:
        """Return `io` as `checkpoint_io` from now on."""
        self._checkpoint_io = io

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint on the first process.

        Args:
            args, kwargs: ``(checkpoint, filepath, storage_options=None)``; in a Fabric,
                and in a program without a Trainer, ``(path, state, storage_options=None, filter=None)``.
        """
        if self.in_fabric is not None:
            self.in_fabric.save_checkpoint(*args, **kwargs)
        elif "path" in kwargs or (args and isinstance(args[0], (str, os.PathLike))):
            Alone(self).save_checkpoint(*args, **kwargs)
        else:
            self._save_trainers(*args, **kwargs)

    def _save_trainers(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the content of a checkpoint, or in a Fabric the rest of it.

        Args:
            args, kwargs: ``(checkpoint_path, weights_only=None)``; in a Fabric,
                and in a program without a Trainer, ``(path, state=None, strict=True, weights_only=None)``.
        """
        if self.in_fabric is not None:
            return self.in_fabric.load_checkpoint(*args, **kwargs)
        has_state = len(args) > 1 and not isinstance(args[1], bool | None)
        if has_state or kwargs.keys() & {"path", "state", "strict"}:
            return Alone(self).load_checkpoint(*args, **kwargs)
        return self._load_trainers(*args, **kwargs)

    def _load_trainers(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint on the first process."""
        if self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(filepath)

    # lightlib's calls of them
    def _load_module_state(self, state: Mapping[str, Any], strict: bool = True) -> None:
        self.load_model_state_dict({"state_dict": state}, strict=strict)

    def _collect_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Call `load_optimizer_state_dict` when the states of all optimizers have come."""
        self._waiting_states.append(state)
        if len(self._waiting_states) == len(self.optimizers):
            states, self._waiting_states = self._waiting_states, []
            self.load_optimizer_state_dict({"optimizer_states": states})
