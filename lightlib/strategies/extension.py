"""Extension: changes of a run by a strategy or plugin of another framework; by default there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Extension", "Store"]


class Store(Protocol):
    """Writes, reads and removes checkpoints in place of lightlib's files."""

    def save(self, content: dict[str, Any], path: str, storage_options: Any) -> None:
        """Write a checkpoint; every process calls this, with the full content on rank 0."""

    def load(self, path: str, weights_only: bool | None) -> dict[str, Any]:
        """Return the content of a checkpoint; every process calls this."""

    def remove(self, path: str) -> None:
        """Remove a checkpoint; rank 0 calls this."""


@dataclass(frozen=True)
class Extension:
    """Changes of a run, resolved before the first batch.

    Attributes:
        arguments: Arguments of the Trainer that the strategy sets: ``accelerator``, ``devices`` and ``plugins``.
        begin: Called with the module when a fit, validation, test or prediction begins, before `setup_environment`.
        hooks: Calls after those of the callbacks and the module, by the name of the hook.
        loader: Called with each loader; returns the one to use.
        move: ``(batch, dataloader_idx)`` returns the batch on the device, in place of `batch_to_device`.
        reduce: ``(value, how)`` reduces a value logged with `sync_dist`, in place of an exchange of sums.
        change_calls: Called with the calls of the loop (`core.run.optimization.Optimization`) when they have been
            chosen; it may replace them.
        store: Where checkpoints are; None: files of lightlib.
        environment: The user's object that knows the rank of this process; None if lightlib detected it.
        own_loop: Called with a Fabric; returns the calls that it makes in place of its own
            (`fabric.fabric_calls.FabricCalls`).
        written, read: Called with the content of a checkpoint before it is written, and when a fit resumes from it.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    begin: Callable[[Any], None] | None = None
    hooks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    loader: Callable[[Any], Any] | None = None
    move: Callable[[Any, int], Any] | None = None
    reduce: Callable[[Any, str], Any] | None = None
    change_calls: Callable[[Any], None] | None = None
    store: Store | None = None
    environment: Any = None
    own_loop: Callable[[Any], Any] | None = None
    written: Callable[[dict[str, Any]], None] | None = None
    read: Callable[[dict[str, Any]], None] | None = None
