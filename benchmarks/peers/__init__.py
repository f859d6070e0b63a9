"""The frameworks that are measured; each does the same work in the way it is meant to be used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from benchmarks.task import Task

__all__ = ["IGNITE", "LIGHTLIB", "LIGHTNING", "NOT_INSTALLED", "PEERS", "PLAIN", "Peer"]

NOT_INSTALLED = "not installed"


@dataclass(frozen=True)
class Peer:
    """A framework.

    Attributes:
        name: As it is shown.
        package: What is imported.
        file: Its file in this folder.
        statement: How its users import it.
        distribution: What is installed; default: `package`.
        trainer: Whether it is a full trainer: it owns the loop, and shows and logs by itself.
    """

    name: str
    package: str
    file: str
    statement: str
    distribution: str = ""
    trainer: bool = True

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None

    @property
    def version(self) -> str:
        if not self.installed:
            return NOT_INSTALLED
        if self is LIGHTLIB:  # also where it is only on the path
            return str(import_module("lightlib.version").__version__)
        return metadata.version(self.distribution or self.package)

    @property
    def code(self) -> Any:
        return import_module(f"benchmarks.peers.{self.file}")

    def train(self, task: Task) -> None:
        """Run the task."""
        self.code.train(task)


PLAIN = Peer("plain PyTorch", "torch", "plain", "import torch", trainer=False)
LIGHTLIB = Peer("lightlib", "lightlib", "lightlib", "from lightlib import Module, Trainer")
LIGHTNING = Peer("Lightning", "lightning", "lightning", "import lightning.pytorch")
IGNITE = Peer(
    "Ignite",
    "ignite",
    "ignite",
    "import ignite.engine, ignite.handlers, ignite.metrics",
    "pytorch-ignite",
    trainer=False,
)
PEERS = (
    LIGHTNING,
    IGNITE,
    Peer("Accelerate", "accelerate", "accelerate", "from accelerate import Accelerator", trainer=False),
    Peer("Fabric", "lightning", "fabric", "from lightning.fabric import Fabric", trainer=False),
    Peer("skorch", "skorch", "skorch", "import skorch"),
    Peer("torchtnt", "torchtnt", "torchtnt", "import torchtnt.framework"),
    Peer("pytorch-accelerated", "pytorch_accelerated", "pytorch_accelerated", "import pytorch_accelerated"),
    Peer("transformers' Trainer", "transformers", "transformers", "from transformers import Trainer"),
)
