"""CheckpointIO as in Lightning: user objects that write, read and remove checkpoints."""

from __future__ import annotations

import os
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import OURS
from lightlib.checkpoint.storage.label import Label
from lightlib.core.resume.save import refuse_directories
from lightlib.errors import ArgumentTypeError
from lightlib.strategies.plugin import StrategyPlugin
from lightlib.tree import map_tensors

if TYPE_CHECKING:
    from lightlib.strategies.strategy import Strategy

__all__ = ["AsyncCheckpointIO", "CheckpointIO", "PluginStore", "TorchCheckpointIO", "_WrappingCheckpointIO"]


class CheckpointIO(StrategyPlugin):
    """Base of objects that write, read and remove checkpoints, passed as ``Trainer(plugins=[…])``."""

    @abstractmethod
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint; called on the first process.

        Args:
            checkpoint: Its content.
            path: Where to write it.
            storage_options: From ``trainer.save_checkpoint(path, storage_options=…)``.
        """

    @abstractmethod
    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Return the content of a checkpoint; called on every process.

        Args:
            path: Where it is.
            map_location: The device for its tensors.
            weights_only: False allows arbitrary objects, which may run any code.
        """

    @abstractmethod
    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint; called on the first process."""

    def teardown(self) -> None:
        """Release resources at the end of a run."""

    def attach_to(self, strategy: Strategy) -> None:
        """Write and read the checkpoints of `strategy`.

        Raises:
            MisconfigurationException: Each process of this strategy writes its own shard.
        """
        if keep := getattr(strategy, "keep_checkpoint_io", None):
            keep(self)
        if type(self) is TorchCheckpointIO:
            return  # lightlib's own files
        if strategy.checkpoint_format == "directory":
            raise refuse_directories(self)
        store = PluginStore(self, strategy)
        hooks = {**strategy.extension.hooks, "teardown": store.end}
        strategy.extend(store=store, hooks=hooks)


class TorchCheckpointIO(CheckpointIO):
    """Files of `torch.save`, written by lightlib: they appear complete or not at all.

    Example:
        >>> TorchCheckpointIO().save_checkpoint({"step": 3}, "example.ckpt")
        >>> TorchCheckpointIO().load_checkpoint("example.ckpt")
        {'step': 3}
        >>> TorchCheckpointIO().remove_checkpoint("example.ckpt")
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a file.

        Raises:
            ArgumentTypeError: There are `storage_options`.
        """
        if storage_options is not None:
            raise ArgumentTypeError(
                f"TorchCheckpointIO got storage_options={storage_options!r}.",
                expected="None: it writes files of torch.save, which have no options.",
                fix="leave them out, or write a CheckpointIO that uses them.",
            )
        ours = checkpoint.get(OURS)
        label = ours.get("label") if isinstance(ours, dict) else None
        formats.save(checkpoint, os.fspath(path), Label.of(label) if isinstance(label, dict) else Label())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a file.

        Raises:
            FileNotFoundError: There is none.
            CheckpointError: It is damaged, or needs ``weights_only=False``.
        """
        if not filesystem.exists(path):
            raise FileNotFoundError(f"There is no checkpoint {os.fspath(path)!r}.")
        return formats.read(os.fspath(path), map_location or "cpu", trust=formats.is_trusted(weights_only))

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file or a directory; nothing happens if there is none."""
        if filesystem.exists(path):
            filesystem.remove(os.fspath(path))


class _WrappingCheckpointIO(CheckpointIO):
    """Passes every call on to another CheckpointIO; a base for those that add something.

    Args:
        checkpoint_io: The other one. Default: the one that the strategy has, a TorchCheckpointIO.
    """

    def __init__(self, checkpoint_io: CheckpointIO | None = None) -> None:
        self._checkpoint_io = checkpoint_io

    @property
    def checkpoint_io(self) -> CheckpointIO | None:
        """The other CheckpointIO; setting it has an effect only while there is none, here or further in."""
        return self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, checkpoint_io: CheckpointIO) -> None:
        if self._checkpoint_io is None:
            self._checkpoint_io = checkpoint_io
        elif isinstance(self._checkpoint_io, _WrappingCheckpointIO):
            self._checkpoint_io.checkpoint_io = checkpoint_io

    def attach_to(self, strategy: Strategy) -> None:
        """Write and read the checkpoints of `strategy`; the innermost is a TorchCheckpointIO if there is none."""
        self.checkpoint_io = TorchCheckpointIO()
        super().attach_to(strategy)

    @property
    def _inner(self) -> CheckpointIO:
        self.checkpoint_io = TorchCheckpointIO()
        assert self._checkpoint_io is not None
        return self._checkpoint_io

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Call that of the other one."""
        self._inner.save_checkpoint(*args, **kwargs)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Call that of the other one."""
        return self._inner.load_checkpoint(*args, **kwargs)

    def remove_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Call that of the other one."""
        self._inner.remove_checkpoint(*args, **kwargs)


class AsyncCheckpointIO(_WrappingCheckpointIO):
    """Writes checkpoints in a thread, one after the other, while training continues.

    The state is copied before the call returns. The error of a save is raised by the next one, or when the run ends.

    Args:
        checkpoint_io: What writes them. Default: a TorchCheckpointIO.
    """

    def __init__(self, checkpoint_io: CheckpointIO | None = None) -> None:
        super().__init__(checkpoint_io)
        self._thread: ThreadPoolExecutor | None = None
        self._error: BaseException | None = None

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Copy the state and write it in the thread."""
        if "checkpoint" in kwargs:
            kwargs = {**kwargs, "checkpoint": map_tensors(_copied, kwargs["checkpoint"])}
        elif args:
            args = (map_tensors(_copied, args[0]), *args[1:])
        self._raise_error()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1)
        self._thread.submit(self._save, *args, **kwargs)

    def _save(self, *args: Any, **kwargs: Any) -> None:
        try:
            self._inner.save_checkpoint(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  it is raised on the main thread
            self._error = error

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Wait until all are written, then read."""
        self._wait()
        return super().load_checkpoint(*args, **kwargs)

    def remove_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Remove after everything written before."""
        if self._thread is None:
            super().remove_checkpoint(*args, **kwargs)
        else:
            self._thread.submit(self._remove, *args, **kwargs)

    def _remove(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().remove_checkpoint(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  as in _save
            self._error = error

    def teardown(self) -> None:
        """Wait for the thread; raise the error of a save."""
        self._wait()
        self._raise_error()


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


class PluginStore:
    """A CheckpointIO as the store of a strategy, with the calls that Lightning makes.

    Args:
        plugin: The CheckpointIO.
        strategy: The strategy; one with Lightning's methods makes these calls itself.
    """

    def __init__(self, plugin: CheckpointIO, strategy: Strategy) -> None:
        self.plugin, self._strategy = plugin, strategy

    @property
    def _calls(self) -> Any:
        """The strategy that makes the calls; None: they go to the plugin, as always in a Fabric."""
        by_trainer = hasattr(self._strategy, "save_checkpoint") and getattr(self._strategy, "in_fabric", None) is None
        return self._strategy if by_trainer else None

    def save(self, content: dict[str, Any], path: str, storage_options: Any = None) -> None:
        """Write on the first process; the strategy's own method on every process."""
        if self._calls is not None:
            self._calls.save_checkpoint(content, path, storage_options=storage_options)
        elif self._strategy.is_global_zero:
            self.plugin.save_checkpoint(content, path, storage_options=storage_options)

    def load(self, path: str, weights_only: bool | None) -> dict[str, Any]:
        """Read on every process."""
        if self._calls is not None:
            content: dict[str, Any] = self._calls.load_checkpoint(path, weights_only=weights_only)
            return content
        return self.plugin.load_checkpoint(path, weights_only=weights_only)

    def end(self, stage: object) -> None:
        """End a run."""
        self.plugin.teardown()

    def remove(self, path: str) -> None:
        """Remove on the first process."""
        (self._calls or self.plugin).remove_checkpoint(path)
